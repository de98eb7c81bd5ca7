// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reductions in a fixed order: butterfly shuffles within a warp, then a pairwise tree over the
// warps of a block.
#include <cstdint>
#include <type_traits>

namespace membound::cuda {

inline constexpr int kWarpLanes = 32;

__device__ inline int log2_of(int power_of_two) { return 31 - __clz(power_of_two); }

// Two sums that are reduced together.
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

// The maximum of magnitudes: starts at 0 and ignores NaN, as fmax does.
struct Largest {
  template <class Value>
  static __device__ Value zero() {
    return Value(0);
  }
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
  __device__ double operator()(double a, double b) const { return fmax(a, b); }
};

// Whether the GPU reduces a warp with one instruction: combine.of_warp(value).
template <class Combine, class Value>
concept CombinesWarps = requires(Combine combine, Value value) { combine.of_warp(value); };

// Reduces over `lanes` adjacent lanes (a power of two); every lane gets the result.
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

// Reduces kItemsPerThread virtual warps that share the lanes of one warp, in the tree of
// reduce_block. After each step half of the lanes continue with half of the virtual warps. Every
// lane gets the result.
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

// Sums of a Pair in the same tree with half the instructions: the lower half-warp continues with a,
// the upper with b. Each lane gets one of the two sums; joined() gives both to all.
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

// Block reductions over at most kMaxWarps virtual warps, where each thread takes kItemsPerThread
// items: values[item] of a warp belongs to virtual warp item * warps + warp. store_warp_values()
// writes one value per virtual warp to slots, shared memory of kMaxWarps values that nothing else
// may touch before the next barrier. After that barrier combine_slots() reads them all.
template <int kMaxWarps, int kItemsPerThread, class Value, class Combine>
__device__ inline void store_warp_values(const Value (&values)[kItemsPerThread], Value* slots,
                                         Combine combine) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warps = static_cast<int>(blockDim.x) / kWarpLanes;
  Value sums[kItemsPerThread];
#pragma unroll
  for (int item = 0; item < kItemsPerThread; ++item) sums[item] = values[item];
  if constexpr (CombinesWarps<Combine, Value>) {
#pragma unroll
    for (int item = 0; item < kItemsPerThread; ++item) sums[item] = combine.of_warp(sums[item]);
  } else {
    // Step by step for all items: item by item, shuffle latencies would add up.
#pragma unroll
    for (int offset = kWarpLanes / 2; offset > 0; offset /= 2) {
#pragma unroll
      for (int item = 0; item < kItemsPerThread; ++item) {
        sums[item] = combine(sums[item], shuffle_xor(sums[item], offset));
      }
    }
  }
#pragma unroll
  for (int item = 0; item < kItemsPerThread; ++item) {
    if (lane == 0) slots[item * warps + warp] = sums[item];
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

// The same tree with one slot per lane, in whole warps: half the instructions, more latency.
template <int kMaxWarps, class Value, class Combine>
__device__ inline Value combine_slots_by_lanes(const Value* slots, Combine combine) {
  Value value = slots[static_cast<int>(threadIdx.x) % kMaxWarps];
#pragma unroll
  for (int offset = 1; offset < kMaxWarps; offset *= 2) {
    value = combine(value, shuffle_xor(value, offset));
  }
  return value;
}

// half_of() loads this lane's half of a Pair in shared memory. store_half() writes it from the
// first lane of each half-warp.
template <class Value>
__device__ inline Value half_of(const Pair<Value>& pair) {
  return reinterpret_cast<const Value*>(&pair)[in_upper_half()];
}
template <class Value>
__device__ inline void store_half(Pair<Value>& pair, Value mine) {
  if (threadIdx.x % kHalfWarp == 0) reinterpret_cast<Value*>(&pair)[in_upper_half()] = mine;
}

// Sums kHalfWarp slots: lane l has a of slot l, lane kHalfWarp + l has b of slot l.
template <class Value>
__device__ inline Pair<Value> sum_slots(Value mine) {
#pragma unroll
  for (int offset = 1; offset < kHalfWarp; offset *= 2) mine += shuffle_xor(mine, offset);
  return joined(mine);
}

// Stores and combines, with the barrier in between. Rounds count 0, 1, 2 ... and alternate between
// two buffers: a buffer is reused only after the barrier of the round in between. kMayBeHalf: most
// blocks have at most half of the virtual warps, whose tree is the same.
template <int kMaxWarps, bool kMayBeHalf = false, int kItemsPerThread, class Value, class Combine>
__device__ inline Value reduce_block(const Value (&values)[kItemsPerThread], int round,
                                     Combine combine) {
  __shared__ alignas(16) Value slots[2][kMaxWarps];
  store_warp_values<kMaxWarps>(values, slots[round % 2], combine);
  __syncthreads();
  if constexpr (CombinesWarps<Combine, Value>) {
    return combine.of_warp(slots[round % 2][static_cast<int>(threadIdx.x) % kMaxWarps]);
  } else if constexpr (std::is_class_v<Value>) {  // as an array: twice the registers
    return combine_slots_by_lanes<kMaxWarps>(slots[round % 2], combine);
  } else {
    if (kMayBeHalf && blockDim.x * kItemsPerThread <= kMaxWarps * kWarpLanes / 2)
      return combine_slots<kMaxWarps / 2>(slots[round % 2], combine);
    return combine_slots<kMaxWarps>(slots[round % 2], combine);
  }
}

}  // namespace membound::cuda
