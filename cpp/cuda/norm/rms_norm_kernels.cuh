// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/norm/rms_norm_shift.cuh"
#include "cuda/norm/rms_norm_source.cuh"

namespace membound::cuda {

// Where the result of the norm goes: to out.
struct StoreResult {
  template <class Accumulate>
  using Params = RmsNormParams<Accumulate>;
  static constexpr int kRounds = 0;  // of the exchange between blocks, beside those of the norm
  static constexpr bool kAfterSum = false;  // whether residual_out is written first
  static constexpr bool kAnyVecs = true;    // whether a segment may have any number of chunks
  static constexpr bool kQuantises = false;

  // Chunk i of the held row is make<plain>(i). kSide: as for HeldTile::put.
  template <int kSide, class T, class Tile, class Row, class Make>
  static __device__ void put(const Params<accumulate_t<T>>&, const Tile& tile, const Row& row,
                             bool plain, Make make) {
    const auto put_as = [&]<bool kPlain>() {
      tile.template put<kSide>(row.out(),
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
                                     bool plain, int first_block = 0);

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
  static constexpr bool kParks = kParked<T, Team, kAccess, kBeside, kCentring, Sink::kQuantises>;
  using Held = std::conditional_t<kParks, ParkedChunks<T, Team, kAccess, kBeside, kCentring>,
                                  RegisterChunks<T, Team, kAccess, kBeside>>;
  // Chunks whose code is side by side, and whose weights are asked for at once: of parked ones as
  // few as keep them to the registers of min_blocks.
  static constexpr int kUnroll = kParks ? 1 : kChunks;
  // More results than registers should hold wait for their scale there, too.
  static constexpr bool kParksResults = kParks && Sink::kQuantises && kChunks > 6;
  static constexpr bool kMayCentre = kCentring != Centring::kNever;
  // Aligned rows that are centred ask for those of the next chunk while they work on one, where a
  // thread has many (H200, LayerNorm: 8192 x 16384 129.2 to 127.3 us, float32 270 to 261, 512 x
  // 32768 25.6 to 24.7; two chunks of two virtual threads 1024 x 4096 7.2 to 7.5, 16384 x 1024 19.3
  // to 20.4).
  static constexpr bool kAhead =
      kParks && Team::kVecs > 2 && kAccess == Access::kAligned&& kCentring == Centring::kAlways;
  static constexpr int kWeights = kAhead                     ? 2
                                  : !kParks                  ? (kChunks % 4 == 0 ? 4 : kChunks)
                                  : Team::kMaxThreads == 512 ? (kMayCentre ? 1 : 2)
                                                             : (kMayCentre ? 2 : 4);

 public:
  __device__ HeldRow(const Params& p, const Team& team)
      : p_(p),
        team_(team),
        tile_(team, team.row, p.rows),
        row_(p, tile_.row()),
        columns_(p, head()) {}

  __device__ void run() {
    const auto index = [&](int i) { return tile_.index(i); };
    Held held(row_, tile_);
    held.fetch(p_, team_.lane);
    // Early weights hide their latency behind the reduction (H200, 1024 x 4096: 6.06 to 5.60 us; 1
    // x 4096: 2.16 to 1.51; 4096 x 32768: 148 to 138).
    uint4 weights[kWeights], biases[kWeights];
    const auto load_weights = [&] {
      if constexpr (kAhead) {
        columns_.clear_bias(biases);
        columns_.load_at(weights[0], biases[0], index(0));
      } else {
        columns_.load(weights, index);
      }
      asm volatile("" ::: "memory");  // else the compiler sinks the loads below the reduction
    };
    // Shifted rows have two blocks of each chunk in registers at first.
    constexpr bool kBeforeChunks = kParks || kAccess != Access::kShifted;
    if constexpr (kBeforeChunks) load_weights();
    // What the pivot is made of is asked for while the row is on its way, or, by threads that hold
    // its blocks, after it. Behind start() the compiler of PTX sinks it below the wait.
    typename Row::Chunk first[kPivotChunks<T>];
    if constexpr (kParks) {
      if (is_centred<kCentring>(p_)) {
#pragma unroll
        for (int i = 0; i < kPivotChunks<T>; ++i) first[i] = row_.load_chunk_alike(i);
      }
    }
    team_.start();
    held.receive();
    Accumulate pivot = 0;
    if constexpr (Team::kSharesWarp && kByWords<kAccess>) {
      if (is_centred<kCentring>(p_)) {
        pivot = pivot_from_lanes<T>(p_, team_.size, [&](int i) { return held.at(i).numbers(p_); });
      }
    } else if constexpr (!kParks) {
      pivot = row_pivot();
    } else if (is_centred<kCentring>(p_)) {
      pivot = pivot_from<T>(p_, [&](int i) { return first[i].numbers(p_); });
    }
    if constexpr (!kBeforeChunks) load_weights();
    // Biases are as many registers more, which parked rows do not have, nor float32's (16384 x
    // 4096: 131 to 136 us).
    constexpr bool kEarlyBiases =
        !kParks && kCentring == Centring::kAlways && (kChunks <= 2 || sizeof(T) == 2);
    if constexpr (kEarlyBiases) {
      columns_.clear_bias(biases);
      columns_.load_bias(biases, index);
      asm volatile("" ::: "memory");
    }
    const auto numbers = [&](int i) { return held.at(i).numbers(p_); };
    Scale scale;
    bool sound = true;
    const Accumulate squares = squares_at_once<kUnroll>(scale, pivot, 0, 0, numbers, sound);
    const bool trusted = sound && is_trusted(p_, squares);
    if (team_.any(!trusted)) [[unlikely]]
      return rescale<T, Team, kAccess, kBeside, kCentring, Sink>(p_, trusted);

    scale.rstd = plain_rstd(p_, squares);
    if (tile_.first_thread()) row_.template store_statistics<kCentring>(scale);
    held.forget();
    if constexpr (!kEarlyBiases && !kAhead) columns_.clear_bias(biases);
    if constexpr (kAdd && Sink::kAfterSum) store_sum(numbers);
    const auto result = [&]<bool kPlain>(int i) {
      const int j = i % kWeights;
      if constexpr (kAhead) {
        const int next = (j + 1) % kWeights;
        const int at = i + 1 < kChunks ? index(i + 1) : p_.chunks;
        columns_.template load_at<kPlain>(weights[next], biases[next], at);
        asm volatile("" ::: "memory");
      } else if (j == 0) {
        const auto more = [&](int k) { return tile_.index(i + k); };
        if (i > 0) columns_.template load<kPlain>(weights, more);
        if constexpr (!kEarlyBiases) columns_.template load_bias<kPlain>(biases, more);
      }
      const typename Row::Chunk chunk = held.at(i);
      return row_.result(columns_.template normalised<kPlain>(chunk.numbers(p_), scale, weights[j],
                                                              biases[j], index(i)),
                         chunk);
    };
    const bool plain = kAccess != Access::kAny && p_.plain;
    if constexpr (kParksResults) {
      Sink::template put_parked<kWeights, T>(p_, tile_, held, plain, result);
    } else {
      Sink::template put<kWeights, T>(p_, tile_, row_, plain, result);
    }
    if constexpr (kAdd && !Sink::kAfterSum) store_sum(numbers);
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
      const Accumulate plain_squares = squares_at_once<1>(again, row_pivot(), 0, 0, numbers, sound);
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
  __device__ Accumulate row_pivot() const {
    return is_centred<kCentring>(p_) ? pivot_of<T>(p_, row_) : Accumulate(0);
  }
  __device__ std::int64_t head() const { return kHeads ? p_.heads.of(tile_.row()) : 0; }
  template <class OfChunk>
  __device__ void store_sum(OfChunk numbers) const {
    tile_.template put<kWeights, true>(row_.residual_out(),
                                       [&](int i) { return pack<T>(numbers(i)); });
    tile_.flush(row_.residual_out());
  }

  // The sum of squares of the row, whose i-th chunk is numbers(i), from one pass over it; sets its
  // mean. sound: see leave_pivot.
  template <int kUnroll, class OfChunk>
  __device__ Accumulate squares_at_once(Scale& scale, Accumulate pivot, int round, int exchange,
                                        OfChunk numbers, bool& sound) const {
    sound = true;
    if (!is_centred<kCentring>(p_)) {
      return tile_.template reduce<Accumulate, kUnroll>(
          round, exchange, [&](int i) { return sum_of_squares<T>(numbers(i)); }, Sum());
    }
    scale.mean = pivot;
    Pair<Accumulate> sums = tile_.template reduce_part<Pair<Accumulate>, kUnroll>(
        round,
        [&](int i) {
          return sums_about_pivot<T, kAccess, kCentring>(p_, numbers(i), scale, tile_.index(i));
        },
        Sum());
    if constexpr (Team::kClusters) {
      team_.send(exchange, sums.a);
      team_.send(exchange + 1, sums.b);
      const Accumulate* totals = team_.collect(exchange);
      const Accumulate* squares = team_.collect(exchange + 1);
      sums.a = combine_slots_by_lanes<kMaxGroups>(totals, Sum());
      sums.b = combine_slots_by_lanes<kMaxGroups>(squares, Sum());
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
                                     bool plain, int first_block) {
  const Team team(p.lanes, p.blocks_per_row, first_block);
  HeldRow<T, Team, kAccess, kBeside, kCentring, Sink>(p, team).run_scaled(plain);
}

// One row per team, read once. A block does threads / lanes rows (WarpTeam), one row (BlockTeam) or
// a part of one (ClusterTeam). Shared memory: the sums of the warps, parked rows, and the results
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
