// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Rotation of the pairs in two vectors of a head.
#include "cuda/rope/rope_angles.cuh"

namespace membound::cuda {

// Rotates the pairs of two vectors; their first and second elements have rotations of their own.
// Interleaved pairs are gathered from the vectors before and scattered after.
template <bool kInterleaved, class T, int kPairs>
__device__ inline void rotate(Numbers<T>& a, Numbers<T>& b, const Rotations<T, kPairs>& rotations,
                              const Rotations<T, kPairs>& seconds) {
  const auto of_both = [&](int i) -> accumulate_t<T>& {
    return i < kPairs ? a.at[i] : b.at[i - kPairs];
  };
  Numbers<T> first, second;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const auto x1 = of_both(kInterleaved ? 2 * i : i);
    const auto x2 = of_both(kInterleaved ? 2 * i + 1 : kPairs + i);
    first.at[i] = product(x1, rotations.cos[i]) - product(x2, rotations.sin[i]);
    second.at[i] = product(x2, seconds.cos[i]) + product(x1, seconds.sin[i]);
  }
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    of_both(kInterleaved ? 2 * i : i) = first.at[i];
    of_both(kInterleaved ? 2 * i + 1 : kPairs + i) = second.at[i];
  }
}

// Rotations of the second elements of each thread's pairs, for tables with a column per element.
// They are in shared memory, because registers are sized for the calls without them.
template <class T, int kPairs, int kThreads>
struct SecondRotations {
  accumulate_t<T> cos[kPairs][kThreads], sin[kPairs][kThreads];

  __device__ void store(const Rotations<T, kPairs>& rotations) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      cos[i][threadIdx.x] = rotations.cos[i];
      sin[i][threadIdx.x] = rotations.sin[i];
    }
  }
  __device__ Rotations<T, kPairs> load() const {
    Rotations<T, kPairs> rotations;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      rotations.cos[i] = cos[i][threadIdx.x];
      rotations.sin[i] = sin[i][threadIdx.x];
    }
    return rotations;
  }
  // Branches instead of selects, as the condition is uniform over the whole call.
  __device__ void rotate(Numbers<T>& a, Numbers<T>& b, const Rotations<T, kPairs>& rotations,
                         bool shared, bool interleaved) const {
    if (shared) [[likely]] {
      interleaved ? cuda::rotate<true>(a, b, rotations, rotations)
                  : cuda::rotate<false>(a, b, rotations, rotations);
    } else if (interleaved) {
      cuda::rotate<true>(a, b, rotations, load());
    } else {
      cuda::rotate<false>(a, b, rotations, load());
    }
  }
};

}  // namespace membound::cuda
