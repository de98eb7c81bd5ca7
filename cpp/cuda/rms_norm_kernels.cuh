// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/rms_norm_row.cuh"
#include "cuda/row_tile.cuh"

namespace membound::cuda {

template <class T, class Team, Access kAccess, bool kAdd, Centring kCentring>
__device__ __noinline__ void rescale(const RmsNormParams<accumulate_t<T>>& p, bool plain);

// The arrays of one row: x and, with kAdd, the residual are read; out and residual_out written.
template <class T, Access kAccess, bool kAdd>
class NormRow {
  using Params = RmsNormParams<accumulate_t<T>>;
  using Reader = RowReader<T, kAccess>;
  using Writer = RowWriter<T, kAccess>;

 public:
  __device__ NormRow(const Params& p, std::int64_t row)
      : p_(p),
        row_(row),
        x_(at<const T>(p.x, p.x_row_stride, p.x_array), p.x_array, p.chunks, p.cols),
        residual_(kAdd ? Reader(at<const T>(p.residual, p.residual_row_stride, p.residual_array),
                                p.residual_array, p.chunks, p.cols)
                       : x_) {}

  // The kCount chunks index(0), index(1) ... of x, and with kAdd as many of the residual.
  template <int kCount>
  struct Raw {
    RawChunk<kAccess> x[kCount];
    RawChunk<kAccess> residual[kAdd ? kCount : 1];
  };
  template <int kCount, class Index>
  __device__ void fetch(Raw<kCount>& raw, Index index) const {
    x_.fetch(raw.x, index);
    if constexpr (kAdd) residual_.fetch(raw.residual, index);
  }
  template <bool kUniform, int kCount, class Index>
  __device__ void chunks(const Raw<kCount>& raw, SourceChunk<T, kAdd> (&chunks)[kCount],
                         Index index) const {
    uint4 parts[kCount];
    x_.template chunks<kUniform>(raw.x, parts, index);
#pragma unroll
    for (int i = 0; i < kCount; ++i) chunks[i].parts[0] = parts[i];
    if constexpr (kAdd) {
      residual_.template chunks<kUniform>(raw.residual, parts, index);
#pragma unroll
      for (int i = 0; i < kCount; ++i) chunks[i].parts[1] = parts[i];
    }
  }
  __device__ Numbers<T> load(int index) const {
    SourceChunk<T, kAdd> chunk;
    chunk.parts[0] = x_.load(index);
    if constexpr (kAdd) chunk.parts[1] = residual_.load(index);
    return chunk.numbers();
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
  Reader residual_;
};

// The row of one team, from its only read to its only write.
template <class T, class Team, Access kAccess, bool kAdd, Centring kCentring>
class HeldRow {
  using Accumulate = accumulate_t<T>;
  using Params = RmsNormParams<Accumulate>;
  using Scale = RowScale<Accumulate>;
  using Tile = HeldTile<Team, kAccess>;
  using Rounds = RoundsOf<kCentring>;
  static constexpr int kChunks = Tile::kChunks;

 public:
  __device__ HeldRow(const Params& p, const Team& team)
      : p_(p), team_(team), tile_(team, team.row, p.rows), row_(p, tile_.row()), columns_(p) {}

  __device__ void run() {
    const auto index = [&](int i) { return tile_.index(i); };
    typename NormRow<T, kAccess, kAdd>::template Raw<kChunks> raw;
    row_.fetch(raw, index);
    // Early weights hide their latency behind the reduction (H200, 1024 x 4096: 6.06 to 5.60 us; 1
    // x 4096: 2.16 to 1.51; 4096 x 32768: 148 to 138); with eight chunks they would cost occupancy.
    constexpr bool kEarlyWeights = kChunks <= 4;
    uint4 weights[kChunks];
    if constexpr (kEarlyWeights) {
#pragma unroll
      for (int i = 0; i < kChunks; ++i) weights[i] = columns_.load(index(i));
      asm volatile("" ::: "memory");  // else the compiler sinks the loads below the reduction
    }
    team_.start();
    SourceChunk<T, kAdd> chunks[kChunks];
    row_.template chunks<Team::kUniformShift>(raw, chunks, index);
    const auto numbers = [&](int i) { return chunks[i].numbers(); };
    const auto forget = [&] {
#pragma unroll
      for (int i = 0; i < kChunks; ++i) forget_numbers(chunks[i].parts);
    };
    Scale scale;
    const Accumulate squares = squares_of<kChunks>(scale, 0, 0, numbers, [&] {
      if (kChunks > 2) forget();
    });
    if (team_.any(!is_trusted(p_, squares))) [[unlikely]]
      return rescale<T, Team, kAccess, kAdd, kCentring>(p_, is_trusted(p_, squares));

    scale.rstd = plain_rstd(p_, squares);
    if (tile_.first_thread()) row_.template store_statistics<kCentring>(scale);
    forget();
    const auto put = [&]<bool kPlain>() {
      tile_.put(row_.out(), [&](int i) {
        if constexpr (!kEarlyWeights) weights[i] = columns_.load(index(i));
        return columns_.template normalised<kPlain>(numbers(i), scale, weights[i], index(i));
      });
    };
    if (kAccess != Access::kAny && p_.plain) {
      put.template operator()<true>();
    } else {
      put.template operator()<false>();
    }
    tile_.flush(row_.out());
    if constexpr (kAdd) {
      tile_.template put<kChunks, true>(row_.residual_out(),
                                        [&](int i) { return pack<T>(numbers(i)); });
      tile_.flush(row_.residual_out());
    }
  }

  // The redo of a row whose plain sums left the trusted range. It reads the row again, so that the
  // everyday path keeps its registers. Rows of the same warp come along with `plain`.
  __device__ void run_scaled(bool plain) {
    const auto numbers = [&](int i) { return row_.load(tile_.index(i)); };
    const Accumulate largest = tile_.template reduce<Accumulate, 1>(
        0, Rounds::kScaledLargest, [&](int i) { return largest_magnitude<T>(numbers(i)); },
        Largest());
    const int exponent = plain ? 0 : row_exponent(p_, largest);
    Scale scale{.scale = power_of_two(exponent, Accumulate())};
    const Accumulate squares = squares_of<1>(scale, 1, Rounds::kScaledMoments, numbers, [] {});
    settle<Accumulate, kCentring>(p_, scale, squares, exponent);
    if (tile_.first_thread()) row_.template store_statistics<kCentring>(scale);
    uint4 sums[kAdd ? kChunks : 1];  // before out may overwrite what they are made of
    if constexpr (kAdd) {
#pragma unroll 1
      for (int i = 0; i < kChunks; ++i) sums[i] = pack<T>(numbers(i));
    }
    tile_.template put<1>(row_.out(), [&](int i) {
      const int index = tile_.index(i);
      return columns_.template normalised<false>(numbers(i), scale, columns_.load(index), index);
    });
    tile_.flush(row_.out());
    if constexpr (kAdd) {
      tile_.template put<1, true>(row_.residual_out(), [&](int i) { return sums[i]; });
      tile_.flush(row_.residual_out());
    }
  }

 private:
  // The sum of squares of the scaled row, whose i-th chunk is numbers(i); sets its mean first.
  // between: after a sum that another follows.
  template <int kUnroll, class OfChunk, class Between>
  __device__ Accumulate squares_of(Scale& scale, int round, int exchange, OfChunk numbers,
                                   Between between) const {
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
      between();
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
  NormRow<T, kAccess, kAdd> row_;
  Columns<T, kAccess, kCentring> columns_;
};

// Out of line, so that the everyday path stays short and keeps its registers.
template <class T, class Team, Access kAccess, bool kAdd, Centring kCentring>
__device__ __noinline__ void rescale(const RmsNormParams<accumulate_t<T>>& p, bool plain) {
  const Team team(p.lanes, p.blocks_per_row, 0);
  HeldRow<T, Team, kAccess, kAdd, kCentring>(p, team).run_scaled(plain);
}

// Blocks per SM that the registers are held to. Centred rows need a few more: two chunks of
// bfloat16 in a thread fit 48, and spill 116 bytes of 40.
template <class Team, Centring kCentring>
constexpr int min_blocks(bool aligned_alone) {
  if (!aligned_alone || Team::kMinBlocks == 0) return 0;
  return kCentring == Centring::kNever ? Team::kMinBlocks : Team::kMinBlocks - 1;
}

// One row per team, held in registers. A block does threads / lanes rows (WarpTeam), one row
// (BlockTeam) or a part of one (ClusterTeam). Shared memory: the sums of the warps, and the results
// of shifted rows. Limited by memory: few threads with several independent 16-byte loads each, many
// blocks per SM, so that some load while others store. Only aligned plain rows are held to the
// registers that this takes.
template <class T, class Team, Access kAccess, bool kAdd, Centring kCentring>
__global__ void __launch_bounds__(Team::kMaxThreads,
                                  min_blocks<Team, kCentring>(kAccess == Access::kAligned && !kAdd))
    rms_norm_row_kernel(const __grid_constant__ RmsNormParams<accumulate_t<T>> p) {
  if constexpr (runs_here<Team>()) {
    const Team team(p.lanes, p.blocks_per_row, 0);
    HeldRow<T, Team, kAccess, kAdd, kCentring> row(p, team);
    if (p.overlap_launch) begin_overlapped();
    row.run();
  }
}

// As HeldRow::squares_of, group by group: the second and third read of a group come from L2.
template <class T, Access kAccess, Centring kCentring, class Tile, class Row>
__device__ inline accumulate_t<T> streamed_squares(const RmsNormParams<accumulate_t<T>>& p,
                                                   Tile& tile, const Row& row,
                                                   RowScale<accumulate_t<T>>& scale, int exchange) {
  using Accumulate = accumulate_t<T>;
  RowScale<Accumulate> so_far = scale;
  const auto over_row = [&](int at, auto of) {
    return of_deviations<T, kAccess, kCentring>(p, row.load(at), so_far, at, of);
  };
  const auto square = [&](int at) {
    return over_row(at, [](const Numbers<T>& x) { return sum_of_squares<T>(x); });
  };
  if (!is_centred<kCentring>(p)) return tile.reduce(exchange, square, Sum());
  tile.each_group([&](int group) {
    const Accumulate count = group_count(p, group);
    const Accumulate inverse = count > 0 ? 1 / count : Accumulate(0);
    so_far = scale;
    const Accumulate sum_of_group = tile.reduce_group(
        group, [&](int at) { return sum<T>(deviations<T, kCentring>(row.load(at), so_far)); },
        Sum());
    const Accumulate squares = take_moments<T>(so_far, sum_of_group, count, inverse, [&](auto of) {
      return tile.reduce_group(group, [&](int at) { return over_row(at, of); }, Sum());
    });
    tile.send(exchange, group, so_far.mean);
    tile.send(exchange + 1, group, squares);
    if constexpr (kCorrectsMean<T>) tile.send(exchange + 2, group, so_far.correction);
  });
  const Accumulate* means = tile.collect(exchange);
  const Accumulate* parts = tile.collect(exchange + 1);
  const Accumulate* rests = kCorrectsMean<T> ? tile.collect(exchange + 2) : nullptr;
  return merge_groups<T>(p, means, parts, rests, scale);
}

// A row too wide to hold, or a GPU without clusters: one row per cluster (or block), read once for
// its sum and again for its result. Shared memory: the sums of the warps and groups, and the
// results of shifted rows. Limited by memory, the second read by L2 where the rows in flight fit
// it.
template <class T, int kVecs, int kMaxWarps, Access kAccess, bool kAdd, Centring kCentring>
__global__ void __launch_bounds__(kMaxWarps* kWarpLanes)
    rms_norm_streamed_kernel(const __grid_constant__ RmsNormParams<accumulate_t<T>> p) {
  using Accumulate = accumulate_t<T>;
  using Rounds = RoundsOf<kCentring>;
  using Tile = StreamedTile<Accumulate, kVecs, kMaxWarps, Rounds::kCount, kAccess>;
  __shared__ typename Tile::Shared shared;
  Tile tile(shared, p.blocks_per_row, p.groups, p.segments_per_group);
  tile.start();
  const NormRow<T, kAccess, kAdd> row(p, cluster_index());
  if (p.overlap_launch) begin_overlapped();

  RowScale<Accumulate> scale;
  const Accumulate plain = streamed_squares<T, kAccess, kCentring>(p, tile, row, scale, 0);
  scale.rstd = plain_rstd(p, plain);
  if (!is_trusted(p, plain)) {
    const Accumulate largest = tile.reduce(
        Rounds::kScaledLargest, [&](int at) { return largest_magnitude<T>(row.load(at)); },
        Largest());
    const int exponent = row_exponent(p, largest);
    scale = {.scale = power_of_two(exponent, Accumulate())};
    const Accumulate squares =
        streamed_squares<T, kAccess, kCentring>(p, tile, row, scale, Rounds::kScaledMoments);
    settle<Accumulate, kCentring>(p, scale, squares, exponent);
  }
  if (tile.first_thread()) row.template store_statistics<kCentring>(scale);
  const Columns<T, kAccess, kCentring> columns(p);
  tile.each_segment([&](int group, int segment) {
    Numbers<T> sums[kAdd ? kVecs : 1];
    tile.write(row.out(), group, segment, [&](int v, int at) {
      const Numbers<T> numbers = row.load(at);
      if constexpr (kAdd) sums[v] = numbers;
      return columns.template normalised<false>(numbers, scale, columns.load(at), at);
    });
    if constexpr (kAdd) {
      tile.write(row.residual_out(), group, segment, [&](int v, int) { return pack<T>(sums[v]); });
    }
  });
}

}  // namespace membound::cuda
