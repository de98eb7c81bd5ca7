// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Sums over the warps of a group, row after row, in the tree of reduce_block.
#include <type_traits>

#include "cuda/launch/mbarrier.cuh"
#include "cuda/row/reduce.cuh"

namespace membound::cuda {

// kSums sums of each thread. They alternate between two buffers, so that a row costs one barrier:
// round: 0, 1, 2 ... over the rows. Pairs go by halves of a warp. kOneAddress: for
// storing and loading, where two would spill (H200, LayerNorm, bfloat16, us with two and with one:
// gradient 16384 x 4097 158 and 152, with an offset 16384 x 3072 84 and 80, forward 16384 x 4097 97
// and 95; but forward 4096 x 12287 72 and 77).
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
        // The butterfly adds the same slots at each step, and lane 0, which stores, has its warp's.
        of_all_ = address_of(warp ^ lane, half);
        asm volatile("" : "+r"(of_all_));
        of_warp_ = of_all_;
      } else {
        of_warp_ = address_of(warp, half);
        of_all_ = address_of(lane, half);
        // Opaque, so that they stay in registers: found anew for each row they were a tenth of the
        // instructions of one with one vector in a thread.
        asm volatile("" : "+r"(of_warp_), "+r"(of_all_));
      }
    }
  }
  // Once, by the whole block: groups may have fewer warps.
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
        if (threadIdx.x % kHalfWarp == 0) store_shared(place(of_warp_, i), mine[i]);
      }
      sync();
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        sums[i] = sum_slots(load_shared<decltype(+mine[0])>(place(of_all_, i)));
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
  // Of one sum of a warp's pair.
  __device__ std::uint32_t address_of(int warp, int half) const {
    return shared_address(&slots()[0][group_][warp]) +
           half * static_cast<std::uint32_t>(sizeof(Part) / 2);
  }

  int group_;
  int warp_;
  std::uint32_t of_warp_;  // in slots()[0]: this lane's of its own warp
  std::uint32_t of_all_;   // and of the warp that it adds to others
};

}  // namespace membound::cuda
