// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Sums over the warps of a thread group, row after row, in the tree of reduce_block.
#include <type_traits>

#include "cuda/launch/mbarrier.cuh"
#include "cuda/row/reduce.cuh"

namespace membound::cuda {

// Reduces kSums sums per thread. Two buffers alternate with the round (0, 1, 2 ... over the rows),
// so that a row costs one barrier. Pairs are reduced by half-warps. kOneAddress: loads and stores
// share one address register, where two would spill (H200, gradient of LayerNorm, bfloat16 16384 x
// 4097: 158 -> 152 us).
template <class Part, int kSums, int kGroups, bool kOneAddress>
class WarpSums {
  static constexpr int kMaxWarps = kHalfWarp;
  static constexpr bool kPairs = std::is_class_v<Part>;
  using Slots = Part[kGroups][kMaxWarps];

 public:
  __device__ WarpSums(int group, int warp) : group_(group), warp_(warp) {
    if constexpr (kPairs) {
      const int half = in_upper_half();
      const int lane = static_cast<int>(threadIdx.x % kMaxWarps);
      if constexpr (kOneAddress) {
        // With slots permuted by warp ^ lane each butterfly step adds the same slots, and lane 0,
        // which stores, gets the slot of its own warp.
        all_slots_ = address_of(warp ^ lane, half);
        asm volatile("" : "+r"(all_slots_));
        warp_slot_ = all_slots_;
      } else {
        warp_slot_ = address_of(warp, half);
        all_slots_ = address_of(lane, half);
        // Opaque to the compiler, so that they stay in registers: recomputed for each row they took
        // a tenth of the instructions of a row with one vector per thread.
        asm volatile("" : "+r"(warp_slot_), "+r"(all_slots_));
      }
    }
  }
  // Called once by the whole block, because groups may have fewer warps than slots.
  __device__ void clear() const {
    for (int i = static_cast<int>(threadIdx.x); i < 2 * kSums * kGroups * kMaxWarps;
         i += static_cast<int>(blockDim.x)) {
      (&slots()[0][0][0])[i] = 0;
    }
    __syncthreads();
  }
  // sync(): a barrier of the group.
  template <class Sync>
  __device__ void sum(Part (&sums)[kSums], int round, Sync sync) const {
    const int turn = round % 2;
    if constexpr (kPairs) {
      const auto place = [&](std::uint32_t first, int i) {
        return first +
               static_cast<std::uint32_t>((turn * kSums + i) * static_cast<int>(sizeof(Slots)));
      };
      decltype(sum_halves(sums[0])) mine[kSums];
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        mine[i] = sum_halves(sums[i]);
        if (threadIdx.x % kHalfWarp == 0) store_shared(place(warp_slot_, i), mine[i]);
      }
      sync();
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        sums[i] = sum_slots(load_shared<decltype(+mine[0])>(place(all_slots_, i)));
      }
    } else {
      static_assert(kSums == 1);
      Part* const of_group = slots()[turn][group_];
      const Part of_warp = reduce_warp(sums[0], Sum());
      if (threadIdx.x % kWarpLanes == 0) of_group[warp_] = of_warp;
      sync();
      sums[0] = combine_slots<kMaxWarps>(of_group, Sum());
    }
  }

 private:
  __device__ Slots* slots() const {
    __shared__ alignas(16) Part all[2 * kSums][kGroups][kMaxWarps];
    return all;
  }
  // The address of one sum of a warp's pair.
  __device__ std::uint32_t address_of(int warp, int half) const {
    return shared_address(&slots()[0][group_][warp]) +
           half * static_cast<std::uint32_t>(sizeof(Part) / 2);
  }

  int group_;
  int warp_;
  std::uint32_t warp_slot_;  // in slots()[0]: where this lane stores its warp's sum
  std::uint32_t all_slots_;  // in slots()[0]: the warp's sum that this lane loads
};

}  // namespace membound::cuda
