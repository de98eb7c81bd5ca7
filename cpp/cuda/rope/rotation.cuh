// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The rotation of the pairs in two pieces of a head.
#include "cuda/rope/rope_angles.cuh"

namespace membound::cuda {

// The pairs of two pieces, whose first and second elements turn by these. Of pairs of neighbours
// the numbers change places before and after.
template <bool kInterleaved, class T, int kPairs>
__device__ inline void turn(Numbers<T>& a, Numbers<T>& b, const Turns<T, kPairs>& turns,
                            const Turns<T, kPairs>& seconds) {
  const auto of_both = [&](int i) -> accumulate_t<T>& {
    return i < kPairs ? a.at[i] : b.at[i - kPairs];
  };
  Numbers<T> first, second;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const auto x1 = of_both(kInterleaved ? 2 * i : i);
    const auto x2 = of_both(kInterleaved ? 2 * i + 1 : kPairs + i);
    first.at[i] = product(x1, turns.cos[i]) - product(x2, turns.sin[i]);
    second.at[i] = product(x2, seconds.cos[i]) + product(x1, seconds.sin[i]);
  }
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    of_both(kInterleaved ? 2 * i : i) = first.at[i];
    of_both(kInterleaved ? 2 * i + 1 : kPairs + i) = second.at[i];
  }
}

// What the second elements of each thread's pairs turn by where the table has a column for each
// element: in shared memory, as registers are for what every call has.
template <class T, int kPairs, int kThreads>
struct SecondTurns {
  accumulate_t<T> cos[kPairs][kThreads], sin[kPairs][kThreads];

  __device__ void hold(const Turns<T, kPairs>& turns) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      cos[i][threadIdx.x] = turns.cos[i];
      sin[i][threadIdx.x] = turns.sin[i];
    }
  }
  __device__ Turns<T, kPairs> held() const {
    Turns<T, kPairs> turns;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      turns.cos[i] = cos[i][threadIdx.x];
      turns.sin[i] = sin[i][threadIdx.x];
    }
    return turns;
  }
  // Branches, not selections: the whole call goes one way.
  __device__ void turn(Numbers<T>& a, Numbers<T>& b, const Turns<T, kPairs>& turns, bool shared,
                       bool interleaved) const {
    if (shared) [[likely]] {
      interleaved ? cuda::turn<true>(a, b, turns, turns) : cuda::turn<false>(a, b, turns, turns);
    } else if (interleaved) {
      cuda::turn<true>(a, b, turns, held());
    } else {
      cuda::turn<false>(a, b, turns, held());
    }
  }
};

}  // namespace membound::cuda
