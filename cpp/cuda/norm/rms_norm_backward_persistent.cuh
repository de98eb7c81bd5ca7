// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The backward of many rows: dx and dweight from one read of dy and x.
#include <type_traits>

#include "cuda/norm/gated_gradient.cuh"
#include "cuda/norm/persistent_group.cuh"
#include "cuda/norm/rms_norm_backward_partials.cuh"
#include "cuda/norm/rms_norm_backward_pipeline.cuh"

namespace membound::cuda {

// Form::kPlain of centred rows, which are never rounded, includes the offset: it costs nothing but
// in clusters.
template <class Group, Centring kCentring>
inline constexpr bool plain_has_offset = kCentring == Centring::kAlways && !Group::kClusters;

template <class T, class Group, Access kAccess, Form kForm, Centring kCentring>
class PersistentGradient {
  using Accumulate = accumulate_t<T>;
  using Params = RmsNormBackwardParams<Accumulate>;
  static constexpr bool kPlain = kForm < Form::kGeneral;
  static constexpr bool kHeads = !kPlain || Group::kSplitRows;
  static constexpr bool kGated = kForm == Form::kGated || kForm == Form::kPlainGated;
  using Rows = RowIterator<T, Group, kAccess, kHeads>;
  using Tile = typename Rows::Tile;
  using Row = typename Rows::Arrays;
  static constexpr bool kStagesDsum = kForm == Form::kPlainAdd && Group::kStages > 0 &&
                                      tuning::stages_dsum(Group::kVectorsPerItem, Group::kClusters,
                                                          sizeof(T));
  static constexpr FusedInput kFusedInput = kStagesDsum ? FusedInput::kResidual
                                            : kGated    ? FusedInput::kGate
                                                        : FusedInput::kNone;
  using Pipeline =
      std::conditional_t<(Group::kStages > 0), SharedPipeline<T, Group, Rows, kFusedInput>,
                         RegisterPipeline<T, Group, kAccess, Rows, kGated>>;
  using Gate = GateOf<T, kAccess, kGated>;
  static constexpr int kVectorsPerItem = Group::kVectorsPerItem;
  static constexpr bool kKeepsTerms =
      kVectorsPerItem == 1 && (kForm == Form::kPlain || kForm == Form::kPlainRounded);
  // Weights are in shared memory where they would spill: with three blocks per SM, or two with two
  // 16-bit vectors per thread (bfloat16 LayerNorm 8192 x 5120: 75.6 -> 68.5 us).
  static constexpr bool kStagesWeights =
      (kVectorsPerItem == 1 && Group::kMinBlocks > 2 &&
       (kCentring != Centring::kNever || kForm != Form::kPlain)) ||
      (kVectorsPerItem == 2 && Group::kMinBlocks > 1 && kCentring != Centring::kNever &&
       sizeof(T) == 2 && (kForm == Form::kPlain || kForm == Form::kPlainRounded));
  static constexpr bool kOverlaps = Group::kClusters && Group::kStages > 0;
  // The sigmoid, an eighth of a gated row's instructions, is kept between the passes. Two rows at
  // once leave no registers for it.
  static constexpr bool kKeepsSigmoid = kForm == Form::kPlainGated && !kOverlaps;
  using Partials = PartialSums<T, Group, kAccess>;
  static_assert(!kStagesWeights || kVectorsPerItem * Group::kMaxThreads <= Partials::kPlaces);
  using Sums = typename Partials::Sums;
  using Statistics = RowStatistics<Accumulate>;

 public:
  __device__ PersistentGradient(const Params& p, const Group& thread_group)
      : p_(p),
        thread_group_(thread_group),
        rows_(p, thread_group),
        prefetch_rows_(rows_),
        pipeline_(p, thread_group, rows_),
        gate_{p},
        weight_(p.weight, p.vectors, p.cols, rows_.head()) {
    const Tile tile = rows_.tile();
    weight_.template load<true>(weights_, [&](int v) { return tile.index(v); });
  }

  __device__ void run() {
    pipeline_.start();
    if constexpr (kStagesWeights) {
#pragma unroll
      for (int v = 0; v < kVectorsPerItem; ++v) staged_weight(v) = weights_[v];
    }
    if constexpr (kOverlaps) {
      rows_overlapped(rows_.rounds_of_block());
    } else {
      rows_in_sequence(rows_.rounds_of_block());
    }
    pdl_launch_dependents();
    if constexpr (kStagesWeights) __syncthreads();  // the sums overwrite the weights
    const Partials partials(p_, thread_group_);
    if (p_.dweight.data != nullptr) partials.store(sums_, p_.dweight.partials);
    if (kCentring != Centring::kNever && p_.dbias.data != nullptr) {
      __syncthreads();  // the sums of the weight have been read
      partials.store(bias_sums_, p_.dbias.partials);
    }
  }

 private:
  // dy as the norm alone would have received it, g = dy * weight, and h, the normalised x.
  struct Terms {
    Numbers<T> dy, g, h;
  };
  // Sums over a row.
  using Total = RowSum<T, kCentring>;
  // What a thread holds of a row until its sums are known.
  struct Held {
    Terms terms;
    uint4 dsum[kVectorsPerItem];
    Numbers<T> gate_sigmoid[kKeepsSigmoid ? kVectorsPerItem : 1];  // sigmoid of the gate
  };

  __device__ void rows_in_sequence(int rounds) {
    Statistics next = prefetch_statistics();
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
      const Statistics statistics = next;
      pipeline_.receive(round + 1 < rounds);
      next = prefetch_statistics();
      Held held = held_fused_input();
      Total parts[Group::kParts];
      add_up(statistics, parts, held);
      finish(statistics, thread_group_.sum(parts, round), held);
      pipeline_.release();
      rows_.next();
    }
  }
  // The sums of a row are in flight through the cluster while the next row is added up.
  __device__ void rows_overlapped(int rounds) {
    Statistics here = prefetch_statistics(), next = prefetch_statistics();
    const auto begin = [&](const Statistics& statistics, int round) {
      Held held;
      Total parts[Group::kParts];
      add_up(statistics, parts, held);
      thread_group_.send(parts, round);
    };
    pipeline_.receive(true);
    if (rounds > 0) begin(here, 0);
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
      const Statistics later = prefetch_statistics();
      if (round + 1 < rounds) {
        pipeline_.receive_second();
        pipeline_.read_second();
        begin(next, round + 1);
        pipeline_.read_first();
      }
      const Held held = held_fused_input();
      finish(here, thread_group_.collect(round), held);
      pipeline_.release();
      rows_.next();
      here = next;
      next = later;
    }
  }

  __device__ bool adds() const {
    return kForm == Form::kPlainAdd || (kForm == Form::kGeneral && p_.dsum != nullptr);
  }
  __device__ Statistics prefetch_statistics() {
    Statistics of;
    if (prefetch_rows_.tile().active())
      of = prefetch_rows_.arrays().template statistics<kCentring>();
    prefetch_rows_.next();
    return of;
  }

  __device__ Terms terms(int v, int index, const Statistics& statistics) const {
    const VectorInputs<T> inputs = gate_.inputs(pipeline_.dy(v), pipeline_.x(v), pipeline_.gate(v));
    constexpr bool kOffset = kForm == Form::kPlainRounded ||
                             (kForm == Form::kPlain && plain_has_offset<Group, kCentring>);
    return {inputs.dy, times<T, kPlain, kOffset>(inputs.dy, weight_, weight(v), index),
            normal<T, kCentring>(inputs.x, statistics)};
  }

  __device__ uint4 weight(int v) const {
    if constexpr (kStagesWeights) {
      return staged_weight(v);
    } else {
      return weights_[v];
    }
  }

  // Loads dsum early, to hide its latency.
  __device__ Held held_fused_input() const {
    Held held{};
    if constexpr ((kForm == Form::kPlainAdd && !kStagesDsum) || kForm == Form::kGeneral) {
      const Row arrays = rows_.arrays();
      const bool active = rows_.tile().active();
#pragma unroll
      for (int v = 0; v < kVectorsPerItem; ++v) {
        held.dsum[v] = arrays.load_dsum(active ? rows_.place(v) : arrays.vectors());
      }
    }
    return held;
  }
  __device__ uint4 dsum(const Held& held, int v) const {
    if constexpr (kStagesDsum) {
      return pipeline_.fused_input(v);
    } else {
      return held.dsum[v];
    }
  }
  static __device__ void add_to_part(Total (&parts)[Group::kParts], int v, const Total& sum) {
    constexpr int kOfPart = kVectorsPerItem > Group::kParts ? 2 : 1;
    Total& part = parts[v / kOfPart];
    part = v % kOfPart == 0 ? sum : part + sum;
  }
  __device__ void add_up(const Statistics& statistics, Total (&parts)[Group::kParts], Held& held) {
    if constexpr (kForm == Form::kPlainGated) {
      p_.norm_before_gate ? add_up_gated<true>(statistics, parts, held)
                          : add_up_gated<false>(statistics, parts, held);
    } else {
      const Tile tile = rows_.tile();
#pragma unroll
      for (int v = 0; v < kVectorsPerItem; ++v) {
        const Terms of = terms(v, tile.index(v), statistics);
        const Total sum = row_sum<T, kCentring>(of.g, of.h);
        add_to_part(parts, v, sum);
        if constexpr (kKeepsTerms) held.terms = of;
      }
    }
  }
  __device__ void finish(const Statistics& statistics, const Total& total, const Held& held) {
    const RowMeans<Accumulate> mean = means<kCentring>(p_, total);
    pipeline_.rematerialise();
    const Tile tile = rows_.tile();
    const Row arrays = rows_.arrays();
    if constexpr (kForm == Form::kPlainGated) {
      p_.norm_before_gate ? finish_gated<true>(tile, arrays, statistics, mean.gh, held)
                          : finish_gated<false>(tile, arrays, statistics, mean.gh, held);
    } else if (gate_.is_present()) {
      store_gated(tile, arrays, statistics, mean);
    } else if (kPlain || p_.dx != nullptr) {
      store(tile, arrays, statistics, mean, held);
    } else {
#pragma unroll
      for (int v = 0; v < kVectorsPerItem; ++v) {
        add_to_sums(v, terms(v, tile.index(v), statistics));
      }
    }
  }

  __device__ void store(const Tile& tile, const Row& arrays, const Statistics& statistics,
                        const RowMeans<Accumulate>& mean, const Held& held) {
    write_out(tile, arrays, [&](int v) {
      Terms of;
      if constexpr (kKeepsTerms) {
        of.g = held.terms.g;
        of.h = held.terms.h;
        of.dy = unpack<T>(pipeline_.dy(v));
      } else {
        of = terms(v, tile.index(v), statistics);
      }
      add_to_sums(v, of);
      return arrays.template gradient<kCentring>(of.g, of.h, statistics.rstd, mean, dsum(held, v),
                                                 adds());
    });
  }

  // Stores dx, whose vector v of this thread is make(v).
  template <class Make>
  __device__ void write_out(const Tile& tile, const Row& arrays, Make make) const {
#pragma unroll
    for (int v = 0; v < kVectorsPerItem; ++v) {
      const uint4 vector = make(v);
      if (tile.active()) arrays.dx().store(rows_.place(v), vector);
    }
  }

  __device__ void store_gated(const Tile& tile, const Row& arrays, const Statistics& statistics,
                              const RowMeans<Accumulate>& mean) {
#pragma unroll
    for (int v = 0; v < kVectorsPerItem; ++v) {
      const int index = tile.index(v);
      const Terms of = terms(v, index, statistics);
      add_to_sums(v, of);
      if (!tile.active()) continue;
      arrays.store_gated(
          rows_.place(v),
          Row::template gradient_of_norm<kCentring>(of.g, of.h, statistics.rstd, mean),
          norm_before_gate<T>(of.h, weight_, weight(v), index, p_.round_before_weight),
          pipeline_.dy(v), pipeline_.x(v), pipeline_.gate(v));
    }
  }

  // A gated row without options.
  template <bool kNormFirst>
  __device__ GatedVector<T, kNormFirst> gated_vector(int v) const {
    return {pipeline_.dy(v), pipeline_.x(v), pipeline_.gate(v), weight(v)};
  }
  template <bool kNormFirst>
  __device__ void add_up_gated(const Statistics& statistics, Total (&parts)[Group::kParts],
                               Held& held) const {
#pragma unroll
    for (int v = 0; v < kVectorsPerItem; ++v) {
      const auto keep = [&](int i, Accumulate s) {
        if constexpr (kKeepsSigmoid) held.gate_sigmoid[v].at[i] = s;
      };
      add_to_part(parts, v, Total(gated_vector<kNormFirst>(v).sum(statistics.rstd, keep)));
    }
  }
  template <bool kNormFirst>
  __device__ void finish_gated(const Tile& tile, const Row& arrays, const Statistics& statistics,
                               Accumulate mean, const Held& held) {
#pragma unroll
    for (int v = 0; v < kVectorsPerItem; ++v) {
      const auto vector = gated_vector<kNormFirst>(v);
      const auto [dx, dgate] = vector.gradients(statistics.rstd, mean, sums_[v], [&](int i) {
        if constexpr (kKeepsSigmoid) {
          return held.gate_sigmoid[v].at[i];
        } else {
          return vector.gate_sigmoid(i);
        }
      });
      if (!tile.active()) continue;
      arrays.dx().store(rows_.place(v), dx);
      arrays.dgate().store(rows_.place(v), dgate);
    }
  }

  __device__ void add_to_sums(int v, const Terms& of) {
    constexpr bool kMayRound =
        kCentring != Centring::kAlways && (!kPlain || kForm == Form::kPlainRounded);
    add_weight_gradient<T>(sums_[v], of.dy, of.h, kMayRound && p_.round_before_weight);
    if constexpr (kCentring != Centring::kNever) add_bias_gradient<T>(bias_sums_[v], of.dy);
  }

  // This thread's weights in shared memory, which the sums overwrite at the end.
  static __device__ uint4& staged_weight(int v) {
    return Partials::vectors()[v * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)];
  }

  const Params& p_;
  const Group& thread_group_;
  Rows rows_;
  Rows prefetch_rows_;  // one row ahead, for its statistics
  Pipeline pipeline_;
  Gate gate_;
  AffineReader<T, kAccess> weight_;
  uint4 weights_[kVectorsPerItem];
  Sums sums_ = {};
  Sums bias_sums_ = {};
};

// Blocks per SM: options need all registers of an SM for one block, and a gate would spill with
// three. A paired block counts as two.
template <class Group, Form kForm>
constexpr int min_blocks() {
  if (kForm == Form::kPlainGated) return Group::kMinBlocks > 1 ? 2 : 1;
  return kForm < Form::kGeneral && !Group::kPaired ? Group::kMinBlocks : 1;
}

// A block (or cluster) takes every partial_rows-th row, or set of rows with one for each of its
// groups, while the next is prefetched, and leaves one row of partial sums of dweight, and of
// dbias. Shared memory: staged rows and sums of the warps; at the end the sums of the groups.
// Limited by memory bandwidth; one barrier per row.
template <class T, class Group, Access kAccess, Form kForm, Centring kCentring>
__global__ void __launch_bounds__(Group::kMaxThreads, min_blocks<Group, kForm>())
    rms_norm_backward_persistent_kernel(
        const __grid_constant__ RmsNormBackwardParams<accumulate_t<T>> p) {
  if constexpr (runs_here<Group>()) {
    const Group thread_group(p.lanes, p.blocks_per_row);
    thread_group.start();
    pdl_wait();
    PersistentGradient<T, Group, kAccess, kForm, kCentring>(p, thread_group).run();
  }
}

}  // namespace membound::cuda
