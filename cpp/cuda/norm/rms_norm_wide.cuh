// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// LayerNorm of very many wide rows by persistent clusters, which load weight and bias once. Loaded
// for every row, the two are twice the bytes of x in L2 reads, and every vector waits for them.
#include "cuda/norm/persistent_group.cuh"
#include "cuda/norm/rms_norm_config.hpp"
#include "cuda/norm/rms_norm_kernels.cuh"
#include "cuda/norm/rms_norm_shift.cuh"

namespace membound::cuda {

template <class Accumulate>
using WideGroup = ClusterGroup<Pair<Accumulate>, tuning::kWideVectors, 0, 1, tuning::kWideGroups>;

// The overflow-safe path of one group of a block: a thread group for HeldRow that reduces through
// shared memory of its own.
template <class Accumulate>
struct WideSafePath {
  static constexpr bool kSplitRows = false;
  static constexpr int kVectorsPerItem = tuning::kWideVectors;
  static constexpr int kItemsPerThread = 1;
  static constexpr int kVectors = kVectorsPerItem;
  static constexpr bool kStagesRow = true;
  static constexpr int kMaxWarps = 8;
  static constexpr int kMaxThreads = kMaxWarps * kWarpLanes;
  static constexpr bool kUniformShift = true;
  static constexpr bool kClusters = true;
  static constexpr bool kSharesBlock = false;
  static constexpr bool kSharesWarp = false;
  int size, lane, rank, blocks, group;
  int turn = 0;  // rows redone so far, whose parity is that of the exchange's mbarriers
  std::int64_t row = 0;

  __device__ explicit WideSafePath(const WideGroup<Accumulate>& of)
      : size(of.size), lane(of.lane), rank(of.rank), blocks(of.blocks), group(of.group) {}
  // Called by all threads of the block, before the blocks of the cluster synchronise.
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
    // Unused slots must be zero, and numbers and pairs lay the slots out differently.
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
  // Two per group, for alternating rounds.
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
__device__ __noinline__ void wide_row_safe_path(const RmsNormParams<accumulate_t<T>>& p,
                                                WideSafePath<accumulate_t<T>> thread_group) {
  HeldRow<T, WideSafePath<accumulate_t<T>>, Access::kAligned, FusedInput::kNone, Centring::kAlways,
          StoreResult>(p, thread_group)
      .run_scaled(false);
}

// The rows of one group of a cluster, with the reduction tree of HeldRow: aligned, with a weight
// and a bias of x's dtype, without options and without a fused input.
template <class T>
class WideRows {
  using Accumulate = accumulate_t<T>;
  using Group = WideGroup<Accumulate>;
  using Params = RmsNormParams<Accumulate>;
  using Tile = RegisterTile<Group, Access::kAligned>;
  using Row = NormRow<T, Access::kAligned, FusedInput::kNone>;
  using Scale = RowScale<Accumulate>;
  static constexpr Centring kCentring = Centring::kAlways;
  static constexpr int kVectors = tuning::kWideVectors;
  static constexpr int kStages = tuning::kWideStages;
  static constexpr int kInRegisters = kVectors - tuning::kWideSharedBiases;  // biases

 public:
  __device__ WideRows(const Params& p, const Group& thread_group)
      : p_(p),
        thread_group_(thread_group),
        tile_(thread_group, 0, true),
        columns_(p, 0),
        safe_path_(thread_group),
        first_(static_cast<int>(cluster_index()) * tuning::kWideGroups + thread_group.group),
        step_(static_cast<int>(gridDim.x) / thread_group.blocks * tuning::kWideGroups) {}

  __device__ void run() {
    safe_path_.prepare();
    thread_group_.start();
    pdl_wait_and_launch();
    // Weight and bias are loaded first: queued behind the row copies they arrived late.
    uint4 biases[tuning::kWideSharedBiases];
    fetch_columns(biases);
    int ahead = first_;
    for (int slot = 0; slot < kStages; ++slot, ahead += step_) fetch(slot, ahead);
    share(biases);
    __syncthreads();  // also publishes what thread_group_ and safe_path_ prepared
    Scale here, next;
    if (first_ < rows()) {
      wait_for_copies<kStages - 1>();
      begin(here, 0, 0);
    }
    int slot = 0, round = 0;
    for (int row = first_; row < rows(); row += step_, ahead += step_, ++round) {
      const int after = slot + 1 < kStages ? slot + 1 : 0;
      if (row + step_ < rows()) {
        wait_for_copies<kStages - 2>();
        begin(next, after, round + 1);
      }
      finish(here, slot, row, ahead, round);
      here = next;
      slot = after;
    }
  }

 private:
  // An int suffices: at this width there are fewer than 2^31 rows.
  __device__ int rows() const { return static_cast<int>(p_.rows); }

  // Sums a row and sends the sums to the cluster; they are in flight while the next row is summed.
  __device__ void begin(Scale& scale, int slot, int round) const {
    __syncwarp();
    scale = Scale();
    scale.mean = shift_from<T>(p_, [&](int i) { return unpack<T>(shift_vectors(slot)[i]); });
    const auto of_vector = [&](int i) {
      return sums_about_shift<T, Access::kAligned, kCentring>(
          p_, unpack<T>(held(slot)[tile_.place(i)]), scale, tile_.index(i));
    };
    Pair<Accumulate> sums[1] = {of_vector(0)};
#pragma unroll
    for (int i = 1; i < kVectors; ++i) sums[0] = sums[0] + of_vector(i);
    thread_group_.send(sums, round);
  }
  // Stores the row and starts the copy of row `ahead` into its slot.
  __device__ void finish(Scale& scale, int slot, int row, int ahead, int round) {
    bool in_range = true;
    const Accumulate squares = moments_from_shifted_sums<T>(scale, thread_group_.collect(round),
                                                            p_.inverse_cols, in_range);
    if (in_range && is_trusted(p_, squares)) {
      scale.rstd = plain_rstd(p_, squares);
      store(scale, slot, row, ahead);
    } else {
      safe_path_.row = row;
      wide_row_safe_path<T>(p_, safe_path_);
      ++safe_path_.turn;
      fetch(slot, ahead);
    }
  }
  // The same, vector by vector: a slot's vector is refilled as soon as it has been read.
  __device__ void store(const Scale& scale, int slot, int row, int ahead) {
    const Row here(p_, row), next(p_, ahead < rows() ? ahead : row);
    const bool more = ahead < rows();
    if (tile_.first_thread()) here.template store_statistics<kCentring>(scale);
    const auto out = here.out();
    uint4* const first = held(slot) + thread_group_.lane;
    constexpr int kUnrolled = 2;  // vectors that are interleaved
    uint4 prefetched[kUnrolled];
#pragma unroll
    for (int j = 0; j < kUnrolled; ++j) prefetched[j] = first[j * thread_group_.size];
#pragma unroll
    for (int i = 0; i < kVectors; i += kUnrolled) {
      uint4 vectors[kUnrolled], biases[kUnrolled];
#pragma unroll
      for (int j = 0; j < kUnrolled; ++j) {
        vectors[j] = prefetched[j];
        // Weights and biases stay packed: as float32 numbers they would take twice the registers.
        compiler_barrier(weights_[i + j]);
        if (i + j < kInRegisters) compiler_barrier(biases_[i + j]);
        biases[j] = i + j < kInRegisters ? biases_[i + j] : shared_bias(i + j);
        if (i + kUnrolled < kVectors)
          prefetched[j] = first[(i + kUnrolled + j) * thread_group_.size];
      }
#pragma unroll
      for (int j = 0; j < kUnrolled; ++j) {
        vectors[j] = pack<T>(columns_.template normalised<true>(
            unpack<T>(vectors[j]), scale, weights_[i + j], biases[j], tile_.index(i + j)));
      }
#pragma unroll
      for (int j = 0; j < kUnrolled; ++j) {
        const int index = tile_.index(i + j);
        out.store(index, vectors[j]);
        if (more)
          copy_async(first + (i + j) * thread_group_.size, next.x().address(index), bytes(index));
      }
    }
    if (more) fetch_variance_shift(slot, next);
    commit_copies();
  }

  __device__ void fetch_columns(uint4 (&biases)[tuning::kWideSharedBiases]) {
    const auto index = [&](int i) { return tile_.index(i); };
    columns_.load(weights_, index);
    columns_.clear_bias(biases_);
    columns_.load_bias(biases_, index);
    columns_.clear_bias(biases);
    columns_.load_bias(biases, [&](int i) { return index(kInRegisters + i); });
  }
  // All groups have the same part of a row, so one of them writes the shared biases.
  __device__ void share(const uint4 (&biases)[tuning::kWideSharedBiases]) const {
    if (thread_group_.group > 0) return;
#pragma unroll
    for (int i = 0; i < tuning::kWideSharedBiases; ++i) shared_bias(kInRegisters + i) = biases[i];
  }
  // Past the last row only the empty commit remains, which keeps wait_for_copies in step.
  __device__ void fetch(int slot, int row) const {
    if (row < rows()) {
      const Row from(p_, row);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const int index = tile_.index(i);
        copy_async(held(slot) + tile_.place(i), from.x().address(index), bytes(index));
      }
      fetch_variance_shift(slot, from);
    }
    commit_copies();
  }
  // Each warp copies the elements of the variance shift for itself.
  __device__ void fetch_variance_shift(int slot, const Row& row) const {
    const int lane = thread_group_.lane % kWarpLanes;
    if (lane < kShiftVectors<T>) {
      copy_async(shift_vectors(slot) + lane, row.x().address(lane), kVectorBytes);
    }
  }
  // Bytes of a vector to copy: none past the end of the row.
  __device__ int bytes(int index) const { return index < p_.vectors ? kVectorBytes : 0; }

  __device__ uint4* held(int slot) const {
    return staging() + (thread_group_.group * kStages + slot) * tile_.part();
  }
  __device__ uint4& shared_bias(int i) const {
    return staging()[tuning::kWideGroups * kStages * tile_.part() + tile_.place(i - kInRegisters)];
  }
  static __device__ uint4* staging() {
    extern __shared__ uint4 staging[];
    return staging;
  }
  __device__ uint4* shift_vectors(int slot) const {
    __shared__ uint4
        all[kStages][tuning::kWideGroups * tuning::kWideThreads / kWarpLanes][kShiftVectors<T>];
    return all[slot][threadIdx.x / kWarpLanes];
  }

  const Params& p_;
  const Group& thread_group_;
  const Tile tile_;
  AffineParameters<T, Access::kAligned, kCentring> columns_;
  WideSafePath<Accumulate> safe_path_;
  int first_, step_;  // rows of the group
  uint4 weights_[kVectors], biases_[kInRegisters];
};

// A persistent cluster works on rows in groups of threads, each of which takes every step_-th row.
// Shared memory holds three rows per group (one is written, one is summed, one is in flight) and
// three quarters of the block's part of the bias; the rest of bias and weight stays in registers.
// Limited by latency per row: 97 % of copy bandwidth at 10,240 columns per block, 86 % at 16,384.
template <class T>
__global__ void __launch_bounds__(tuning::kWideGroups* tuning::kWideThreads, 1)
    rms_norm_wide_kernel(const __grid_constant__ RmsNormParams<accumulate_t<T>> p) {
  using Group = WideGroup<accumulate_t<T>>;
  if constexpr (runs_here<Group>()) {
    const Group thread_group(p.lanes, p.blocks_per_row);
    WideRows<T>(p, thread_group).run();
  }
}

}  // namespace membound::cuda
