// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The backward in two roles: blocks of rows write dx, blocks of columns write dweight. One launch
// for both where rows are few: each array is read twice, the second time from L2, and no partial
// sums are left over. Alone, the first role serves when dweight is not wanted.
#include "cuda/column_gradient.cuh"
#include "cuda/rms_norm_backward_row.cuh"
#include "cuda/row_tile.cuh"
#include "cuda/tuning/rms_norm_backward.hpp"

namespace membound::cuda {

// dx of one row, held by a team from its only read to its only write.
template <class T, class Team, Access kAccess, Centring kCentring>
class HeldGradient {
  using Accumulate = accumulate_t<T>;
  using Params = RmsNormBackwardParams<Accumulate>;
  using Tile = HeldTile<Team, kAccess>;
  using Row = GradientRow<T, kAccess, Team::kSplitRows>;
  static constexpr int kChunks = Tile::kChunks;

 public:
  __device__ HeldGradient(const Params& p, const Team& team)
      : p_(p),
        team_(team),
        tile_(team, team.row, p.rows),
        row_(p, tile_.row()),
        weight_(p.weight, p.chunks, p.cols) {}

  __device__ void run() {
    const auto index = [&](int i) { return tile_.index(i); };
    uint4 dy[kChunks];
    uint4 x[kChunks];
    uint4 weights[kChunks];
    uint4 dsum[kChunks];
    typename Row::template Raw<kChunks> raw;
    row_.fetch(raw, index);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      weights[i] = weight_.template load<true>(index(i));
      dsum[i] = row_.load_dsum(index(i));
    }
    const RowStatistics<Accumulate> row = row_.template statistics<kCentring>();
    team_.start();
    row_.template chunks<Team::kUniformShift>(raw, dy, x, index);
    const auto g = [&](int i) { return times<T>(unpack<T>(dy[i]), weight_, weights[i], index(i)); };
    const auto h = [&](int i) { return normal<T, kCentring>(x[i], row); };
    const RowMeans<Accumulate> mean = means<kCentring>(
        p_, tile_.template reduce<RowSum<T, kCentring>>(
                0, 0, [&](int i) { return row_sum<T, kCentring>(g(i), h(i)); }, Sum()));
    forget_numbers(dy);
    forget_numbers(x);
    tile_.put(row_.dx(), [&](int i) {
      return row_.template gradient<kCentring>(g(i), h(i), row.rstd, mean, dsum[i],
                                               p_.dsum != nullptr);
    });
    tile_.flush(row_.dx());
  }

 private:
  const Params& p_;
  const Team& team_;
  Tile tile_;
  Row row_;
  ColumnReader<T, kAccess> weight_;
};

// dweight and dbias of kSegment chunks of columns over all rows: lanes beside each other take the
// chunks, and the rest of the block rows in turn. Each adds up its rows, then lanes, then warps: an
// order that the size of the block fixes.
template <class T, Access kAccess, Centring kCentring, bool kSplit>
class ColumnGradient {
  using Accumulate = accumulate_t<T>;
  using Params = RmsNormBackwardParams<Accumulate>;
  static constexpr int kSegment = tuning::kColumnSegment;
  static constexpr int kMaxWarps = 16;
  static constexpr int kUnroll = 4;  // rows of a thread that are on their way at once

 public:
  __device__ explicit ColumnGradient(const Params& p)
      : p_(p),
        index_(static_cast<int>(blockIdx.x) * kSegment + static_cast<int>(threadIdx.x) % kSegment) {
  }

  __device__ void run() const {
    using Row = GradientRow<T, kAccess, kSplit>;
    Numbers<T> sums{};
    Numbers<T> bias_sums{};
    const auto index = [&](int) { return index_; };
    const int step = static_cast<int>(blockDim.x) / kSegment;
    const int first = static_cast<int>(threadIdx.x) / kSegment;
    for (std::int64_t row = first; row < p_.rows; row += kUnroll * step) {
      typename Row::template Raw<1> raw[kUnroll];
      RowStatistics<Accumulate> statistics[kUnroll];
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        const std::int64_t at = row + i * step;
        if (at >= p_.rows) break;
        const Row arrays(p_, at);
        arrays.fetch(raw[i], index);
        statistics[i] = arrays.template statistics<kCentring>();
      }
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        const std::int64_t at = row + i * step;
        if (at >= p_.rows) break;
        uint4 dy[1];
        uint4 x[1];
        Row(p_, at).template chunks<false>(raw[i], dy, x, index);
        add_weight_gradient<T>(sums, unpack<T>(dy[0]), normal<T, kCentring>(x[0], statistics[i]),
                               p_.round_before_weight);
        if constexpr (kCentring != Centring::kNever) {
          add_bias_gradient<T>(bias_sums, unpack<T>(dy[0]));
        }
      }
    }
    if (p_.dweight.data != nullptr) store(sums, p_.dweight);
    if (kCentring != Centring::kNever && p_.dbias.data != nullptr) {
      __syncthreads();  // the sums of the weight have been read
      store(bias_sums, p_.dbias);
    }
  }

 private:
  __device__ void store(Numbers<T>& sums, const ColumnSums<Accumulate>& to) const {
    __shared__ Accumulate of_warps[kMaxWarps][kSegment * kPack<T>];
    const int thread = static_cast<int>(threadIdx.x);
    const int lane = thread % kWarpLanes;
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
#pragma unroll
      for (int offset = kWarpLanes / 2; offset >= kSegment; offset /= 2) {
        sums.at[i] += __shfl_xor_sync(0xffffffffu, sums.at[i], offset);
      }
      if (lane < kSegment) of_warps[thread / kWarpLanes][lane * kPack<T> + i] = sums.at[i];
    }
    __syncthreads();
    const std::int64_t col = static_cast<std::int64_t>(blockIdx.x) * kSegment * kPack<T> + thread;
    if (thread >= kSegment * kPack<T> || col >= p_.cols) return;
    Accumulate all[kMaxWarps];
#pragma unroll
    for (int warp = 0; warp < kMaxWarps; ++warp) {
      all[warp] = warp * kWarpLanes < static_cast<int>(blockDim.x) ? of_warps[warp][thread] : 0;
    }
    store_gradient(to, col, reduce_array<kMaxWarps>(all, Sum()), p_.accumulate);
  }

  const Params& p_;
  int index_;
};

// The first column_blocks blocks of the grid work on columns, the others on rows as in
// rms_norm_row_kernel. Limited by latency where both roles are there, else by memory.
template <class T, class Team, Access kAccess, Centring kCentring>
__global__ void __launch_bounds__(Team::kMaxThreads) rms_norm_backward_roles_kernel(
    const __grid_constant__ RmsNormBackwardParams<accumulate_t<T>> p) {
  if constexpr (runs_here<Team>()) {
    begin_overlapped();
    if (static_cast<int>(blockIdx.x) < p.column_blocks) {
      return ColumnGradient<T, kAccess, kCentring, Team::kSplitRows>(p).run();
    }
    const Team team(p.lanes, p.blocks_per_row, p.column_blocks);
    HeldGradient<T, Team, kAccess, kCentring>(p, team).run();
  }
}

// dx of rows too wide to hold: read once for their sum and again for their result. One row per
// cluster (or block), after the blocks of columns. Limited by memory.
template <class T, int kVecs, int kMaxWarps, Access kAccess, Centring kCentring>
__global__ void __launch_bounds__(kMaxWarps* kWarpLanes) rms_norm_backward_streamed_kernel(
    const __grid_constant__ RmsNormBackwardParams<accumulate_t<T>> p) {
  using Tile = StreamedTile<RowSum<T, kCentring>, kVecs, kMaxWarps, 1, kAccess>;
  begin_overlapped();
  if (static_cast<int>(blockIdx.x) < p.column_blocks) {
    return ColumnGradient<T, kAccess, kCentring, false>(p).run();
  }
  __shared__ typename Tile::Shared shared;
  Tile tile(shared, p.blocks_per_row, p.groups, p.segments_per_group);
  tile.start();
  const GradientRow<T, kAccess, false> row(p, cluster_index() - p.column_blocks / p.blocks_per_row);
  const ColumnReader<T, kAccess> weight(p.weight, p.chunks, p.cols);
  const auto statistics = row.template statistics<kCentring>();
  const auto g = [&](int at) {
    return times<T>(unpack<T>(row.load_dy(at)), weight, weight.template load<true>(at), at);
  };
  const auto h = [&](int at) { return normal<T, kCentring>(row.load_x(at), statistics); };
  const auto mean = means<kCentring>(
      p, tile.reduce(0, [&](int at) { return row_sum<T, kCentring>(g(at), h(at)); }, Sum()));
  tile.each_segment([&](int group, int segment) {
    tile.write(row.dx(), group, segment, [&](int, int at) {
      return row.template gradient<kCentring>(g(at), h(at), statistics.rstd, mean,
                                              row.load_dsum(at), p.dsum != nullptr);
    });
  });
}

}  // namespace membound::cuda
