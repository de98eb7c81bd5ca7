// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The backward of many narrow, unaligned rows without gaps between them (packed_tile.cuh).
#include <type_traits>

#include "cuda/norm/persistent_group.cuh"
#include "cuda/norm/rms_norm_backward_partials.cuh"
#include "cuda/norm/rms_norm_backward_row.cuh"
#include "cuda/row/cluster.cuh"
#include "cuda/row/packed_config.hpp"
#include "cuda/row/packed_tile.cuh"

namespace membound::cuda {

template <class Accumulate>
struct PackedGradientParams : RmsNormBackwardParams<Accumulate> {
  int tile_vectors;  // vectors of shared memory for each array
};

// Groups share the rows as in PersistentGradient: the rows of a block's groups in one round are one
// contiguous tile of each array.
template <class T, FusedInput kFusedInput, Centring kCentring>
class PackedGradient {
  using Accumulate = accumulate_t<T>;
  using Params = PackedGradientParams<Accumulate>;
  using Group = LaneGroup<RowSum<T, kCentring>, true>;
  using Row = GradientRow<T, Access::kUnaligned>;
  using Statistics = RowStatistics<Accumulate>;
  using Sums = Numbers<T>[1];
  static constexpr bool kCentred = kCentring != Centring::kNever;
  static constexpr int kSources = kFusedInput == FusedInput::kNone ? 2 : 3;
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr int kSlots = tuning::kPackedSlots;

 public:
  __device__ PackedGradient(const Params& p, const Group& thread_group)
      : p_(p),
        thread_group_(thread_group),
        groups_(static_cast<int>(blockDim.x) / p.lanes),
        first_(static_cast<std::int64_t>(blockIdx.x) * groups_),
        step_(static_cast<std::int64_t>(gridDim.x) * groups_),
        weight_(p.weight, p.vectors, p.cols) {
    const int left = cols() - thread_group.lane * kPack<T>;
    last_ = min(max(left, 0), kPack<T>);
    const int lane = left > 0 ? thread_group.lane : 0;  // whose loads are masked
    const int bytes = (thread_group.group * cols() + lane * kPack<T>)*kSize;
#pragma unroll
    for (int i = 0; i < kSources; ++i) from_[i] = source(i, first_, 0).vectors(cols(), bytes);
    to_ = result(first_, 0).vectors(cols(), bytes);
    uint4 weight[1];
    weight_.template load<true>(weight, [&](int) { return thread_group.lane; });
    staged_weight() = weight[0];
  }

  __device__ void run() {
#if MEMBOUND_HAS_CLUSTERS
    if (threadIdx.x <= kPack<T>) masks()[threadIdx.x] = mask(static_cast<int>(threadIdx.x));
    if (threadIdx.x == 0) {
      for (int slot = 0; slot < kSlots; ++slot) init_mbarrier(mbar(slot), kSources);
      fence_mbarrier_init();
      for (int slot = 0; slot < kSlots; ++slot) fetch(first_ + slot * step_, slot);
    }
    Statistics next = statistics(first_);
    __syncthreads();
    int turn = 0;  // counts slots over two phases of their mbarriers
    int result = 0;
#pragma unroll 1
    for (std::int64_t first = first_; first < p_.rows; first += step_) {
      const int slot = turn < kSlots ? turn : turn - kSlots;
      const Statistics here = next;
      next = statistics(first + step_);
      wait_mbarrier(mbar(slot), turn >= kSlots);
      one_row(here, first + thread_group_.group < p_.rows, slot, result);
      fence_async_proxy();
      if (threadIdx.x == 0) wait_bulk_reads();  // the previous results, whose buffer is next
      __syncthreads();
      this->result(first, result).send();
      if (threadIdx.x == 0) fetch(first + kSlots * step_, slot);
      turn = turn + 1 == 2 * kSlots ? 0 : turn + 1;
      result ^= 1;
    }
    if (threadIdx.x == 0) wait_bulk_reads();
    pdl_launch_dependents();
    const PartialSums<T, Group, Access::kUnaligned> partials(p_, thread_group_);
    if (p_.dweight.data != nullptr) partials.store(sums_, p_.dweight.partials);
    if (kCentred && p_.dbias.data != nullptr) {
      __syncthreads();  // the sums of the weight have been read
      partials.store(bias_sums_, p_.dbias.partials);
    }
#endif
  }

 private:
  __device__ int cols() const { return static_cast<int>(p_.cols); }
  // Vectors of an array's tile. Shared memory has kSlots slots of sources, then two of results.
  __device__ int places() const { return p_.tile_vectors; }
  __device__ PackedTile<T> piece(const void* data, std::int64_t first, int place) const {
    const std::int64_t left = p_.rows - first;
    const int rows = left < groups_ ? static_cast<int>(left) : groups_;
    return {static_cast<const T*>(data) + first * p_.cols, rows * cols(), place * places()};
  }
  __device__ PackedTile<T> source(int i, std::int64_t first, int slot) const {
    return piece(i == 0 ? p_.dy : i == 1 ? p_.x : p_.dsum, first, slot * kSources + i);
  }
  __device__ PackedTile<T> result(std::int64_t first, int slot) const {
    return piece(p_.dx, first, kSlots * kSources + slot);
  }
  static __device__ uint4& staged_weight() {
    __shared__ uint4 weights[kPersistentThreads];
    return weights[threadIdx.x];
  }
  static __device__ std::uint64_t* mbar(int slot) {
    __shared__ std::uint64_t all[kSlots];
    return &all[slot];
  }
  // Masks of a vector, by how many of its elements are in the row.
  static __device__ uint4* masks() {
    __shared__ uint4 masks[kPack<T> + 1];
    return masks;
  }
  static __device__ uint4 mask(int count) {
    return first_bytes({~0u, ~0u, ~0u, ~0u}, count * kSize);
  }
#if MEMBOUND_HAS_CLUSTERS
  __device__ void fetch(std::int64_t first, int slot) const {
    if (first >= p_.rows) return;
#pragma unroll
    for (int i = 0; i < kSources; ++i) {
      source(i, first, slot).fetch(mbar(slot), first == 0, first + groups_ >= p_.rows);
    }
  }
#endif
  __device__ Statistics statistics(std::int64_t first) const {
    const std::int64_t row = first + thread_group_.group;
    Statistics of;
    if (row >= p_.rows) return of;
    of.rstd = p_.rstd[row * p_.rstd_row_stride];
    if constexpr (kCentred) of.mean = p_.mean[row * p_.mean_row_stride];
    return of;
  }

  // Past the last row, as past the end of a row, elements are zeros; results there are not sent.
  __device__ void one_row(const Statistics& statistics, bool active, int slot, int result) {
    uint4 vectors[kSources];
    const uint4 mask = masks()[active ? last_ : 0];
#pragma unroll
    for (int i = 0; i < kSources; ++i) {
      const PackedVectors<T> from = from_[i].behind(slot * kSources * places() * kVectorBytes);
      uint4 vector[1];
      from.load({0}, vector);
      vectors[i] = {vector[0].x & mask.x, vector[0].y & mask.y, vector[0].z & mask.z,
                    vector[0].w & mask.w};
    }
    const Numbers<T> dy = unpack<T>(vectors[0]);
    const Numbers<T> g = times<T, true>(dy, weight_, staged_weight(), 0);
    const Numbers<T> h = normal<T, kCentring>(unpack<T>(vectors[1]), statistics);
    add_weight_gradient<T>(sums_[0], dy, h, false);
    if constexpr (kCentred) add_bias_gradient<T>(bias_sums_[0], dy);
    const auto sum = reduce_lanes(row_sum<T, kCentring>(g, h), thread_group_.size, Sum());
    const uint4 dx = Row::template gradient<kCentring>(
        g, h, statistics.rstd, means<kCentring>(p_, sum), vectors[kSources - 1],
        kFusedInput == FusedInput::kResidual);
    to_.behind(result * places() * kVectorBytes).store({0}, {dx}, last_);
  }
  const Params& p_;
  const Group& thread_group_;
  int groups_;
  std::int64_t first_;  // first row of the block
  std::int64_t step_;
  int last_;  // elements of the row in this thread's vector
  PackedVectors<T> from_[kSources];
  PackedVectors<T> to_;
  AffineReader<T, Access::kUnaligned> weight_;
  Sums sums_ = {};
  Sums bias_sums_ = {};
};

// A block takes every partial_rows-th tile, while the next is in flight, and leaves one row of
// partial sums of dweight, and of dbias. Shared memory: staged tiles, two tiles of results on their
// way to memory, weights; at the end the sums of the groups. Limited by instructions: one barrier
// per tile.
template <class T, FusedInput kFusedInput, Centring kCentring>
__global__ void __launch_bounds__(kPersistentThreads, 2) rms_norm_backward_packed_kernel(
    const __grid_constant__ PackedGradientParams<accumulate_t<T>> p) {
  if constexpr (MEMBOUND_HAS_CLUSTERS) {
    const LaneGroup<RowSum<T, kCentring>, true> thread_group(p.lanes, 1);
    pdl_wait();
    PackedGradient<T, kFusedInput, kCentring>(p, thread_group).run();
  }
}

}  // namespace membound::cuda
