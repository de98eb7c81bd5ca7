// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Prefetch pipelines of the persistent kernels: dy, x and the gate of the next rows are in flight
// while one row is worked on.
#include "cuda/norm/rms_norm_backward_config.hpp"
#include "cuda/norm/rms_norm_backward_row.cuh"
#include "cuda/row/staged_row.cuh"

namespace membound::cuda {

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

}  // namespace membound::cuda
