// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Very many wide rows that are centred. Read for each row, weight and bias are twice the bytes of x
// out of the second cache, and each chunk waits for them; here they are read once.
#include "cuda/norm/persistent_group.cuh"
#include "cuda/norm/rms_norm_config.hpp"
#include "cuda/norm/rms_norm_kernels.cuh"
#include "cuda/norm/rms_norm_shift.cuh"

namespace membound::cuda {

template <class Accumulate>
using WideGroup = ClusterGroup<Pair<Accumulate>, tuning::kWideVecs, 0, 1, tuning::kWideGroups>;

// The group of a block whose row is to be done again: a team as HeldRow wants it, whose sums go
// through shared memory of their own.
template <class Accumulate>
struct WideRedo {
  static constexpr bool kSplitRows = false;
  static constexpr int kVecs = tuning::kWideVecs;
  static constexpr int kFold = 1;
  static constexpr int kChunks = kVecs;
  static constexpr bool kParks = true;
  static constexpr int kMaxWarps = 8;
  static constexpr int kMaxThreads = kMaxWarps * kWarpLanes;
  static constexpr bool kUniformShift = true;
  static constexpr bool kClusters = true;
  static constexpr bool kSharesBlock = false;
  static constexpr bool kSharesWarp = false;
  int size, lane, rank, blocks, group;
  int turn = 0;  // of the exchange's barriers: rows done again before
  std::int64_t row = 0;

  __device__ explicit WideRedo(const WideGroup<Accumulate>& of)
      : size(of.size), lane(of.lane), rank(of.rank), blocks(of.blocks), group(of.group) {}
  // By all threads of the block, before the blocks of the cluster meet.
  __device__ void prepare() const {
#pragma unroll
    for (int of = 0; of < tuning::kWideGroups; ++of) exchange(of).prepare();
    for (int i = static_cast<int>(threadIdx.x); i < 2 * tuning::kWideGroups * kMaxWarps;
         i += static_cast<int>(blockDim.x)) {
      slots(0)[i] = 0;
    }
  }
  template <class Part, class Combine>
  __device__ Part reduce_part(const Part (&values)[1], int round, Combine combine) const {
    Part* const of_warps = reinterpret_cast<Part*>(slots(2 * group + round % 2));
    const Part of_warp = reduce_warp(values[0], combine);
    if (lane % kWarpLanes == 0) of_warps[lane / kWarpLanes] = of_warp;
    sync();
    const Part all = combine_slots_by_lanes<kMaxWarps>(of_warps, combine);
    sync();
    // Zeros again: a pair's slots are a number's with others between them.
    if (lane % kWarpLanes == 0) of_warps[lane / kWarpLanes] = Part(0);
    sync();
    return all;
  }
  __device__ void send(int round, Accumulate part) const {
    if (lane < kWarpLanes) exchange(group).send(round, rank, part);
  }
  __device__ const Accumulate* collect(int round) const {
    const auto parts = exchange(group);
    const Accumulate* of_blocks = parts.collect(round, turn % 2);
    if (lane == 0) parts.expect(round);
    return of_blocks;
  }
  __device__ bool any(bool mine) const { return mine; }
  __device__ void sync() const { sync_group(group, size); }
  __device__ int first_thread() const { return group * size; }

 private:
  using Exchange = ClusterExchange<Accumulate, RoundsOf<Centring::kAlways>::kCount>;
  // Of a group two, as its rounds alternate.
  static __device__ Pair<Accumulate>* slots(int of) {
    __shared__ alignas(16) Pair<Accumulate> all[2 * tuning::kWideGroups][kMaxWarps];
    return all[of];
  }
  __device__ Exchange exchange(int of) const {
    __shared__ typename Exchange::Shared shared[tuning::kWideGroups];
    return {shared[of], blocks, blocks};
  }
};

template <class T>
__device__ __noinline__ void redo_wide_row(const RmsNormParams<accumulate_t<T>>& p,
                                           WideRedo<accumulate_t<T>> team) {
  HeldRow<T, WideRedo<accumulate_t<T>>, Access::kAligned, Beside::kNothing, Centring::kAlways,
          StoreResult>(p, team)
      .run_scaled(false);
}

// The rows of one group of a cluster, with the tree of HeldRow: aligned ones, with a weight and a
// bias of x's dtype, no options and nothing beside them.
template <class T>
class WideRows {
  using Accumulate = accumulate_t<T>;
  using Group = WideGroup<Accumulate>;
  using Params = RmsNormParams<Accumulate>;
  using Tile = HeldTile<Group, Access::kAligned>;
  using Row = NormRow<T, Access::kAligned, Beside::kNothing>;
  using Scale = RowScale<Accumulate>;
  static constexpr Centring kCentring = Centring::kAlways;
  static constexpr int kChunks = tuning::kWideVecs;
  static constexpr int kRing = tuning::kWideRing;
  static constexpr int kInRegisters = kChunks - tuning::kWideBiases;  // of the biases

 public:
  __device__ WideRows(const Params& p, const Group& team)
      : p_(p),
        team_(team),
        tile_(team, 0, true),
        columns_(p, 0),
        redo_(team),
        first_(static_cast<int>(cluster_index()) * tuning::kWideGroups + team.group),
        step_(static_cast<int>(gridDim.x) / team.blocks * tuning::kWideGroups) {}

  __device__ void run() {
    redo_.prepare();
    team_.start();
    begin_overlapped();
    // Weight and bias first: behind a ring of rows they came late.
    uint4 biases[tuning::kWideBiases];
    fetch_columns(biases);
    int ahead = first_;
    for (int slot = 0; slot < kRing; ++slot, ahead += step_) fetch(slot, ahead);
    share(biases);
    __syncthreads();  // what team_ and redo_ have prepared, too
    Scale here, next;
    if (first_ < rows()) {
      wait_for_copies<kRing - 1>();
      begin(here, 0, 0);
    }
    int slot = 0, round = 0;
    for (int row = first_; row < rows(); row += step_, ahead += step_, ++round) {
      const int after = slot + 1 < kRing ? slot + 1 : 0;
      if (row + step_ < rows()) {
        wait_for_copies<kRing - 2>();
        begin(next, after, round + 1);
      }
      finish(here, slot, row, ahead, round);
      here = next;
      slot = after;
    }
  }

 private:
  // Rows as wide as these are less than 2^31.
  __device__ int rows() const { return static_cast<int>(p_.rows); }

  // The sums of a row are on their way through the cluster while the next is added up.
  __device__ void begin(Scale& scale, int slot, int round) const {
    __syncwarp();
    scale = Scale();
    scale.mean = pivot_from<T>(p_, [&](int i) { return unpack<T>(pivot_chunks(slot)[i]); });
    const auto of_chunk = [&](int i) {
      return sums_about_pivot<T, Access::kAligned, kCentring>(
          p_, unpack<T>(held(slot)[tile_.place(i)]), scale, tile_.index(i));
    };
    Pair<Accumulate> sums[1] = {of_chunk(0)};
#pragma unroll
    for (int i = 1; i < kChunks; ++i) sums[0] = sums[0] + of_chunk(i);
    team_.send(sums, round);
  }
  // Row `ahead` takes the place of this one.
  __device__ void finish(Scale& scale, int slot, int row, int ahead, int round) {
    bool sound = true;
    const Accumulate squares = leave_pivot<T>(scale, team_.collect(round), p_.inverse_cols, sound);
    if (sound && is_trusted(p_, squares)) {
      scale.rstd = plain_rstd(p_, squares);
      store(scale, slot, row, ahead);
    } else {
      redo_.row = row;
      redo_wide_row<T>(p_, redo_);
      ++redo_.turn;
      fetch(slot, ahead);
    }
  }
  // The same, chunk by chunk.
  __device__ void store(const Scale& scale, int slot, int row, int ahead) {
    const Row here(p_, row), next(p_, ahead < rows() ? ahead : row);
    const bool more = ahead < rows();
    if (tile_.first_thread()) here.template store_statistics<kCentring>(scale);
    const auto out = here.out();
    uint4* const first = held(slot) + team_.lane;
    constexpr int kSide = 2;  // chunks worked on side by side
    uint4 coming[kSide];
#pragma unroll
    for (int j = 0; j < kSide; ++j) coming[j] = first[j * team_.size];
#pragma unroll
    for (int i = 0; i < kChunks; i += kSide) {
      uint4 chunks[kSide], biases[kSide];
#pragma unroll
      for (int j = 0; j < kSide; ++j) {
        chunks[j] = coming[j];
        // As numbers, weights and biases would be twice the registers.
        forget_numbers(weights_[i + j]);
        if (i + j < kInRegisters) forget_numbers(biases_[i + j]);
        biases[j] = i + j < kInRegisters ? biases_[i + j] : shared_bias(i + j);
        if (i + kSide < kChunks) coming[j] = first[(i + kSide + j) * team_.size];
      }
#pragma unroll
      for (int j = 0; j < kSide; ++j) {
        chunks[j] = pack<T>(columns_.template normalised<true>(
            unpack<T>(chunks[j]), scale, weights_[i + j], biases[j], tile_.index(i + j)));
      }
#pragma unroll
      for (int j = 0; j < kSide; ++j) {
        const int index = tile_.index(i + j);
        out.store(index, chunks[j]);
        if (more) copy_async(first + (i + j) * team_.size, next.x().address(index), bytes(index));
      }
    }
    if (more) fetch_pivot(slot, next);
    commit_copies();
  }

  __device__ void fetch_columns(uint4 (&biases)[tuning::kWideBiases]) {
    const auto index = [&](int i) { return tile_.index(i); };
    columns_.load(weights_, index);
    columns_.clear_bias(biases_);
    columns_.load_bias(biases_, index);
    columns_.clear_bias(biases);
    columns_.load_bias(biases, [&](int i) { return index(kInRegisters + i); });
  }
  // Groups have the same part of a row.
  __device__ void share(const uint4 (&biases)[tuning::kWideBiases]) const {
    if (team_.group > 0) return;
#pragma unroll
    for (int i = 0; i < tuning::kWideBiases; ++i) shared_bias(kInRegisters + i) = biases[i];
  }
  // Nothing of rows past the last.
  __device__ void fetch(int slot, int row) const {
    if (row < rows()) {
      const Row from(p_, row);
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        const int index = tile_.index(i);
        copy_async(held(slot) + tile_.place(i), from.x().address(index), bytes(index));
      }
      fetch_pivot(slot, from);
    }
    commit_copies();
  }
  // What the pivot is made of, for each warp.
  __device__ void fetch_pivot(int slot, const Row& row) const {
    const int lane = team_.lane % kWarpLanes;
    if (lane < kPivotChunks<T>) {
      copy_async(pivot_chunks(slot) + lane, row.x().address(lane), kChunkBytes);
    }
  }
  // Of a chunk: none of one behind the row.
  __device__ int bytes(int index) const { return index < p_.chunks ? kChunkBytes : 0; }

  __device__ uint4* held(int slot) const {
    return parked() + (team_.group * kRing + slot) * tile_.part();
  }
  __device__ uint4& shared_bias(int i) const {
    return parked()[tuning::kWideGroups * kRing * tile_.part() + tile_.place(i - kInRegisters)];
  }
  static __device__ uint4* parked() {
    extern __shared__ uint4 parked[];
    return parked;
  }
  __device__ uint4* pivot_chunks(int slot) const {
    __shared__ uint4
        all[kRing][tuning::kWideGroups * tuning::kWideThreads / kWarpLanes][kPivotChunks<T>];
    return all[slot][threadIdx.x / kWarpLanes];
  }

  const Params& p_;
  const Group& team_;
  const Tile tile_;
  Columns<T, Access::kAligned, kCentring> columns_;
  WideRedo<Accumulate> redo_;
  int first_, step_;  // of the group's rows
  uint4 weights_[kChunks], biases_[kInRegisters];
};

// A cluster stays, and each of its groups does every so many rows: of three, which shared memory
// holds, one is written, one is summed and one is on its way. The block's part of weight and bias
// stays in registers, but for three quarters of the bias, which groups share. Limited by what a
// round waits for: 0.97 of a copy with 10,240 columns to a block, 0.86 with 16,384 (LOG.md).
template <class T>
__global__ void __launch_bounds__(tuning::kWideGroups* tuning::kWideThreads, 1)
    rms_norm_wide_kernel(const __grid_constant__ RmsNormParams<accumulate_t<T>> p) {
  using Group = WideGroup<accumulate_t<T>>;
  if constexpr (runs_here<Group>()) {
    const Group team(p.lanes, p.blocks_per_row);
    WideRows<T>(p, team).run();
  }
}

}  // namespace membound::cuda
