// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// How the rows of a persistent kernel arrive: dy and x of the rows to come are on their way while
// one is worked on.
#include "cuda/async_copy.cuh"
#include "cuda/rms_norm_backward_row.cuh"
#include "cuda/row_tile.cuh"

namespace membound::cuda {

// One row ahead, in registers.
template <class T, class Group, Access kAccess>
class RegisterFeed {
  using Params = RmsNormBackwardParams<accumulate_t<T>>;
  using Tile = HeldTile<Group, kAccess>;
  using Row = GradientRow<T, kAccess, Group::kSplitRows>;
  static constexpr int kVecs = Group::kVecs;

 public:
  __device__ RegisterFeed(const Params& p, const Group& team, std::int64_t step)
      : p_(p), team_(team), step_(step) {}

  __device__ void start(std::int64_t row) { fetch(row); }
  __device__ void receive(std::int64_t row) {
    const Tile tile(team_, row, p_.rows);
    Row(p_, tile.row()).template chunks<Group::kUniformShift>(next_, dy_, x_, index_in(tile));
    if (row - team_.group + step_ < p_.rows) fetch(row + step_);
  }
  __device__ const uint4& dy(int v) const { return dy_[v]; }
  __device__ const uint4& x(int v) const { return x_[v]; }
  // Between two uses of a row: its numbers need not stay in registers.
  __device__ void forget() {
    forget_numbers(dy_);
    forget_numbers(x_);
  }
  __device__ void release(std::int64_t) {}

 private:
  // A row past the last is zeros.
  __device__ void fetch(std::int64_t row) {
    const Tile tile(team_, row, p_.rows);
    Row(p_, tile.row()).fetch(next_, index_in(tile));
  }
  __device__ auto index_in(const Tile& tile) const {
    return [&tile, chunks = p_.chunks](int i) { return tile.active() ? tile.index(i) : chunks; };
  }

  const Params& p_;
  const Group& team_;
  std::int64_t step_;
  uint4 dy_[kVecs], x_[kVecs];
  typename Row::template Raw<kVecs> next_;
};

// Group::kRing rows in dynamic shared memory, each thread its own chunks. Deeper is not better: the
// more rows are in flight, the wider the window of memory (research: 10 % between depths).
template <class T, class Group>
class RingFeed {
  using Params = RmsNormBackwardParams<accumulate_t<T>>;
  using Tile = HeldTile<Group, Access::kAligned>;
  using Row = GradientRow<T, Access::kAligned, Group::kSplitRows>;
  static constexpr int kVecs = Group::kVecs;

 public:
  __device__ RingFeed(const Params& p, const Group& team, std::int64_t step)
      : p_(p), team_(team), step_(step) {}

  __device__ void start(std::int64_t row) {
#pragma unroll
    for (int slot = 0; slot < Group::kRing; ++slot) fetch(row + slot * step_, slot);
  }
  __device__ void receive(std::int64_t) { wait_for_copies<Group::kRing - 1>(); }
  __device__ const uint4& dy(int v) const { return *chunk(slot_, 2 * v); }
  __device__ const uint4& x(int v) const { return *chunk(slot_, 2 * v + 1); }
  __device__ void forget() { asm volatile("" ::: "memory"); }
  // The row has been used: its slot is for the one kRing turns later.
  __device__ void release(std::int64_t row) {
    fetch(row + Group::kRing * step_, slot_);
    slot_ = slot_ + 1 == Group::kRing ? 0 : slot_ + 1;
  }

 private:
  __device__ static uint4* chunk(int slot, int place) {
    extern __shared__ uint4 ring[];
    return ring + (slot * 2 * kVecs + place) * static_cast<int>(blockDim.x) +
           static_cast<int>(threadIdx.x);
  }
  __device__ void fetch(std::int64_t row, int slot) const {
    const Tile tile(team_, row, p_.rows);
    const Row arrays(p_, tile.row());
#pragma unroll
    for (int v = 0; v < kVecs; ++v) {
      const int index = tile.index(v);
      const bool there = tile.active() && arrays.x().has(index);
      copy_async(chunk(slot, 2 * v), arrays.dy().address(there ? index : 0), there);
      copy_async(chunk(slot, 2 * v + 1), arrays.x().address(there ? index : 0), there);
    }
    commit_copies();
  }

  const Params& p_;
  const Group& team_;
  std::int64_t step_;
  int slot_ = 0;
};

}  // namespace membound::cuda
