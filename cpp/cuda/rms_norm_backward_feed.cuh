// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// How the rows of a persistent kernel arrive: dy, x and the gate of the rows to come are on their
// way while one is worked on.
#include "cuda/parked_row.cuh"
#include "cuda/rms_norm_backward_row.cuh"
#include "cuda/tuning/rms_norm_backward.hpp"

namespace membound::cuda {

// One row ahead, in registers; of the gate where each thread has one chunk of it: for more there
// are none.
template <class T, class Group, Access kAccess, bool kHeads, bool kGated>
class RegisterFeed {
  using Params = RmsNormBackwardParams<accumulate_t<T>>;
  using Tile = HeldTile<Group, kAccess>;
  using Row = GradientRow<T, kAccess, Group::kSplitRows>;
  static constexpr int kVecs = Group::kVecs;
  static constexpr bool kGateAhead = kVecs == 1;

 public:
  __device__ RegisterFeed(const Params& p, const Group& team, std::int64_t step,
                          const RowsOfHead<kHeads>& rows)
      : p_(p), team_(team), step_(step), rows_(rows), gated_{p} {}

  __device__ void start(std::int64_t row) {
    fetch(row);
    if (kGateAhead) fetch_gate(row);
  }
  __device__ void receive(std::int64_t row) {
    const Tile tile(team_, row, p_.rows);
    Row(p_, rows_.at(tile.row()))
        .template chunks<Group::kUniformShift>(next_, dy_, x_, index_in(tile));
    if (row - team_.group + step_ < p_.rows) fetch(row + step_);
    if (!kGateAhead) fetch_gate(row);
#pragma unroll
    for (int v = 0; v < kVecs; ++v) gate_[v] = next_gate_[v];
    if (kGateAhead) fetch_gate(row + step_);
  }
  __device__ const uint4& dy(int v) const { return dy_[v]; }
  __device__ const uint4& x(int v) const { return x_[v]; }
  __device__ const uint4& gate(int v) const { return gate_[v]; }
  // Between two uses of a row: its numbers need not stay in registers.
  __device__ void forget() {
    forget_numbers(dy_);
    forget_numbers(x_);
    if (gated_.is_there()) forget_numbers(gate_);
  }
  __device__ void release(std::int64_t) {}

 private:
  // A row past the last is zeros.
  __device__ void fetch(std::int64_t row) {
    const Tile tile(team_, row, p_.rows);
    Row(p_, rows_.at(tile.row())).fetch(next_, index_in(tile));
  }
  __device__ void fetch_gate(std::int64_t row) {
    if (!gated_.is_there()) return;
    const Tile tile(team_, row, p_.rows);
    const Row arrays(p_, rows_.at(tile.row()));
#pragma unroll
    for (int v = 0; v < kVecs; ++v) next_gate_[v] = arrays.load_gate(tile.index(v));
  }
  __device__ auto index_in(const Tile& tile) const {
    return [&tile, chunks = p_.chunks](int i) { return tile.active() ? tile.index(i) : chunks; };
  }

  const Params& p_;
  const Group& team_;
  std::int64_t step_;
  RowsOfHead<kHeads> rows_;
  GateOf<T, kAccess, kGated> gated_;
  uint4 dy_[kVecs], x_[kVecs], gate_[kVecs];
  typename Row::template Raw<kVecs> next_;
  uint4 next_gate_[kVecs];
};

// Group::kRing rows in dynamic shared memory, each thread its own chunks. Deeper is not better: the
// more rows are in flight, the wider the window of memory (research: 10 % between depths). Where
// the next row is goes along: found anew from its number it was a sixth of the instructions of a
// row.
template <class T, class Group, bool kHeads, bool kGated>
class RingFeed {
  using Params = RmsNormBackwardParams<accumulate_t<T>>;
  using Tile = HeldTile<Group, Access::kAligned>;
  static constexpr int kVecs = Group::kVecs;
  static constexpr int kArrays = kGated ? 3 : 2;
  static_assert(!Group::kSplitRows);  // rows are evenly spaced

 public:
  __device__ RingFeed(const Params& p, const Group& team, std::int64_t step,
                      const RowsOfHead<kHeads>& rows)
      : p_(p), team_(team), step_(step), rows_(rows) {}

  __device__ void start(std::int64_t row) {
    next_ = row;
    walk(0, p_.dy, p_.dy_row_stride);
    walk(1, p_.x, p_.x_row_stride);
    if constexpr (kGated) walk(2, p_.gate, p_.gate_row_stride);
#pragma unroll
    for (int slot = 0; slot < Group::kRing; ++slot) fetch(slot);
  }
  __device__ void receive(std::int64_t) { wait_for_copies<Group::kRing - 1>(); }
  __device__ const uint4& dy(int v) const { return *chunk(slot_, kArrays * v); }
  __device__ const uint4& x(int v) const { return *chunk(slot_, kArrays * v + 1); }
  __device__ const uint4& gate(int v) const { return *chunk(slot_, kArrays * v + 2); }
  __device__ void forget() { asm volatile("" ::: "memory"); }
  // The row has been used: its slot is for the one kRing turns later.
  __device__ void release(std::int64_t) {
    fetch(slot_);
    slot_ = slot_ + 1 == Group::kRing ? 0 : slot_ + 1;
  }

 private:
  __device__ void walk(int array, const void* data, std::int64_t stride) {
    const std::int64_t first = rows_.at(next_), step = rows_.at(next_ + step_) - first;
    at_[array] = reinterpret_cast<const uint4*>(static_cast<const T*>(data) + first * stride) +
                 Tile(team_, next_, p_.rows).index(0);
    steps_[array] = step * stride / kPack<T>;
  }
  __device__ static uint4* chunk(int slot, int place) {
    extern __shared__ uint4 ring[];
    return ring + (slot * kArrays * kVecs + place) * static_cast<int>(blockDim.x) +
           static_cast<int>(threadIdx.x);
  }
  // Of rows past the last nothing is read, and zeros arrive.
  __device__ void fetch(int slot) {
    const Tile tile(team_, next_, p_.rows);
#pragma unroll
    for (int v = 0; v < kVecs; ++v) {
      const int bytes = tile.active() && tile.index(v) < p_.chunks ? kChunkBytes : 0;
#pragma unroll
      for (int array = 0; array < kArrays; ++array) {
        copy_async(chunk(slot, kArrays * v + array), at_[array] + v * team_.size, bytes);
      }
    }
    commit_copies();
    next_ += step_;
#pragma unroll
    for (int array = 0; array < kArrays; ++array) at_[array] += steps_[array];
  }

  const Params& p_;
  const Group& team_;
  std::int64_t step_;
  RowsOfHead<kHeads> rows_;
  std::int64_t next_ = 0;        // row to be fetched
  const uint4* at_[kArrays];     // this thread's first chunk of it in dy, x and the gate
  std::int64_t steps_[kArrays];  // chunks between rows
  int slot_ = 0;
};

// The same for shifted rows, whose chunks are put together from blocks that neighbours copied.
template <class T, class Group, bool kHeads>
class ShiftedRingFeed {
  using Params = RmsNormBackwardParams<accumulate_t<T>>;
  using Tile = HeldTile<Group, Access::kShifted>;
  using Row = GradientRow<T, Access::kShifted, Group::kSplitRows>;
  static constexpr int kVecs = Group::kVecs;
  static constexpr int kSlots = tuning::kShiftedRing;
  static_assert(Tile::kChunks == kVecs);

 public:
  __device__ ShiftedRingFeed(const Params& p, const Group& team, std::int64_t step,
                             const RowsOfHead<kHeads>& rows)
      : p_(p), team_(team), step_(step), rows_(rows) {}

  __device__ void start(std::int64_t row) {
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) shifts_[slot] = fetch(row + slot * step_, slot);
  }
  __device__ void receive(std::int64_t) {
    wait_for_copies<kSlots - 1>();
    team_.sync();
    assemble();
  }
  __device__ const uint4& dy(int v) const { return dy_[v]; }
  __device__ const uint4& x(int v) const { return x_[v]; }
  // Put together anew, so that the chunks take no registers meanwhile.
  __device__ void forget() {
    asm volatile("" ::: "memory");
    assemble();
  }
  __device__ void release(std::int64_t row) {
    team_.sync();  // neighbours read the blocks too
#pragma unroll
    for (int slot = 0; slot < kSlots - 1; ++slot) shifts_[slot] = shifts_[slot + 1];
    shifts_[kSlots - 1] = fetch(row + kSlots * step_, slot_);
    slot_ = slot_ + 1 == kSlots ? 0 : slot_ + 1;
  }

 private:
  struct Shifts {
    int dy, x;
  };

  __device__ int blocks() const { return kVecs * team_.size + 1; }
  __device__ uint4* part(int slot, int array) const {
    extern __shared__ uint4 ring[];
    const int groups = static_cast<int>(blockDim.x) / team_.size;
    return ring + ((slot * groups + team_.group) * 2 + array) * blocks();
  }
  __device__ Shifts fetch(std::int64_t row, int slot) const {
    const Tile tile(team_, row, p_.rows);
    const Row arrays(p_, rows_.at(tile.row()));
    const bool outermost = tile.row() == 0 || tile.row() == p_.rows - 1;
    const int row_bytes = static_cast<int>(p_.cols) * int{sizeof(T)};
    park_blocks(arrays.dy(), part(slot, 0), tile, team_.lane, row_bytes, outermost);
    park_blocks(arrays.x(), part(slot, 1), tile, team_.lane, row_bytes, outermost);
    commit_copies();
    return {arrays.dy().shift(), arrays.x().shift()};
  }
  __device__ void assemble() {
    const Tile tile(team_, 0, p_.rows);
    unpark_blocks<Group::kUniformShift>(shifts_[0].dy, part(slot_, 0), tile, dy_);
    unpark_blocks<Group::kUniformShift>(shifts_[0].x, part(slot_, 1), tile, x_);
  }

  const Params& p_;
  const Group& team_;
  std::int64_t step_;
  RowsOfHead<kHeads> rows_;
  Shifts shifts_[kSlots];  // of the rows in the ring, the one that is worked on first
  int slot_ = 0;
  uint4 dy_[kVecs], x_[kVecs];
};

}  // namespace membound::cuda
