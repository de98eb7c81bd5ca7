// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The backward of many rows: dx and dweight from one read of dy and x.
#include <type_traits>

#include "cuda/norm/gated_gradient.cuh"
#include "cuda/norm/persistent_group.cuh"
#include "cuda/norm/rms_norm_backward_config.hpp"
#include "cuda/norm/rms_norm_backward_partials.cuh"
#include "cuda/norm/rms_norm_backward_row.cuh"
#include "cuda/row/staged_row.cuh"

namespace membound::cuda {

// Prefetch pipelines of the persistent kernels: dy, x and the gate of the next rows are in flight
// while one row is worked on.

// The rows of a thread group, one after the other (RowSteps): all groups move through memory in one
// window.
template <class T, class Group, Access kAccess, bool kHeads>
class RowIterator {
  using Params = RmsNormBackwardParams<accumulate_t<T>>;
  static constexpr bool kEvenlySpaced = kAccess == Access::kAligned && !Group::kSplitRows;
  static constexpr bool kAdvances = kEvenlySpaced && Group::kClusters;
  using IndexedPointers = IndexedRowPointers<T, kAccess, Group::kSplitRows>;
  using EvenlySpacedPointers =
      std::conditional_t<kAdvances, AdvancedRowPointers<T>, StridedRowPointers<T>>;
  using Number = std::conditional_t<kAccess == Access::kAligned, std::int32_t, std::int64_t>;

 public:
  using Tile = RegisterTile<Group, kAccess>;
  using Arrays =
      PointedGradientRow<T, kAccess,
                         std::conditional_t<kEvenlySpaced, EvenlySpacedPointers, IndexedPointers>>;

  // Group t of the grid works for head t % heads.
  __device__ RowIterator(const Params& p, const Group& thread_group)
      : p_(p),
        thread_group_(thread_group),
        rows_{p.heads.count, kHeads ? p.heads.of(thread_group.group_in_grid()) : 0},
        row_(first_of_block() + thread_group.group),
        advanced_(StridedRowPointers<T>(p, evenly_spaced_row())) {}

  __device__ std::int64_t head() const { return rows_.head; }
  // Rounds of the block's group with the most rows.
  __device__ int rounds_of_block() const {
    return p_.steps.rounds + (first_of_block() < p_.steps.remainder ? 1 : 0);
  }

  // Inactive past the last row, of which nothing may be read.
  __device__ Tile tile() const {
    return Tile(thread_group_, row_, row_ < static_cast<Number>(p_.rows));
  }
  __device__ Arrays arrays() const {
    if constexpr (kAdvances) {
      return Arrays(p_, advanced_);
    } else if constexpr (kEvenlySpaced) {
      return Arrays(p_, evenly_spaced_row());
    } else {
      return Arrays(p_, rows_.at(tile().row()));
    }
  }
  // Index of this thread's vector v, counted from where the row pointers start.
  __device__ int place(int v) const {
    return kEvenlySpaced ? v * thread_group_.size : tile().index(v);
  }
  __device__ void next() {
    row_ += p_.steps.step;
    advanced_.next(p_.steps);
  }

 private:
  __device__ typename StridedRowPointers<T>::Row evenly_spaced_row() const {
    return {static_cast<std::int32_t>(rows_.at(row_)), Tile(thread_group_, 0, true).index(0)};
  }
  __device__ int first_of_block() const {
    const bool alone = !kHeads || p_.heads.count == 1;
    const int thread_group = alone
                                 ? thread_group_.group_in_grid()
                                 : thread_group_.group_in_grid() / static_cast<int>(p_.heads.count);
    return thread_group * (static_cast<int>(blockDim.x) / thread_group_.size);
  }
  const Params& p_;
  const Group& thread_group_;
  RowsOfHead<kHeads> rows_;
  Number row_;
  AdvancedRowPointers<T> advanced_;  // used if kAdvances
};

// One row ahead in registers, with its gate if each thread has one vector of it, or registers to
// spare.
template <class T, class Group, Access kAccess, class Rows, bool kGated>
class RegisterPipeline {
  using Params = RmsNormBackwardParams<accumulate_t<T>>;
  static constexpr int kVectorsPerItem = Group::kVectorsPerItem;
  static constexpr bool kGateAhead = kVectorsPerItem == 1 || Group::kLowRegisterPressure;

 public:
  __device__ RegisterPipeline(const Params& p, const Group&, const Rows& rows)
      : prefetch_rows_(rows), gated_{p} {}

  __device__ void start() {
    fetch();
    if (kGateAhead) fetch_gate();
  }
  // more: the block has rows left.
  __device__ void receive(bool more) {
    if (!kGateAhead) fetch_gate();
#pragma unroll
    for (int v = 0; v < kVectorsPerItem; ++v) {
      dy_[v] = next_dy_[v];
      x_[v] = next_x_[v];
      gate_[v] = next_gate_[v];
    }
    prefetch_rows_.next();
    if (more) fetch();
    if (kGateAhead) fetch_gate();
  }
  __device__ const uint4& dy(int v) const { return dy_[v]; }
  __device__ const uint4& x(int v) const { return x_[v]; }
  __device__ const uint4& gate(int v) const { return gate_[v]; }
  // Between two uses of a row: it is unpacked anew, rather than kept unpacked in registers.
  __device__ void rematerialise() {
    if constexpr (Group::kLowRegisterPressure) return;
    compiler_barrier(dy_);
    compiler_barrier(x_);
    if (gated_.is_present()) compiler_barrier(gate_);
  }
  __device__ void release() {}

 private:
  // A row past the last is zeros.
  __device__ void fetch() { prefetch_rows_.arrays().fetch(next_dy_, next_x_, index()); }
  __device__ void fetch_gate() {
    if (!gated_.is_present()) return;
    const auto arrays = prefetch_rows_.arrays();
#pragma unroll
    for (int v = 0; v < kVectorsPerItem; ++v) next_gate_[v] = arrays.load_gate(index()(v));
  }
  __device__ auto index() const {
    return [this, active = prefetch_rows_.tile().active(),
            vectors = prefetch_rows_.arrays().vectors()](int v) {
      return active ? prefetch_rows_.place(v) : vectors;
    };
  }

  Rows prefetch_rows_;
  GateOf<T, kAccess, kGated> gated_;
  uint4 dy_[kVectorsPerItem], x_[kVectorsPerItem], gate_[kVectorsPerItem];
  uint4 next_dy_[kVectorsPerItem], next_x_[kVectorsPerItem], next_gate_[kVectorsPerItem];
};

// Group::kStages rows in dynamic shared memory. Each thread copies and reads its own vectors, which
// needs no barrier. More stages are not better: the more rows are in flight, the wider the window
// of memory that is open at once (10 % between depths).
template <class T, class Group, class Rows, FusedInput kFusedInput>
class SharedPipeline {
  using Params = RmsNormBackwardParams<accumulate_t<T>>;
  static constexpr int kVectorsPerItem = Group::kVectorsPerItem;
  static constexpr int kArrays = kFusedInput == FusedInput::kNone ? 2 : 3;
  static constexpr int kFirst =
      tuning::stage_offset(kVectorsPerItem, Group::kClusters, Group::kMaxThreads) / kVectorBytes;
  static_assert(!Group::kSplitRows);  // rows are evenly spaced

 public:
  __device__ SharedPipeline(const Params&, const Group&, const Rows& rows) : prefetch_rows_(rows) {}

  __device__ void start() {
#pragma unroll
    for (int slot = 0; slot < Group::kStages; ++slot) release();
  }
  // Waits for the oldest staged row, or with receive_second() for the next one too.
  __device__ void receive(bool) { wait_for_copies<Group::kStages - 1>(); }
  __device__ void receive_second() { wait_for_copies<Group::kStages - 2>(); }
  __device__ void read_first() { read_ = first_; }
  __device__ void read_second() { read_ = after(first_); }
  __device__ const uint4& dy(int v) const { return *vector(read_, kArrays * v); }
  __device__ const uint4& x(int v) const { return *vector(read_, kArrays * v + 1); }
  __device__ const uint4& gate(int v) const { return fused_input(v); }
  __device__ const uint4& fused_input(int v) const { return *vector(read_, kArrays * v + 2); }
  __device__ void rematerialise() { asm volatile("" ::: "memory"); }
  // The oldest row has been used: its slot takes the row kStages later.
  __device__ void release() {
    fetch();
    first_ = after(first_);
    read_first();
  }

 private:
  __device__ static uint4* vector(int slot, int place) {
    // Aligned to 128-byte lines, since static arrays of any size come before it: copies to places
    // that are not whole lines take longer (RMSNorm 8192 x 8192 16 bytes off: 101 -> 114 us).
    extern __shared__ __align__(128) uint4 lines[];
    return lines + kFirst + slot + place * static_cast<int>(blockDim.x);
  }
  __device__ static int after(int slot) {
    const int size = kArrays * kVectorsPerItem * static_cast<int>(blockDim.x);
    return slot < (Group::kStages - 1) * size ? slot + size : slot - (Group::kStages - 1) * size;
  }
  // Rows past the last read nothing and arrive as zeros.
  __device__ void fetch() {
    const auto tile = prefetch_rows_.tile();
    const auto arrays = prefetch_rows_.arrays();
#pragma unroll
    for (int v = 0; v < kVectorsPerItem; ++v) {
      const int place = prefetch_rows_.place(v);
      const int bytes = tile.active() && place < arrays.vectors() ? kVectorBytes : 0;
      const auto fetch_vector = [&](int array, const uint4* from) {
        copy_async(vector(first_, kArrays * v + array), from, bytes);
      };
      fetch_vector(0, arrays.dy().address(place));
      fetch_vector(1, arrays.x().address(place));
      if constexpr (kFusedInput == FusedInput::kResidual)
        fetch_vector(2, arrays.dsum().address(place));
      if constexpr (kFusedInput == FusedInput::kGate) fetch_vector(2, arrays.gate().address(place));
    }
    commit_copies();
    prefetch_rows_.next();
  }

  Rows prefetch_rows_;
  int first_ = static_cast<int>(threadIdx.x);  // this thread's first vector in the oldest slot
  int read_ = first_;                          // and in the slot being read
};

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
