// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/rms_norm_row.cuh"
#include "cuda/row_tile.cuh"

namespace membound::cuda {

// Where the result of the norm goes: to out.
struct StoreResult {
  template <class Accumulate>
  using Params = RmsNormParams<Accumulate>;
  static constexpr int kRounds = 0;  // of the exchange between blocks, beside those of the norm
  static constexpr bool kAfterSum = false;  // whether residual_out is written first
  static constexpr bool kAnyVecs = true;    // whether a segment may have any number of chunks

  // Chunk i of the held row is make<plain>(i). kUnroll: as for HeldTile::put.
  template <int kUnroll, class T, class Tile, class Row, class Make>
  static __device__ void put(const Params<accumulate_t<T>>&, const Tile& tile, const Row& row,
                             bool plain, Make make) {
    const auto put_as = [&]<bool kPlain>() {
      tile.template put<kUnroll>(row.out(),
                                 [&](int i) { return make.template operator()<kPlain>(i); });
    };
    plain ? put_as.template operator()<true>() : put_as.template operator()<false>();
    tile.flush(row.out());
  }
  // What writes a segment of a streamed row, whose chunk v at index `at` is make(v, at).
  template <class T, class Tile, class Row, class Result>
  static __device__ auto stream(const Params<accumulate_t<T>>&, Tile& tile, const Row& row,
                                Result) {
    return [&tile, &row](int group, int segment, auto make) {
      tile.write(row.out(), group, segment, make);
    };
  }
};

template <class T, class Team, Access kAccess, Beside kBeside, Centring kCentring, class Sink>
__device__ __noinline__ void rescale(const typename Sink::template Params<accumulate_t<T>>& p,
                                     bool plain);

// The arrays of one row: x and what is beside it are read; out and residual_out written.
template <class T, Access kAccess, Beside kBeside>
class NormRow {
  using Params = RmsNormParams<accumulate_t<T>>;
  using Reader = RowReader<T, kAccess>;
  using Writer = RowWriter<T, kAccess>;
  static constexpr bool kHasBeside = kBeside != Beside::kNothing;

 public:
  using Chunk = SourceChunk<T, kBeside>;

  __device__ NormRow(const Params& p, std::int64_t row)
      : p_(p),
        row_(row),
        x_(at<const T>(p.x, p.x_row_stride, p.x_array), p.x_array, p.chunks, p.cols),
        beside_(kHasBeside ? Reader(at<const T>(p.beside, p.beside_row_stride, p.beside_array),
                                    p.beside_array, p.chunks, p.cols)
                           : x_) {}

  // The kCount chunks index(0), index(1) ... of x, and as many of what is beside it.
  template <int kCount>
  struct Raw {
    RawChunk<kAccess> x[kCount];
    RawChunk<kAccess> beside[kHasBeside ? kCount : 1];
  };
  template <int kCount, class Index>
  __device__ void fetch(Raw<kCount>& raw, Index index) const {
    x_.fetch(raw.x, index);
    if constexpr (kHasBeside) beside_.fetch(raw.beside, index);
  }
  template <bool kUniform, int kCount, class Index>
  __device__ void chunks(const Raw<kCount>& raw, Chunk (&chunks)[kCount], Index index) const {
    uint4 parts[kCount];
    x_.template chunks<kUniform>(raw.x, parts, index);
#pragma unroll
    for (int i = 0; i < kCount; ++i) chunks[i].parts[0] = parts[i];
    if constexpr (kHasBeside) {
      beside_.template chunks<kUniform>(raw.beside, parts, index);
#pragma unroll
      for (int i = 0; i < kCount; ++i) chunks[i].parts[1] = parts[i];
    }
  }
  __device__ Chunk load_chunk(int index) const {
    Chunk chunk;
    chunk.parts[0] = x_.load(index);
    if constexpr (kHasBeside) chunk.parts[1] = beside_.load(index);
    return chunk;
  }
  __device__ Numbers<T> load(int index) const { return load_chunk(index).numbers(p_); }
  __device__ Numbers<T> load_alike(int index) const {
    Chunk chunk;
    chunk.parts[0] = x_.load_alike(index);
    if constexpr (kHasBeside) chunk.parts[1] = beside_.load_alike(index);
    return chunk.numbers(p_);
  }
  // A chunk of the result in storage: what came of the norm, and the gate that it passes.
  __device__ uint4 result(Numbers<T> y, const Chunk& chunk) const {
    if constexpr (kBeside == Beside::kGate) pass_gate<T, kBeside>(p_, y, chunk.parts[1]);
    return pack<T>(y);
  }
  __device__ Writer out() const {
    return {at<T>(p_.out, p_.out_row_stride, p_.out_array), p_.out_array, p_.chunks, p_.cols};
  }
  __device__ Writer residual_out() const {
    return {at<T>(p_.residual_out, p_.residual_out_row_stride, p_.residual_out_array),
            p_.residual_out_array, p_.chunks, p_.cols};
  }
  // By one thread of the row.
  template <Centring kCentring>
  __device__ void store_statistics(const RowScale<accumulate_t<T>>& scale) const {
    store_statistic(p_.rstd, p_.rstd_row_stride, p_.rstd_array, scale.rstd * scale.scale);
    if constexpr (kCentring != Centring::kNever) {
      // The rest of an infinite mean is not a number.
      const accumulate_t<T> both = scale.mean + scale.correction;
      store_statistic(p_.mean, p_.mean_row_stride, p_.mean_array,
                      (isinf(scale.mean) ? scale.mean : both) / scale.scale);
    }
  }

 private:
  template <class U, class Data>
  __device__ U* at(Data* data, std::int64_t stride, const RowArray& array) const {
    return static_cast<U*>(data) + row_offset<kAccess, true>(p_.split, stride, array, row_);
  }
  __device__ void store_statistic(accumulate_t<T>* data, std::int64_t stride, const RowArray& array,
                                  accumulate_t<T> value) const {
    if (data != nullptr) *at<accumulate_t<T>>(data, stride, array) = value;
  }

  const Params& p_;
  std::int64_t row_;
  Reader x_;
  Reader beside_;
};

// A chunk of a row, and of its result, for what is seldom done. Out of line: inlined into each of
// its passes, the redo of extreme rows was a fifth of all machine code.
template <class T, Access kAccess, Beside kBeside>
__device__ __noinline__ SourceChunk<T, kBeside> cold_chunk(const RmsNormParams<accumulate_t<T>>& p,
                                                           std::int64_t row, int index) {
  return NormRow<T, kAccess, kBeside>(p, row).load_chunk(index);
}
template <class T, Access kAccess, Beside kBeside, Centring kCentring>
__device__ __noinline__ uint4 cold_result(const RmsNormParams<accumulate_t<T>>& p, std::int64_t row,
                                          std::int64_t head, RowScale<accumulate_t<T>> scale,
                                          int index) {
  const NormRow<T, kAccess, kBeside> from(p, row);
  const SourceChunk<T, kBeside> chunk = from.load_chunk(index);
  const Columns<T, kAccess, kCentring> columns(p, head);
  return from.result(
      columns.template normalised<false>(chunk.numbers(p), scale, columns.load(index),
                                         columns.load_bias(index), index),
      chunk);
}

// The row of one team, from its only read to its only write.
template <class T, class Team, Access kAccess, Beside kBeside, Centring kCentring, class Sink>
class HeldRow {
  using Accumulate = accumulate_t<T>;
  using Params = typename Sink::template Params<Accumulate>;
  using Scale = RowScale<Accumulate>;
  using Tile = HeldTile<Team, kAccess>;
  using Rounds = RoundsOf<kCentring>;
  static constexpr int kChunks = Tile::kChunks;
  static constexpr bool kAdd = kBeside == Beside::kResidual;
  // Heads are narrow; others of theirs take the kernels of shifted rows.
  static constexpr bool kHeads = kAccess != Access::kAligned || Team::kSplitRows;
  using Row = NormRow<T, kAccess, kBeside>;

 public:
  __device__ HeldRow(const Params& p, const Team& team)
      : p_(p),
        team_(team),
        tile_(team, team.row, p.rows),
        row_(p, tile_.row()),
        columns_(p, head()) {}

  __device__ void run() {
    const auto index = [&](int i) { return tile_.index(i); };
    typename Row::template Raw<kChunks> raw;
    row_.fetch(raw, index);
    // Early weights hide their latency behind the reduction (H200, 1024 x 4096: 6.06 to 5.60 us; 1
    // x 4096: 2.16 to 1.51; 4096 x 32768: 148 to 138); with eight chunks they would cost occupancy.
    constexpr bool kEarlyWeights = kChunks <= 4;
    // Biases are four more chunks, for which float32 has no registers to spare (16384 x 4096: 131
    // to 136 us), nor have shifted rows (bfloat16, 16384 x 4097: 137 to 141).
    constexpr bool kRoomForBiases =
        Team::kFold == 1 || (sizeof(T) == 2 && kAccess != Access::kShifted);
    constexpr bool kEarlyBiases = kEarlyWeights && kRoomForBiases && kCentring == Centring::kAlways;
    uint4 weights[kChunks];
    // Shifted rows have two blocks of each chunk in registers at first; with the two chunks of a
    // warp's lane there is room (bfloat16, 262144 x 100: 67 us after them, 64 before).
    constexpr bool kBeforeChunks = kAccess != Access::kShifted || Team::kSharesWarp;
    const auto load_weights = [&] {
      columns_.load(weights, index);
      asm volatile("" ::: "memory");  // else the compiler sinks the loads below the reduction
    };
    if constexpr (kEarlyWeights && kBeforeChunks) load_weights();
    team_.start();
    typename Row::Chunk chunks[kChunks];
    row_.template chunks<Team::kUniformShift>(raw, chunks, index);
    if constexpr (kEarlyWeights && !kBeforeChunks) load_weights();
    const auto numbers = [&](int i) { return chunks[i].numbers(p_); };
    const auto forget = [&] {
#pragma unroll
      for (int i = 0; i < kChunks; ++i) forget_numbers(chunks[i].parts);
    };
    uint4 biases[kChunks];
    if constexpr (kEarlyBiases) {
      columns_.load_bias(biases, index);
      asm volatile("" ::: "memory");
    }
    Scale scale;
    bool sound = true;
    const Accumulate squares = squares_at_once<kChunks>(scale, 0, 0, numbers, sound);
    const bool trusted = sound && is_trusted(p_, squares);
    if (team_.any(!trusted)) [[unlikely]]
      return rescale<T, Team, kAccess, kBeside, kCentring, Sink>(p_, trusted);

    scale.rstd = plain_rstd(p_, squares);
    if (tile_.first_thread()) row_.template store_statistics<kCentring>(scale);
    forget();
    if constexpr (kAdd && Sink::kAfterSum) store_sum(numbers);
    const auto result = [&]<bool kPlain>(int i) {
      if constexpr (kEarlyWeights && !kEarlyBiases) biases[i] = columns_.load_bias(index(i));
      if constexpr (!kEarlyWeights) {
        if (i % 4 == 0) load_four(weights, biases, i);
      }
      return row_.result(
          columns_.template normalised<kPlain>(numbers(i), scale, weights[i], biases[i], index(i)),
          chunks[i]);
    };
    const bool plain = kAccess != Access::kAny && p_.plain;
    Sink::template put<kChunks, T>(p_, tile_, row_, plain, result);
    if constexpr (kAdd && !Sink::kAfterSum) store_sum(numbers);
  }

  // The weights and biases of four chunks at once, of which put() has one in registers at a time.
  __device__ void load_four(uint4 (&weights)[kChunks], uint4 (&biases)[kChunks], int first) const {
    uint4 four[4];
    const auto index = [&](int i) { return tile_.index(first + i); };
    columns_.load(four, index);
#pragma unroll
    for (int i = 0; i < 4; ++i) weights[first + i] = four[i];
    columns_.load_bias(four, index);
#pragma unroll
    for (int i = 0; i < 4; ++i) biases[first + i] = four[i];
  }

  // The redo of a row whose plain sums left the trusted range. It reads the row again, so that the
  // everyday path keeps its registers. Rows of the same warp come along with `plain`.
  __device__ void run_scaled(bool plain) {
    const auto numbers = [&](int i) {
      return cold_chunk<T, kAccess, kBeside>(p_, tile_.row(), tile_.index(i)).numbers(p_);
    };
    const Accumulate largest = tile_.template reduce<Accumulate, 1>(
        0, Rounds::kScaledLargest, [&](int i) { return largest_magnitude<T>(numbers(i)); },
        Largest());
    const int exponent = plain ? 0 : row_exponent(p_, largest);
    Scale scale{.scale = power_of_two(exponent, Accumulate())};
    const Accumulate squares = squares_of<1>(scale, 1, Rounds::kScaledMoments, numbers);
    settle<Accumulate, kCentring>(p_, scale, squares, exponent);
    if constexpr (Team::kSharesWarp && kCentring != Centring::kNever) {
      Scale again;
      bool sound;
      const Accumulate plain_squares = squares_at_once<1>(again, 0, 0, numbers, sound);
      if (plain) {
        scale = again;
        scale.rstd = plain_rstd(p_, plain_squares);
      }
    }
    if (tile_.first_thread()) row_.template store_statistics<kCentring>(scale);
    uint4 sums[kAdd ? kChunks : 1];  // before out may overwrite what they are made of
    if constexpr (kAdd) {
#pragma unroll 1
      for (int i = 0; i < kChunks; ++i) sums[i] = pack<T>(numbers(i));
    }
    Sink::template put<1, T>(p_, tile_, row_, false, [&]<bool>(int i) {
      return cold_result<T, kAccess, kBeside, kCentring>(p_, tile_.row(), head(), scale,
                                                         tile_.index(i));
    });
    if constexpr (kAdd) {
      tile_.template put<1, true>(row_.residual_out(), [&](int i) { return sums[i]; });
      tile_.flush(row_.residual_out());
    }
  }

 private:
  __device__ std::int64_t head() const { return kHeads ? p_.heads.of(tile_.row()) : 0; }
  template <class OfChunk>
  __device__ void store_sum(OfChunk numbers) const {
    tile_.template put<kChunks, true>(row_.residual_out(),
                                      [&](int i) { return pack<T>(numbers(i)); });
    tile_.flush(row_.residual_out());
  }

  // The sum of squares of the row, whose i-th chunk is numbers(i), from one pass over it; sets its
  // mean. sound: see leave_pivot.
  template <int kUnroll, class OfChunk>
  __device__ Accumulate squares_at_once(Scale& scale, int round, int exchange, OfChunk numbers,
                                        bool& sound) const {
    sound = true;
    if (!is_centred<kCentring>(p_)) {
      return tile_.template reduce<Accumulate, kUnroll>(
          round, exchange, [&](int i) { return sum_of_squares<T>(numbers(i)); }, Sum());
    }
    scale.mean = pivot_of<T>(p_, row_);
    Pair<Accumulate> sums = tile_.template reduce_part<Pair<Accumulate>, kUnroll>(
        round,
        [&](int i) {
          return sums_about_pivot<T, kAccess, kCentring>(p_, numbers(i), scale, tile_.index(i));
        },
        Sum());
    if constexpr (Team::kClusters) {
      team_.send(exchange, sums.a);
      team_.send(exchange + 1, sums.b);
      sums.a = combine_slots<kMaxGroups>(team_.collect(exchange), Sum());
      sums.b = combine_slots<kMaxGroups>(team_.collect(exchange + 1), Sum());
    }
    return leave_pivot<T>(scale, sums, p_.inverse_cols, sound);
  }

  // The sum of squares of the scaled row, in two passes; sets its mean first.
  template <int kUnroll, class OfChunk>
  __device__ Accumulate squares_of(Scale& scale, int round, int exchange, OfChunk numbers) const {
    const auto over_row = [&](int i, auto of) {
      return of_deviations<T, kAccess, kCentring>(p_, numbers(i), scale, tile_.index(i), of);
    };
    const auto square = [&](int i) {
      return over_row(i, [](const Numbers<T>& x) { return sum_of_squares<T>(x); });
    };
    if (!is_centred<kCentring>(p_)) {
      return tile_.template reduce<Accumulate, kUnroll>(round, exchange, square, Sum());
    }
    Accumulate count = static_cast<Accumulate>(p_.cols), inverse = p_.inverse_cols;
    if constexpr (Team::kClusters) {
      count = group_count(p_, team_.rank);
      inverse = count > 0 ? 1 / count : Accumulate(0);
    }
    const Accumulate sum_of_part = tile_.template reduce_part<Accumulate, kUnroll>(
        round, [&](int i) { return sum<T>(deviations<T, kCentring>(numbers(i), scale)); }, Sum());
    const Accumulate squares = take_moments<T>(scale, sum_of_part, count, inverse, [&](auto of) {
      return tile_.template reduce_part<decltype(of(Numbers<T>())), kUnroll>(
          round + 1, [&](int i) { return over_row(i, of); }, Sum());
    });
    if constexpr (!Team::kClusters) {
      return squares;
    } else {
      team_.send(exchange, scale.mean);
      team_.send(exchange + 1, squares);
      if constexpr (kCorrectsMean<T>) team_.send(exchange + 2, scale.correction);
      const Accumulate* means = team_.collect(exchange);
      const Accumulate* parts = team_.collect(exchange + 1);
      const Accumulate* rests = kCorrectsMean<T> ? team_.collect(exchange + 2) : nullptr;
      return merge_groups<T>(p_, means, parts, rests, scale);
    }
  }

  const Params& p_;
  const Team& team_;
  Tile tile_;
  Row row_;
  Columns<T, kAccess, kCentring> columns_;
};

// Out of line, so that the everyday path stays short and keeps its registers.
template <class T, class Team, Access kAccess, Beside kBeside, Centring kCentring, class Sink>
__device__ __noinline__ void rescale(const typename Sink::template Params<accumulate_t<T>>& p,
                                     bool plain) {
  const Team team(p.lanes, p.blocks_per_row, 0);
  HeldRow<T, Team, kAccess, kBeside, kCentring, Sink>(p, team).run_scaled(plain);
}

// One row per team, held in registers. A block does threads / lanes rows (WarpTeam), one row
// (BlockTeam) or a part of one (ClusterTeam). Shared memory: the sums of the warps, and the results
// of shifted rows. Limited by memory: few threads with several independent 16-byte loads each, many
// blocks per SM, so that some load while others store. Only rows with nothing beside them are held
// to the registers that this takes.
template <class T, class Team, Access kAccess, Beside kBeside, Centring kCentring, class Sink>
__global__ void __launch_bounds__(Team::kMaxThreads,
                                  min_blocks<T, Team, kAccess, kBeside, kCentring>())
    rms_norm_row_kernel(const __grid_constant__ typename Sink::template Params<accumulate_t<T>> p) {
  if constexpr (runs_here<Team>()) {
    const Team team(p.lanes, p.blocks_per_row, 0);
    HeldRow<T, Team, kAccess, kBeside, kCentring, Sink> row(p, team);
    if (p.overlap_launch) begin_overlapped();
    row.run();
  }
}

}  // namespace membound::cuda
