// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/rms_norm_row.cuh"
#include "cuda/row_tile.cuh"
#include "cuda/weight.cuh"

namespace membound::cuda {

template <class T, class Team, Access kAccess, bool kAdd>
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
  __device__ void store_rstd(const RowScale<accumulate_t<T>>& scale) const {
    if (p_.rstd == nullptr) return;
    p_.rstd[row_offset<kAccess>(p_.one_stride, p_.rstd_row_stride, p_.rstd_array.rows, row_)] =
        scale.rstd * scale.scale;
  }

 private:
  template <class U, class Data>
  __device__ U* at(Data* data, std::int64_t stride, const RowArray& array) const {
    return static_cast<U*>(data) + row_offset<kAccess>(p_.one_stride, stride, array.rows, row_);
  }

  const Params& p_;
  std::int64_t row_;
  Reader x_;
  Reader residual_;
};

// The row of one team, from its only read to its only write.
template <class T, class Team, Access kAccess, bool kAdd>
class HeldRow {
  using Accumulate = accumulate_t<T>;
  using Params = RmsNormParams<Accumulate>;
  using Tile = HeldTile<Team, kAccess>;
  static constexpr int kChunks = Tile::kChunks;

 public:
  __device__ HeldRow(const Params& p, const Team& team)
      : p_(p), team_(team), tile_(team, team.row, p.rows), row_(p, tile_.row()), weight_(p) {}

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
      for (int i = 0; i < kChunks; ++i) weights[i] = weight_.load(index(i));
      asm volatile("" ::: "memory");  // else the compiler sinks the loads below the reduction
    }
    team_.start();
    SourceChunk<T, kAdd> chunks[kChunks];
    row_.template chunks<Team::kUniformShift>(raw, chunks, index);
    const Accumulate sum = tile_.template reduce<Accumulate>(
        0, [&](int i) { return sum_of_squares<T>(chunks[i].numbers(), Accumulate(1)); }, Sum());
    if (team_.any(!is_trusted(p_, sum))) [[unlikely]]
      return rescale<T, Team, kAccess, kAdd>(p_, is_trusted(p_, sum));

    const RowScale<Accumulate> scale{Accumulate(1), plain_rstd(p_, sum)};
    if (tile_.first_thread()) row_.store_rstd(scale);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) forget_numbers(chunks[i].parts);
    const auto put = [&]<bool kPlain>() {
      tile_.put(row_.out(), [&](int i) {
        if constexpr (!kEarlyWeights) weights[i] = weight_.load(index(i));
        return normalised<T, kPlain>(p_, chunks[i].numbers(), scale, weight_, weights[i], index(i));
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
                                        [&](int i) { return pack<T>(chunks[i].numbers()); });
      tile_.flush(row_.residual_out());
    }
  }

  // The redo of a row whose plain sum left the trusted range. It reads the row again, so that the
  // everyday path keeps its registers. Rows of the same warp come along with `plain`.
  __device__ void run_scaled(bool plain) {
    const auto numbers = [&](int i) { return row_.load(tile_.index(i)); };
    const Accumulate largest = tile_.template reduce<Accumulate, 1>(
        1, [&](int i) { return largest_magnitude<T>(numbers(i)); }, Largest());
    const int exponent = plain ? 0 : row_exponent(p_, largest);
    const Accumulate factor = power_of_two(exponent, Accumulate());
    const RowScale<Accumulate> scale =
        scaled_row(p_,
                   tile_.template reduce<Accumulate, 1>(
                       2, [&](int i) { return sum_of_squares<T>(numbers(i), factor); }, Sum()),
                   exponent);
    if (tile_.first_thread()) row_.store_rstd(scale);
    uint4 sums[kAdd ? kChunks : 1];  // before out may overwrite what they are made of
    if constexpr (kAdd) {
#pragma unroll 1
      for (int i = 0; i < kChunks; ++i) sums[i] = pack<T>(numbers(i));
    }
    tile_.template put<1>(row_.out(), [&](int i) {
      const int index = tile_.index(i);
      return normalised<T, false>(p_, numbers(i), scale, weight_, weight_.load(index), index);
    });
    tile_.flush(row_.out());
    if constexpr (kAdd) {
      tile_.template put<1, true>(row_.residual_out(), [&](int i) { return sums[i]; });
      tile_.flush(row_.residual_out());
    }
  }

 private:
  const Params& p_;
  const Team& team_;
  Tile tile_;
  NormRow<T, kAccess, kAdd> row_;
  WeightReader<T, kAccess, Params> weight_;
};

// Out of line, so that the everyday path stays short and keeps its registers.
template <class T, class Team, Access kAccess, bool kAdd>
__device__ __noinline__ void rescale(const RmsNormParams<accumulate_t<T>>& p, bool plain) {
  const Team team(p.lanes, p.blocks_per_row, 0);
  HeldRow<T, Team, kAccess, kAdd>(p, team).run_scaled(plain);
}

// One row per team, held in registers. A block does threads / lanes rows (WarpTeam), one row
// (BlockTeam) or a part of one (ClusterTeam). Shared memory: the sums of the warps, and the results
// of shifted rows. Limited by memory: few threads with several independent 16-byte loads each, many
// blocks per SM, so that some load while others store. Only aligned plain rows are held to the
// registers that this takes.
template <class T, class Team, Access kAccess, bool kAdd>
__global__ void __launch_bounds__(Team::kMaxThreads,
                                  kAccess == Access::kAligned && !kAdd ? Team::kMinBlocks : 0)
    rms_norm_row_kernel(const __grid_constant__ RmsNormParams<accumulate_t<T>> p) {
  if constexpr (runs_here<Team>()) {
    const Team team(p.lanes, p.blocks_per_row, 0);
    HeldRow<T, Team, kAccess, kAdd> row(p, team);
    if (p.overlap_launch) begin_overlapped();
    row.run();
  }
}

// A row too wide to hold, or a GPU without clusters: one row per cluster (or block), read once for
// its sum and again for its result. Shared memory: the sums of the warps and groups, and the
// results of shifted rows. Limited by memory, the second read by L2 where the rows in flight fit
// it.
template <class T, int kVecs, int kMaxWarps, Access kAccess, bool kAdd>
__global__ void __launch_bounds__(kMaxWarps* kWarpLanes)
    rms_norm_streamed_kernel(const __grid_constant__ RmsNormParams<accumulate_t<T>> p) {
  using Accumulate = accumulate_t<T>;
  using Tile = StreamedTile<Accumulate, kVecs, kMaxWarps, kAccess>;
  __shared__ typename Tile::Shared shared;
  const Tile tile(shared, p.blocks_per_row, p.groups, p.segments_per_group);
  tile.start();
  const NormRow<T, kAccess, kAdd> row(p, cluster_index());
  if (p.overlap_launch) begin_overlapped();
  const auto sum_scaled = [&](int round, Accumulate factor) {
    return tile.reduce(
        round, [&](int at) { return sum_of_squares<T>(row.load(at), factor); }, Sum());
  };
  const Accumulate sum = sum_scaled(0, Accumulate(1));
  RowScale<Accumulate> scale{Accumulate(1), plain_rstd(p, sum)};
  if (!is_trusted(p, sum)) {
    const Accumulate largest =
        tile.reduce(1, [&](int at) { return largest_magnitude<T>(row.load(at)); }, Largest());
    const int exponent = row_exponent(p, largest);
    scale = scaled_row(p, sum_scaled(2, power_of_two(exponent, Accumulate())), exponent);
  }
  if (tile.first_thread()) row.store_rstd(scale);
  const WeightReader<T, kAccess, RmsNormParams<Accumulate>> weight(p);
  tile.each_segment([&](int group, int segment) {
    Numbers<T> sums[kAdd ? kVecs : 1];
    tile.write(row.out(), group, segment, [&](int v, int at) {
      const Numbers<T> numbers = row.load(at);
      if constexpr (kAdd) sums[v] = numbers;
      return normalised<T, false>(p, numbers, scale, weight, weight.load(at), at);
    });
    if constexpr (kAdd) {
      tile.write(row.residual_out(), group, segment, [&](int v, int) { return pack<T>(sums[v]); });
    }
  });
}

}  // namespace membound::cuda
