// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The backward where rows are many: dx and dweight from one read of dy and x.
#include <type_traits>

#include "cuda/gated_gradient.cuh"
#include "cuda/persistent_team.cuh"
#include "cuda/rms_norm_backward_feed.cuh"

namespace membound::cuda {

// Options cost registers and a third of the instructions: rows have kernels without them, aligned
// ones more without but for what is wanted most: an offset of the weight and rounding before it
// (H200, 16384 x 4096 bfloat16: 208 us with all of them), or dsum; and for a gate some without,
// whose rows come through the ring, and some with all.
enum class Form { kPlain, kPlainRounded, kPlainAdd, kPlainGated, kGeneral, kGated };

template <class T, class Group, Access kAccess, Form kForm, Centring kCentring>
class PersistentGradient {
  using Accumulate = accumulate_t<T>;
  using Params = RmsNormBackwardParams<Accumulate>;
  using Tile = HeldTile<Group, kAccess>;
  using Row = GradientRow<T, kAccess, Group::kSplitRows>;
  static constexpr bool kPlain = kForm < Form::kGeneral;
  static constexpr bool kHeads = !kPlain || Group::kSplitRows;
  static constexpr bool kShifted = kAccess == Access::kShifted;
  static constexpr bool kGated = kForm == Form::kGated || kForm == Form::kPlainGated;
  using Feed =
      std::conditional_t<kShifted, ShiftedRingFeed<T, Group, kHeads>,
                         std::conditional_t<(Group::kRing > 0), RingFeed<T, Group, kHeads, kGated>,
                                            RegisterFeed<T, Group, kAccess, kHeads, kGated>>>;
  using Gate = GateOf<T, kAccess, kGated>;
  static constexpr int kVecs = Group::kVecs;
  static constexpr bool kFewOptions = kForm == Form::kPlain || kForm == Form::kPlainRounded;
  static constexpr bool kKeepsTerms = kVecs == 1 && kFewOptions && !kShifted;
  using Sums = Numbers<T>[kVecs];
  using Statistics = RowStatistics<Accumulate>;

 public:
  // Rows team, team + step, team + 2 step ...: all teams walk one window of memory together.
  __device__ PersistentGradient(const Params& p, const Group& team)
      : p_(p),
        team_(team),
        groups_(static_cast<int>(blockDim.x) / team.size),
        step_(static_cast<std::int64_t>(p.teams_of_head) * groups_),
        rows_{p.heads.count, kHeads ? p.heads.of(team.team()) : 0},
        feed_(p, team, step_, rows_),
        gate_{p},
        weight_(p.weight, p.chunks, p.cols, rows_.head) {
    const Tile tile = tile_of(0);
    weight_.template load<true>(weights_, [&](int v) { return tile.index(v); });
  }

  __device__ void run() {
    std::int64_t base = team_of_head() * groups_;
    feed_.start(base + team_.group);
    Statistics next = statistics_of(base + team_.group);
#pragma unroll(kFewOptions&& Group::kRing == 0 && !kShifted ? 2 : 1)
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
  // Team t works for head t % heads.
  __device__ std::int64_t team_of_head() const {
    if (!kHeads || p_.heads.count == 1) return team_.team();
    return team_.team() / static_cast<int>(p_.heads.count);
  }
  __device__ bool adds() const {
    return kForm == Form::kPlainAdd || (kForm == Form::kGeneral && p_.dsum != nullptr);
  }
  __device__ Tile tile_of(std::int64_t row) const { return Tile(team_, row, p_.rows); }

  __device__ Statistics statistics_of(std::int64_t row) const {
    const Tile tile = tile_of(row);
    if (!tile.active()) return {};
    return Row(p_, rows_.at(tile.row())).template statistics<kCentring>();
  }

  // A chunk as the norm alone would have had it, and what its sums and gradients are made of.
  struct Terms {
    Numbers<T> dy, g, h;
  };
  __device__ Terms terms(int v, int index, const Statistics& statistics) const {
    const ChunkInputs<T> inputs = gate_.inputs(feed_.dy(v), feed_.x(v), gate(v));
    constexpr bool kOffset = kForm == Form::kPlainRounded;
    return {inputs.dy, times<T, kPlain, kOffset>(inputs.dy, weight_, weights_[v], index),
            normal<T, kCentring>(inputs.x, statistics)};
  }

  // Shifted rows have none.
  __device__ uint4 gate(int v) const {
    if constexpr (kShifted) {
      return {};
    } else {
      return feed_.gate(v);
    }
  }

  __device__ void one_row(std::int64_t row, const Statistics& statistics, std::int64_t round) {
    const Tile tile = tile_of(row);
    const Row arrays(p_, rows_.at(tile.row()));
    if constexpr (kForm == Form::kPlainGated) {
      p_.norm_before_gate ? one_gated_row<true>(tile, arrays, statistics, round)
                          : one_gated_row<false>(tile, arrays, statistics, round);
    } else {
      one_row_with_options(tile, arrays, statistics, round);
    }
  }

  __device__ void one_row_with_options(const Tile& tile, const Row& arrays,
                                       const Statistics& statistics, std::int64_t round) {
    uint4 dsum[kVecs];
#pragma unroll
    for (int v = 0; v < kVecs; ++v) {
      if constexpr (kForm == Form::kPlainAdd || kForm == Form::kGeneral)
        dsum[v] = arrays.load_dsum(tile.index(v));
    }
    RowSum<T, kCentring> parts[Group::kParts] = {};
    Terms kept;
#pragma unroll
    for (int v = 0; v < kVecs; ++v) {
      const Terms of = terms(v, tile.index(v), statistics);
      parts[v / 2] = parts[v / 2] + row_sum<T, kCentring>(of.g, of.h);
      if constexpr (kKeepsTerms) kept = of;
    }
    const RowMeans<Accumulate> mean =
        means<kCentring>(p_, team_.sum(parts, static_cast<int>(round % 2), round));
    feed_.forget();
    if (gate_.is_there()) {
      store_gated(tile, arrays, statistics, mean);
    } else if (kPlain || p_.dx != nullptr) {
      tile.template put<kVecs, !Group::kOneRow>(arrays.dx(), [&](int v) {
        Terms of;
        if constexpr (kKeepsTerms) {
          of.g = kept.g;
          of.h = kept.h;
          of.dy = unpack<T>(feed_.dy(v));
        } else {
          of = terms(v, tile.index(v), statistics);
        }
        add_to_sums(v, of);
        return arrays.template gradient<kCentring>(of.g, of.h, statistics.rstd, mean, dsum[v],
                                                   adds());
      });
      tile.flush(arrays.dx());
    } else {
#pragma unroll
      for (int v = 0; v < kVecs; ++v) {
        add_to_sums(v, terms(v, tile.index(v), statistics));
      }
    }
  }

  __device__ void store_gated(const Tile& tile, const Row& arrays, const Statistics& statistics,
                              const RowMeans<Accumulate>& mean) {
    if constexpr (!kShifted) {
#pragma unroll
      for (int v = 0; v < kVecs; ++v) {
        const int index = tile.index(v);
        const Terms of = terms(v, index, statistics);
        add_to_sums(v, of);
        if (!tile.active()) continue;
        arrays.store_gated(
            index, Row::template gradient_of_norm<kCentring>(of.g, of.h, statistics.rstd, mean),
            norm_before_gate<T>(of.h, weight_, weights_[v], index, p_.round_before_weight),
            feed_.dy(v), feed_.x(v), gate(v));
      }
    }
  }

  // Without options.
  template <bool kNormFirst>
  __device__ void one_gated_row(const Tile& tile, const Row& arrays, const Statistics& statistics,
                                std::int64_t round) {
    const auto chunk = [&](int v) {
      return GatedChunk<T, kNormFirst>(feed_.dy(v), feed_.x(v), feed_.gate(v), weights_[v]);
    };
    Accumulate parts[Group::kParts] = {};
#pragma unroll
    for (int v = 0; v < kVecs; ++v) {
      parts[v / 2] = parts[v / 2] + chunk(v).sum(statistics.rstd);
    }
    const Accumulate sum = team_.sum(parts, static_cast<int>(round % 2), round);
    const Accumulate mean = product(sum, p_.inverse_cols);
    feed_.forget();
#pragma unroll
    for (int v = 0; v < kVecs; ++v) {
      const auto [dx, dgate] = chunk(v).gradients(statistics.rstd, mean, sums_[v]);
      if (!tile.active()) continue;
      arrays.dx().store(tile.index(v), dx);
      arrays.dgate().store(tile.index(v), dgate);
    }
  }

  __device__ void add_to_sums(int v, const Terms& of) {
    constexpr bool kMayRound = !kPlain || kForm == Form::kPlainRounded;
    add_weight_gradient<T>(sums_[v], of.dy, of.h, kMayRound && p_.round_before_weight);
    if constexpr (kCentring != Centring::kNever) add_bias_gradient<T>(bias_sums_[v], of.dy);
  }

  // One row of partial sums for the block, its groups added up in order. Through shared memory, so
  // that neighbours write neighbours: strided stores of 4 bytes took 8 us of 2048 x 4096.
  __device__ void store_partials(Sums& sums, Accumulate* partials) {
    Accumulate* folded = fold_space();
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

  // One chunk of sums for each thread. Beside the results of shifted rows the ring is lent, which
  // is larger.
  static __device__ Accumulate* fold_space() {
    if constexpr (kShifted) {
      extern __shared__ uint4 ring[];
      wait_for_copies<0>();
      __syncthreads();
      return reinterpret_cast<Accumulate*>(ring);
    } else {
      __shared__ Accumulate space[kPersistentThreads * kPack<T>];
      return space;
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
  RowsOfHead<kHeads> rows_;
  Feed feed_;
  Gate gate_;
  ColumnReader<T, kAccess> weight_;
  uint4 weights_[kVecs];
  Sums sums_ = {};
  Sums bias_sums_ = {};
};

// Options need registers, and a gate spills in a third of them.
template <class Group, Form kForm>
constexpr int min_blocks() {
  if (kForm == Form::kPlainGated) return Group::kMinBlocks > 1 ? 2 : 1;
  return kForm < Form::kGeneral ? Group::kMinBlocks : 1;
}

// A block, or a cluster, works on every partial_rows-th row (or set of rows, one for each of its
// groups), the next on its way meanwhile, and leaves one row of partial sums of dweight, and of
// dbias. Shared memory: rows to come, the sums of the warps, results of shifted rows, at the end
// the sums of the groups. Limited by memory; one barrier for each row.
template <class T, class Group, Access kAccess, Form kForm, Centring kCentring>
__global__ void __launch_bounds__(Group::kMaxThreads, min_blocks<Group, kForm>())
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
