// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The backward where rows are many: dx and dweight from one read of dy and x.
#include <type_traits>

#include "cuda/persistent_team.cuh"
#include "cuda/rms_norm_backward_feed.cuh"

namespace membound::cuda {

// The options cost registers and a third of the instructions: aligned rows have kernels without
// them, and without but for dsum.
enum class Form { kPlain, kPlainAdd, kGeneral };

template <class T, class Group, Access kAccess, Form kForm, Centring kCentring>
class PersistentGradient {
  using Accumulate = accumulate_t<T>;
  using Params = RmsNormBackwardParams<Accumulate>;
  using Tile = HeldTile<Group, kAccess>;
  using Row = GradientRow<T, kAccess, Group::kSplitRows>;
  using Feed =
      std::conditional_t<(Group::kRing > 0), RingFeed<T, Group>, RegisterFeed<T, Group, kAccess>>;
  static constexpr int kVecs = Group::kVecs;
  static constexpr bool kPlain = kForm != Form::kGeneral;
  using Sums = Numbers<T>[kVecs];
  using Statistics = RowStatistics<Accumulate>;

 public:
  // Rows team, team + step, team + 2 step ...: all teams walk one window of memory together.
  __device__ PersistentGradient(const Params& p, const Group& team)
      : p_(p),
        team_(team),
        groups_(static_cast<int>(blockDim.x) / team.size),
        step_(static_cast<std::int64_t>(p.partial_rows) * groups_),
        feed_(p, team, step_),
        weight_(p.weight, p.chunks, p.cols) {
    const Tile tile = tile_of(0);
#pragma unroll
    for (int v = 0; v < kVecs; ++v) weights_[v] = weight_.template load<true>(tile.index(v));
  }

  __device__ void run() {
    std::int64_t base = static_cast<std::int64_t>(team_.team()) * groups_;
    feed_.start(base + team_.group);
    Statistics next = statistics_of(base + team_.group);
#pragma unroll(kForm == Form::kPlain && Group::kRing == 0 ? 2 : 1)
    for (std::int64_t round = 0; base < p_.rows; base += step_, ++round) {
      const std::int64_t row = base + team_.group;
      const Statistics statistics = next;
      feed_.receive(row);
      next = statistics_of(row + step_);
      one_row(row, statistics, round);
      feed_.release(row);
    }
    launch_dependents();
    if (p_.dweight.data != nullptr) store_partials(sums_, p_.dweight.partials);
    if (kCentring != Centring::kNever && p_.dbias.data != nullptr) {
      __syncthreads();  // the sums of the weight have been read
      store_partials(bias_sums_, p_.dbias.partials);
    }
  }

 private:
  __device__ bool adds() const {
    return kForm == Form::kPlainAdd || (kForm == Form::kGeneral && p_.dsum != nullptr);
  }
  __device__ Tile tile_of(std::int64_t row) const { return Tile(team_, row, p_.rows); }

  __device__ Statistics statistics_of(std::int64_t row) const {
    const Tile tile = tile_of(row);
    if (!tile.active()) return {};
    return Row(p_, tile.row()).template statistics<kCentring>();
  }

  __device__ Numbers<T> g(int v, int index) const {
    return times<T, kPlain>(unpack<T>(feed_.dy(v)), weight_, weights_[v], index);
  }
  __device__ Numbers<T> h(int v, const Statistics& statistics) const {
    return normal<T, kCentring>(feed_.x(v), statistics);
  }

  __device__ void one_row(std::int64_t row, const Statistics& statistics, std::int64_t round) {
    const Tile tile = tile_of(row);
    const Row arrays(p_, tile.row());
    uint4 dsum[kVecs];
#pragma unroll
    for (int v = 0; v < kVecs; ++v) {
      if constexpr (kForm != Form::kPlain) dsum[v] = arrays.load_dsum(tile.index(v));
    }
    RowSum<T, kCentring> part = 0;
#pragma unroll
    for (int v = 0; v < kVecs; ++v) {
      part = part + row_sum<T, kCentring>(g(v, tile.index(v)), h(v, statistics));
    }
    const RowMeans<Accumulate> mean =
        means<kCentring>(p_, team_.sum(part, static_cast<int>(round % 2), round));
    feed_.forget();
    if (kPlain || p_.dx != nullptr) {
      tile.template put<kVecs, !Group::kOneRow>(arrays.dx(), [&](int v) {
        add_to_sums(v, statistics);
        return arrays.template gradient<kCentring>(g(v, tile.index(v)), h(v, statistics),
                                                   statistics.rstd, mean, dsum[v], adds());
      });
      tile.flush(arrays.dx());
    } else {
#pragma unroll
      for (int v = 0; v < kVecs; ++v) add_to_sums(v, statistics);
    }
  }

  __device__ void add_to_sums(int v, const Statistics& statistics) {
    const Numbers<T> dy = unpack<T>(feed_.dy(v));
    add_weight_gradient<T>(sums_[v], dy, h(v, statistics), !kPlain && p_.round_before_weight);
    if constexpr (kCentring != Centring::kNever) add_bias_gradient<T>(bias_sums_[v], dy);
  }

  // One row of partial sums for the block, its groups added up in order. Through shared memory, so
  // that neighbours write neighbours: strided stores of 4 bytes took 8 us of 2048 x 4096.
  __device__ void store_partials(Sums& sums, Accumulate* partials) {
    __shared__ Accumulate folded[kPersistentThreads * kPack<T>];
    const int thread = static_cast<int>(threadIdx.x);
    const int threads = static_cast<int>(blockDim.x);
    int unit = team_.group;
    int units = groups_;
    bool first_of_warp = true;
    if constexpr (!Group::kOneRow) {  // the groups of a warp first
      fold_warp(sums[0]);
      unit = thread / kWarpLanes;
      units = threads / kWarpLanes;
      first_of_warp = thread % kWarpLanes < team_.size;
    }
    const int width = team_.size * kPack<T>;
    Accumulate* to = partials + team_.team() * p_.cols;
#pragma unroll
    for (int v = 0; v < kVecs; ++v) {
      const std::int64_t first =
          static_cast<std::int64_t>(team_.rank * kVecs + v) * team_.size * kPack<T>;
      if (v > 0) __syncthreads();
      if (first_of_warp) {
#pragma unroll
        for (int i = 0; i < kPack<T>; ++i) {
          folded[unit * width + team_.lane * kPack<T> + i] = sums[v].at[i];
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

  __device__ void fold_warp(Numbers<T>& sums) {
    for (int offset = team_.size; offset < kWarpLanes; offset *= 2) {
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        sums.at[i] += shuffle_xor(sums.at[i], offset);
      }
    }
  }

  const Params& p_;
  const Group& team_;
  int groups_;
  std::int64_t step_;
  Feed feed_;
  ColumnReader<T, kAccess> weight_;
  uint4 weights_[kVecs];
  Sums sums_ = {};
  Sums bias_sums_ = {};
};

// A block, or a cluster, works on every partial_rows-th row (or set of rows, one for each of its
// groups), the next on its way meanwhile, and leaves one row of partial sums of dweight, and of
// dbias. Shared memory: rows to come, the sums of the warps, results of shifted rows, at the end
// the sums of the groups. Limited by memory; one barrier for each row.
template <class T, class Group, Access kAccess, Form kForm, Centring kCentring>
__global__ void __launch_bounds__(Group::kMaxThreads,
                                  kForm != Form::kGeneral ? Group::kMinBlocks : 1)
    rms_norm_backward_persistent_kernel(
        const __grid_constant__ RmsNormBackwardParams<accumulate_t<T>> p) {
  if constexpr (runs_here<Group>()) {
    const Group team(p.lanes, p.blocks_per_row);
    team.start();
    wait_for_launch_before();
    PersistentGradient<T, Group, kAccess, kForm, kCentring>(p, team).run();
  }
}

}  // namespace membound::cuda
