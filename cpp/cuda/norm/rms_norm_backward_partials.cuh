// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The row of partial sums of dweight or dbias that each block of a persistent kernel leaves.
#include "cuda/launch/async_copy.cuh"
#include "cuda/norm/persistent_group.cuh"
#include "cuda/norm/rms_norm_backward_row.cuh"

namespace membound::cuda {

// For a block whose threads hold sums of kVectorsPerItem vectors each.
template <class T, class Group, Access kAccess>
class PartialSums {
  using Accumulate = accumulate_t<T>;
  using Params = RmsNormBackwardParams<Accumulate>;
  static constexpr int kVectorsPerItem = Group::kVectorsPerItem;

 public:
  using Sums = Numbers<T>[kVectorsPerItem];

  __device__ PartialSums(const Params& p, const Group& thread_group)
      : p_(p), thread_group_(thread_group) {}

  // Adds up the block's groups in order.
  __device__ void store(Sums& sums, Accumulate* partials) const {
    if constexpr (Group::kOneRow && kAccess == Access::kAligned) {
      if (p_.lanes == threads()) return store_own(sums, partials);
    }
    if constexpr (Group::kPaired) {
      if (p_.paired) return store_pair(sums, partials);
    }
    store_coarsened(sums, partials);
  }

  // Vectors of shared memory that store() takes, at vectors(). Until then others may use them.
  static constexpr int kVectorsOfSums =
      kPack<T> * static_cast<int>(sizeof(Accumulate)) / kVectorBytes;
  static constexpr int kPlaces = kVectorsOfSums * kPersistentThreads;
  static __device__ uint4* vectors() { return reinterpret_cast<uint4*>(space()); }

 private:
  static __device__ int threads() { return static_cast<int>(blockDim.x); }

  // Adds the second of two groups to the first, through shared memory: 16 bytes of each thread at a
  // time, next to its neighbours'.
  __device__ void store_pair(Sums& sums, Accumulate* partials) const {
    static_assert(kVectorsPerItem == 1);
    constexpr int kSumsPerVector = kPack<T> / kVectorsOfSums;
    struct alignas(kVectorBytes) Piece {
      Accumulate at[kSumsPerVector];
    };
    const int lanes = p_.lanes;
    const bool second = static_cast<int>(threadIdx.x) >= lanes;
    Piece* const pieces =
        reinterpret_cast<Piece*>(vectors()) + static_cast<int>(threadIdx.x) - (second ? lanes : 0);
    if (second) {
#pragma unroll
      for (int i = 0; i < kVectorsOfSums; ++i) {
        Piece piece;
#pragma unroll
        for (int j = 0; j < kSumsPerVector; ++j) piece.at[j] = sums[0].at[i * kSumsPerVector + j];
        pieces[i * lanes] = piece;
      }
    }
    __syncthreads();
    if (second) return;
#pragma unroll
    for (int i = 0; i < kVectorsOfSums; ++i) {
      const Piece piece = pieces[i * lanes];
#pragma unroll
      for (int j = 0; j < kSumsPerVector; ++j) sums[0].at[i * kSumsPerVector + j] += piece.at[j];
    }
    store_own(sums, partials);
  }

  // For a block of one group, or the first of a pair, whose lanes are its threads. It derives its
  // indices anew, so that the group's need not stay in registers.
  __device__ void store_own(const Sums& sums, Accumulate* partials) const {
    Accumulate* to = partials + thread_group_.group_in_grid() * p_.cols;
    const int rank = Group::kClusters ? cluster_rank() : 0;
    const int lanes = Group::kPaired ? p_.lanes : threads();
#pragma unroll
    for (int v = 0; v < kVectorsPerItem; ++v) {
      const int index = (rank * kVectorsPerItem + v) * lanes + static_cast<int>(threadIdx.x);
      if (index < p_.vectors) store_numbers<T>(to + std::int64_t{index} * kPack<T>, sums[v]);
    }
  }
  // Goes through shared memory, so that stores are coalesced: strided stores of 4 bytes took 8 us
  // of 2048 x 4096.
  __device__ void store_coarsened(Sums& sums, Accumulate* partials) const {
    Accumulate* coarsened = space();
    const int thread = static_cast<int>(threadIdx.x);
    int unit = thread_group_.group;
    int units = threads() / p_.lanes;
    bool first_of_unit = true;
    if constexpr (!Group::kOneRow) {  // first groups that share a warp of the tree
      const int groups = kWarpLanes / p_.lanes;
      reduce_warp_items(sums, groups);
      unit = thread_group_.group / groups;
      units = threads() / (thread_group_.size * groups);
      first_of_unit = thread_group_.group % groups == 0;
    }
    const int width = thread_group_.size * kPack<T>;
    Accumulate* to = partials + thread_group_.group_in_grid() * p_.cols;
#pragma unroll
    for (int v = 0; v < kVectorsPerItem; ++v) {
      const std::int64_t first =
          static_cast<std::int64_t>(thread_group_.rank * kVectorsPerItem + v) * thread_group_.size *
          kPack<T>;
      if (v > 0) __syncthreads();
      if (first_of_unit)
        store_numbers<T>(coarsened + unit * width + thread_group_.lane * kPack<T>, sums[v]);
      __syncthreads();
      for (int col = thread; col < width && first + col < p_.cols; col += threads()) {
        Accumulate sum = 0;
#pragma unroll 4
        for (int i = 0; i < units; ++i) sum += coarsened[i * width + col];
        to[first + col] = sum;
      }
    }
  }
  __device__ void reduce_warp_items(Sums& sums, int groups) const {
    for (int offset = thread_group_.size; offset < thread_group_.size * groups; offset *= 2) {
#pragma unroll
      for (int v = 0; v < kVectorsPerItem; ++v) {
#pragma unroll
        for (int i = 0; i < kPack<T>; ++i) {
          sums[v].at[i] += shuffle_xor(sums[v].at[i], offset);
        }
      }
    }
  }

  // One vector of sums per thread. Unaligned kernels, whose results take shared memory too, reuse
  // the stages, which are larger.
  static __device__ Accumulate* space() {
    if constexpr (kAccess == Access::kUnaligned) {
      extern __shared__ uint4 stages[];
      wait_for_copies<0>();
      __syncthreads();
      return reinterpret_cast<Accumulate*>(stages);
    } else {
      __shared__ uint4 space[kPlaces];
      return reinterpret_cast<Accumulate*>(space);
    }
  }

  const Params& p_;
  const Group& thread_group_;
};

}  // namespace membound::cuda
