// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The backward where rows are many: dx and dweight from one read of dy and x.
#include <type_traits>

#include "cuda/persistent_team.cuh"
#include "cuda/rms_norm_backward_feed.cuh"

namespace membound::cuda {

template <class T, class Group, Access kAccess, bool kPlain>
class PersistentGradient {
  using Accumulate = accumulate_t<T>;
  using Params = RmsNormBackwardParams<Accumulate>;
  using Tile = HeldTile<Group, kAccess>;
  using Feed =
      std::conditional_t<(Group::kRing > 0), RingFeed<T, Group>, RegisterFeed<T, Group, kAccess>>;
  static constexpr int kVecs = Group::kVecs;

 public:
  // Rows team, team + step, team + 2 step ...: all teams walk one window of memory together.
  __device__ PersistentGradient(const Params& p, const Group& team)
      : p_(p),
        team_(team),
        groups_(static_cast<int>(blockDim.x) / team.size),
        step_(static_cast<std::int64_t>(p.partial_rows) * groups_),
        feed_(p, team, step_),
        weight_(p) {
    const Tile tile = tile_of(0);
#pragma unroll
    for (int v = 0; v < kVecs; ++v) weights_[v] = weight_.template load<true>(tile.index(v));
  }

  __device__ void run() {
    std::int64_t base = static_cast<std::int64_t>(team_.team()) * groups_;
    feed_.start(base + team_.group);
    Accumulate next_rstd = rstd_of(base + team_.group);
#pragma unroll(kPlain&& Group::kRing == 0 ? 2 : 1)
    for (std::int64_t round = 0; base < p_.rows; base += step_, ++round) {
      const std::int64_t row = base + team_.group;
      const Accumulate rstd = next_rstd;
      feed_.receive(row);
      next_rstd = rstd_of(row + step_);
      one_row(row, rstd, round);
      feed_.release(row);
    }
    launch_dependents();
    store_partials();
  }

 private:
  __device__ Tile tile_of(std::int64_t row) const { return Tile(team_, row, p_.rows); }

  __device__ Accumulate rstd_of(std::int64_t row) const {
    const Tile tile = tile_of(row);
    return tile.active() ? GradientRow<T, kAccess>(p_, tile.row()).rstd() : Accumulate(0);
  }

  __device__ Numbers<T> g(int v, int index) const {
    return times<T, kPlain>(unpack<T>(feed_.dy(v)), weight_, weights_[v], index);
  }
  __device__ Numbers<T> h(int v, Accumulate rstd) const { return normal<T>(feed_.x(v), rstd); }

  __device__ void one_row(std::int64_t row, Accumulate rstd, std::int64_t round) {
    const Tile tile = tile_of(row);
    const GradientRow<T, kAccess> arrays(p_, tile.row());
    uint4 dsum[kVecs];
#pragma unroll
    for (int v = 0; v < kVecs; ++v) {
      if constexpr (!kPlain) dsum[v] = arrays.load_dsum(tile.index(v));
    }
    Accumulate part = 0;
#pragma unroll
    for (int v = 0; v < kVecs; ++v) part += dot<T>(g(v, tile.index(v)), h(v, rstd));
    const Accumulate mean = team_.sum(part, static_cast<int>(round % 2), round) * p_.inverse_cols;
    feed_.forget();
    if (kPlain || p_.dx != nullptr) {
      tile.template put<kVecs, !Group::kOneRow>(arrays.dx(), [&](int v) {
        add_to_sums(v, rstd);
        return arrays.template gradient<kPlain>(g(v, tile.index(v)), h(v, rstd), rstd, mean,
                                                dsum[v]);
      });
      tile.flush(arrays.dx());
    } else {
#pragma unroll
      for (int v = 0; v < kVecs; ++v) add_to_sums(v, rstd);
    }
  }

  __device__ void add_to_sums(int v, Accumulate rstd) {
    add_weight_gradient<T>(sums_[v], unpack<T>(feed_.dy(v)), h(v, rstd),
                           !kPlain && p_.round_before_weight);
  }

  // One row of partial sums for the block, its groups added up in order. Through shared memory, so
  // that neighbours write neighbours: strided stores of 4 bytes took 8 us of 2048 x 4096.
  __device__ void store_partials() {
    __shared__ Accumulate folded[kPersistentThreads * kPack<T>];
    const int thread = static_cast<int>(threadIdx.x);
    const int threads = static_cast<int>(blockDim.x);
    int unit = team_.group;
    int units = groups_;
    bool first_of_warp = true;
    if constexpr (!Group::kOneRow) {  // the groups of a warp first
      fold_warp();
      unit = thread / kWarpLanes;
      units = threads / kWarpLanes;
      first_of_warp = thread % kWarpLanes < team_.size;
    }
    const int width = team_.size * kPack<T>;
    Accumulate* to = p_.partials + team_.team() * p_.cols;
#pragma unroll
    for (int v = 0; v < kVecs; ++v) {
      const std::int64_t first =
          static_cast<std::int64_t>(team_.rank * kVecs + v) * team_.size * kPack<T>;
      if (v > 0) __syncthreads();
      if (first_of_warp) {
#pragma unroll
        for (int i = 0; i < kPack<T>; ++i) {
          folded[unit * width + team_.lane * kPack<T> + i] = sums_[v].at[i];
        }
      }
      __syncthreads();
      for (int col = thread; col < width && first + col < p_.cols; col += threads) {
        Accumulate sum = 0;
#pragma unroll 4
        for (int i = 0; i < units; ++i) sum += folded[i * width + col];
        to[first + col] = sum;
      }
    }
  }

  __device__ void fold_warp() {
    for (int offset = team_.size; offset < kWarpLanes; offset *= 2) {
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        sums_[0].at[i] += __shfl_xor_sync(0xffffffffu, sums_[0].at[i], offset);
      }
    }
  }

  const Params& p_;
  const Group& team_;
  int groups_;
  std::int64_t step_;
  Feed feed_;
  WeightReader<T, kAccess, Params> weight_;
  uint4 weights_[kVecs];
  Numbers<T> sums_[kVecs] = {};
};

// kPlain: without the options, which cost registers and a third of the instructions.
//
// A block, or a cluster, works on every partial_rows-th row (or set of rows, one for each of its
// groups), the next on its way meanwhile, and leaves one row of partial sums of dweight. Shared
// memory: rows to come, the sums of the warps, results of shifted rows, at the end the sums of the
// groups. Limited by memory; one barrier for each row.
template <class T, class Group, Access kAccess, bool kPlain>
__global__ void __launch_bounds__(Group::kMaxThreads, kPlain ? Group::kMinBlocks : 1)
    rms_norm_backward_persistent_kernel(
        const __grid_constant__ RmsNormBackwardParams<accumulate_t<T>> p) {
  if constexpr (runs_here<Group>()) {
    const Group team(p.lanes, p.blocks_per_row);
    team.start();
    wait_for_launch_before();
    PersistentGradient<T, Group, kAccess, kPlain>(p, team).run();
  }
}

}  // namespace membound::cuda
