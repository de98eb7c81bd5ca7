// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The backward in two roles: blocks of rows write dx, blocks of columns write dweight. One launch
// for both where rows are few: each array is read twice, the second time from L2, and no partial
// sums are left over. Alone, the first role serves when dweight is not wanted.
#include "cuda/rms_norm_backward_row.cuh"
#include "cuda/row_tile.cuh"
#include "cuda/tuning/rms_norm_backward.hpp"
#include "cuda/weight_gradient.cuh"

namespace membound::cuda {

// dx of one row, held by a team from its only read to its only write.
template <class T, class Team, Access kAccess>
class HeldGradient {
  using Accumulate = accumulate_t<T>;
  using Params = RmsNormBackwardParams<Accumulate>;
  using Tile = HeldTile<Team, kAccess>;
  static constexpr int kChunks = Tile::kChunks;

 public:
  __device__ HeldGradient(const Params& p, const Team& team)
      : p_(p), team_(team), tile_(team, team.row, p.rows), row_(p, tile_.row()), weight_(p) {}

  __device__ void run() {
    const auto index = [&](int i) { return tile_.index(i); };
    uint4 dy[kChunks];
    uint4 x[kChunks];
    uint4 weights[kChunks];
    uint4 dsum[kChunks];
    typename GradientRow<T, kAccess>::template Raw<kChunks> raw;
    row_.fetch(raw, index);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      weights[i] = weight_.template load<true>(index(i));
      dsum[i] = row_.load_dsum(index(i));
    }
    const Accumulate rstd = row_.rstd();
    team_.start();
    row_.template chunks<Team::kUniformShift>(raw, dy, x, index);
    const auto g = [&](int i) { return times<T>(unpack<T>(dy[i]), weight_, weights[i], index(i)); };
    const Accumulate sum = tile_.template reduce<Accumulate>(
        0, [&](int i) { return dot<T>(g(i), normal<T>(x[i], rstd)); }, Sum());
    const Accumulate mean = sum * p_.inverse_cols;
    forget_numbers(dy);
    forget_numbers(x);
    tile_.put(row_.dx(), [&](int i) {
      return row_.gradient(g(i), normal<T>(x[i], rstd), rstd, mean, dsum[i]);
    });
    tile_.flush(row_.dx());
  }

 private:
  const Params& p_;
  const Team& team_;
  Tile tile_;
  GradientRow<T, kAccess> row_;
  WeightReader<T, kAccess, Params> weight_;
};

// dweight of kSegment chunks of columns over all rows: lanes beside each other take the chunks, and
// the rest of the block rows in turn. Each adds up its rows, then lanes, then warps: an order that
// the size of the block fixes.
template <class T, Access kAccess>
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
    using Row = GradientRow<T, kAccess>;
    Numbers<T> sums{};
    const auto index = [&](int) { return index_; };
    const int step = static_cast<int>(blockDim.x) / kSegment;
    const int first = static_cast<int>(threadIdx.x) / kSegment;
    for (std::int64_t row = first; row < p_.rows; row += kUnroll * step) {
      typename Row::template Raw<1> raw[kUnroll];
      Accumulate rstd[kUnroll];
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        const std::int64_t at = row + i * step;
        if (at >= p_.rows) break;
        const Row arrays(p_, at);
        arrays.fetch(raw[i], index);
        rstd[i] = arrays.rstd();
      }
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        const std::int64_t at = row + i * step;
        if (at >= p_.rows) break;
        uint4 dy[1];
        uint4 x[1];
        Row(p_, at).template chunks<false>(raw[i], dy, x, index);
        add_weight_gradient<T>(sums, unpack<T>(dy[0]), normal<T>(x[0], rstd[i]),
                               p_.round_before_weight);
      }
    }
    store(sums);
  }

 private:
  __device__ void store(Numbers<T>& sums) const {
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
    store_weight_gradient(p_.dweight, p_.dweight_dtype, col * p_.dweight_stride,
                          reduce_array<kMaxWarps>(all, Sum()), p_.accumulate);
  }

  const Params& p_;
  int index_;
};

// The first column_blocks blocks of the grid work on columns, the others on rows as in
// rms_norm_row_kernel. Limited by latency where both roles are there, else by memory.
template <class T, class Team, Access kAccess>
__global__ void __launch_bounds__(Team::kMaxThreads) rms_norm_backward_roles_kernel(
    const __grid_constant__ RmsNormBackwardParams<accumulate_t<T>> p) {
  if constexpr (runs_here<Team>()) {
    begin_overlapped();
    if (static_cast<int>(blockIdx.x) < p.column_blocks) {
      return ColumnGradient<T, kAccess>(p).run();
    }
    const Team team(p.lanes, p.blocks_per_row, p.column_blocks);
    HeldGradient<T, Team, kAccess>(p, team).run();
  }
}

// dx of rows too wide to hold: read once for their sum and again for their result. One row per
// cluster (or block), after the blocks of columns. Limited by memory.
template <class T, int kVecs, int kMaxWarps, Access kAccess>
__global__ void __launch_bounds__(kMaxWarps* kWarpLanes) rms_norm_backward_streamed_kernel(
    const __grid_constant__ RmsNormBackwardParams<accumulate_t<T>> p) {
  using Accumulate = accumulate_t<T>;
  using Tile = StreamedTile<Accumulate, kVecs, kMaxWarps, kAccess>;
  begin_overlapped();
  if (static_cast<int>(blockIdx.x) < p.column_blocks) {
    return ColumnGradient<T, kAccess>(p).run();
  }
  __shared__ typename Tile::Shared shared;
  const Tile tile(shared, p.blocks_per_row, p.groups, p.segments_per_group);
  tile.start();
  const GradientRow<T, kAccess> row(p, cluster_index() - p.column_blocks / p.blocks_per_row);
  const WeightReader<T, kAccess, RmsNormBackwardParams<Accumulate>> weight(p);
  const Accumulate rstd = row.rstd();
  const auto g = [&](int at) {
    return times<T>(unpack<T>(row.load_dy(at)), weight, weight.template load<true>(at), at);
  };
  const Accumulate sum =
      tile.reduce(0, [&](int at) { return dot<T>(g(at), normal<T>(row.load_x(at), rstd)); }, Sum());
  const Accumulate mean = sum * p.inverse_cols;
  tile.each_segment([&](int group, int segment) {
    tile.write(row.dx(), group, segment, [&](int, int at) {
      return row.gradient(g(at), normal<T>(row.load_x(at), rstd), rstd, mean, row.load_dsum(at));
    });
  });
}

}  // namespace membound::cuda
