// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reductions in one fixed order: butterflies within a warp, then the warps of a block.
#include <cstdint>
#include <type_traits>

namespace membound::cuda {

inline constexpr int kWarpLanes = 32;

__device__ inline int log2_of(int power_of_two) { return 31 - __clz(power_of_two); }

// Two sums that are reduced side by side.
template <class Value>
struct Pair {
  Value a, b;
  Pair() = default;
  __device__ Pair(Value both) : a(both), b(both) {}
  __device__ Pair(Value first, Value second) : a(first), b(second) {}
  template <class Other>
  __device__ explicit Pair(const Pair<Other>& other)
      : a(static_cast<Value>(other.a)), b(static_cast<Value>(other.b)) {}
  __device__ Pair operator+(const Pair& more) const { return {a + more.a, b + more.b}; }
};

template <class Value>
struct WideOf {
  using type = double;
};
template <class Value>
struct WideOf<Pair<Value>> {
  using type = Pair<double>;
};

template <class Value>
__device__ inline Value shuffle_xor(Value value, int offset) {
  return __shfl_xor_sync(0xffffffffu, value, offset);
}
template <class Value>
__device__ inline Pair<Value> shuffle_xor(Pair<Value> value, int offset) {
  return {shuffle_xor(value.a, offset), shuffle_xor(value.b, offset)};
}

template <class Value>
__device__ inline Value shuffle_from(Value value, int lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}
template <class Value>
__device__ inline Pair<Value> shuffle_from(Pair<Value> value, int lane) {
  return {shuffle_from(value.a, lane), shuffle_from(value.b, lane)};
}

struct Sum {
  template <class Value>
  static __device__ Value zero() {
    return Value(0);
  }
  template <class Value>
  __device__ Value operator()(Value a, Value b) const {
    return a + b;
  }
};

// Of magnitudes: starts at 0 and ignores NaN, as fmax does.
struct Largest {
  template <class Value>
  static __device__ Value zero() {
    return Value(0);
  }
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
  __device__ double operator()(double a, double b) const { return fmax(a, b); }
};

// Whether the GPU has an instruction for it: combine.of_warp(value).
template <class Combine, class Value>
concept CombinesWarps = requires(Combine combine, Value value) { combine.of_warp(value); };

// Over `lanes` neighbouring lanes (a power of two); every lane gets the result.
template <class Value, class Combine>
__device__ inline Value reduce_lanes(Value value, int lanes, Combine combine) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
    value = combine(value, shuffle_xor(value, offset));
  }
  return value;
}

template <class Value, class Combine>
__device__ inline Value reduce_warp(Value value, Combine combine) {
  if constexpr (CombinesWarps<Combine, Value>) {
    return combine.of_warp(value);
  } else {
#pragma unroll
    for (int offset = kWarpLanes / 2; offset > 0; offset /= 2) {
      value = combine(value, shuffle_xor(value, offset));
    }
    return value;
  }
}

// Virtual warps of a warp, each reduced by itself: after each step half of the lanes go on with
// half of them. The tree of reduce_block; the same in every lane.
template <int kItemsPerThread, int kOffset = kWarpLanes / 2, class Value, class Combine>
__device__ inline Value reduce_items(const Value (&values)[kItemsPerThread], Combine combine) {
  if constexpr (kItemsPerThread == 1) {
    return reduce_lanes(values[0], 2 * kOffset, combine);
  } else {
    constexpr int kHalf = kItemsPerThread / 2;
    const bool upper = threadIdx.x & kOffset;
    Value mine[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      mine[i] = combine(upper ? values[kHalf + i] : values[i],
                        shuffle_xor(upper ? values[i] : values[kHalf + i], kOffset));
    }
    const Value all = reduce_items<kHalf, kOffset / 2>(mine, combine);
    return combine(all, shuffle_xor(all, kOffset));
  }
}

// Sums of pairs by the same trees, half the instructions: the lower lanes go on with a, the upper
// with b, and each has its own; joined() gives both to all.
inline constexpr int kHalfWarp = kWarpLanes / 2;
__device__ inline bool in_upper_half() { return threadIdx.x & kHalfWarp; }
template <class Value>
__device__ inline Value sum_halves(const Pair<Value>& pair) {
  const bool upper = in_upper_half();
  Value mine = (upper ? pair.b : pair.a) + shuffle_xor(upper ? pair.a : pair.b, kHalfWarp);
#pragma unroll
  for (int offset = kHalfWarp / 2; offset > 0; offset /= 2) mine += shuffle_xor(mine, offset);
  return mine;
}
template <class Value>
__device__ inline Pair<Value> joined(Value mine) {
  const Value other = shuffle_xor(mine, kHalfWarp);
  return in_upper_half() ? Pair<Value>(other, mine) : Pair<Value>(mine, other);
}

// A pairwise tree over kCount values, unrolled.
template <int kCount, class Value, class Combine>
__device__ inline Value reduce_array(const Value* values, Combine combine) {
  if constexpr (kCount == 1) {
    return values[0];
  } else {
    return combine(reduce_array<kCount / 2>(values, combine),
                   reduce_array<kCount / 2>(values + kCount / 2, combine));
  }
}

// Over a block whose threads play kItemsPerThread virtual threads each, at most kMaxWarps virtual
// warps in all; virtual warp items per thread * warps + warp is `warp`'s part of values[items per
// thread]. The first half writes one value per virtual warp to slots (shared memory of kMaxWarps
// values that nothing else touches before the next barrier), the second, after a barrier, reads
// them all.
template <int kMaxWarps, int kItemsPerThread, class Value, class Combine>
__device__ inline void store_warp_values(const Value (&values)[kItemsPerThread], Value* slots,
                                         Combine combine) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warps = static_cast<int>(blockDim.x) / kWarpLanes;
  Value sums[kItemsPerThread];
#pragma unroll
  for (int items_per_thread = 0; items_per_thread < kItemsPerThread; ++items_per_thread)
    sums[items_per_thread] = values[items_per_thread];
  if constexpr (CombinesWarps<Combine, Value>) {
#pragma unroll
    for (int items_per_thread = 0; items_per_thread < kItemsPerThread; ++items_per_thread)
      sums[items_per_thread] = combine.of_warp(sums[items_per_thread]);
  } else {
    // Step by step for all: one after the other, the second would wait for the first's shuffles.
#pragma unroll
    for (int offset = kWarpLanes / 2; offset > 0; offset /= 2) {
#pragma unroll
      for (int items_per_thread = 0; items_per_thread < kItemsPerThread; ++items_per_thread) {
        sums[items_per_thread] =
            combine(sums[items_per_thread], shuffle_xor(sums[items_per_thread], offset));
      }
    }
  }
#pragma unroll
  for (int items_per_thread = 0; items_per_thread < kItemsPerThread; ++items_per_thread) {
    if (lane == 0) slots[items_per_thread * warps + warp] = sums[items_per_thread];
  }
  if (warp == 0) {
#pragma unroll
    for (int slot = 0; slot < kMaxWarps; slot += kWarpLanes) {
      if (slot + lane >= warps * kItemsPerThread && slot + lane < kMaxWarps) {
        slots[slot + lane] = Combine::template zero<Value>();
      }
    }
  }
}

template <int kMaxWarps, class Value, class Combine>
__device__ inline Value combine_slots(const Value* slots, Combine combine) {
  Value all[kMaxWarps];
#pragma unroll
  for (int i = 0; i < kMaxWarps; ++i) all[i] = slots[i];
  return reduce_array<kMaxWarps>(all, combine);
}

// The same tree with a slot in each lane, by whole warps: half the instructions, more latency.
template <int kMaxWarps, class Value, class Combine>
__device__ inline Value combine_slots_by_lanes(const Value* slots, Combine combine) {
  Value value = slots[static_cast<int>(threadIdx.x) % kMaxWarps];
#pragma unroll
  for (int offset = 1; offset < kMaxWarps; offset *= 2) {
    value = combine(value, shuffle_xor(value, offset));
  }
  return value;
}

// This lane's half of a pair in shared memory, and how a warp's first lanes of each half write it.
template <class Value>
__device__ inline Value half_of(const Pair<Value>& pair) {
  return reinterpret_cast<const Value*>(&pair)[in_upper_half()];
}
template <class Value>
__device__ inline void store_half(Pair<Value>& pair, Value mine) {
  if (threadIdx.x % kHalfWarp == 0) reinterpret_cast<Value*>(&pair)[in_upper_half()] = mine;
}

// Of kHalfWarp slots: lane l has a of slot l, lane kHalfWarp + l b of it.
template <class Value>
__device__ inline Pair<Value> sum_slots(Value mine) {
#pragma unroll
  for (int offset = 1; offset < kHalfWarp; offset *= 2) mine += shuffle_xor(mine, offset);
  return joined(mine);
}

// Both halves. Rounds follow each other as 0, 1, 2 ...: slots are used again after the barrier of
// the round between.
template <int kMaxWarps, int kItemsPerThread, class Value, class Combine>
__device__ inline Value reduce_block(const Value (&values)[kItemsPerThread], int round,
                                     Combine combine) {
  __shared__ alignas(16) Value slots[2][kMaxWarps];
  store_warp_values<kMaxWarps>(values, slots[round % 2], combine);
  __syncthreads();
  if constexpr (CombinesWarps<Combine, Value>) {
    return combine.of_warp(slots[round % 2][static_cast<int>(threadIdx.x) % kMaxWarps]);
  } else if constexpr (std::is_class_v<Value>) {  // of pairs they would take twice the registers
    return combine_slots_by_lanes<kMaxWarps>(slots[round % 2], combine);
  } else {
    return combine_slots<kMaxWarps>(slots[round % 2], combine);
  }
}

}  // namespace membound::cuda
