// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/partial_step.hpp"

// Sums of products in one reduction tree per dtype, the same on every instruction set: element i of
// a block goes to lane i % 64 (32 for float64); four elements of a lane are added before they join
// it; lanes are added half to half (bfloat16: even to odd first); blocks are added in twice the
// precision. Short chains matter because equal elements err in one direction: chains of 64 cost 5
// ulp of rstd on a constant row. The baseline has no FMA, so its bits may differ; the other sets
// agree.
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

template <class T>
constexpr int kLanes = sizeof(typename Lanes<T>::A) == 8 ? 32 : 64;
template <class T>
constexpr int kPairs = kLanes<T> / Lanes<T>::kStep;  // vector pairs that hold the lanes
template <class T>
constexpr std::int64_t kBlock = 32 * kLanes<T>;  // elements

// Calls body(pair) for each pair of lane vectors. Unrolled only if the lanes of all kSums sums fit
// half of the vector registers; otherwise (always in SSE2) they stay in memory, and unrolling would
// only cost compile time and code size.
constexpr int kLaneRegisters = kVectorBytes == 64 ? 16 : kVectorBytes == 32 ? 8 : 0;
template <class T, int kSums, class Body>
MEMBOUND_ALWAYS_INLINE void each_pair(Body body) {
  if constexpr (2 * kSums * kPairs<T> <= kLaneRegisters) {
#pragma GCC unroll 16
    for (int pair = 0; pair < kPairs<T>; ++pair) body(pair);
  } else {
#pragma GCC unroll 1
    for (int pair = 0; pair < kPairs<T>; ++pair) body(pair);
  }
}

// Adds upper halves to lower ones. Constant bounds keep the lanes in registers.
template <int kHalf, class V>
MEMBOUND_ALWAYS_INLINE void reduce_halves(V* lanes) {
  if constexpr (kHalf > 0) {
#pragma GCC unroll 16
    for (int lane = 0; lane < kHalf; ++lane) lanes[lane] += lanes[lane + kHalf];
    reduce_halves<kHalf / 2>(lanes);
  }
}

template <class T>
MEMBOUND_ALWAYS_INLINE typename Lanes<T>::A reduce_lanes(typename Lanes<T>::V* lanes) {
  if constexpr (Lanes<T>::kEvenOdd) {
#pragma GCC unroll 16
    for (int pair = 0; pair < kPairs<T>; ++pair)
      lanes[pair] = lanes[2 * pair] + lanes[2 * pair + 1];
    reduce_halves<kPairs<T> / 2>(lanes);
  } else {
    reduce_halves<kPairs<T>>(lanes);
  }
  return horizontal_sum(lanes[0]);
}

// Maximum of half against half, down to one element.
template <class A, int kCount>
struct Largest {
  typedef A Half __attribute__((vector_size(kCount / 2 * sizeof(A))));
  struct Halves {
    Half lower, upper;
  };
  template <class V>
  static MEMBOUND_ALWAYS_INLINE A of(V value) {
    if constexpr (kCount == 2) {
      return value[0] > value[1] ? value[0] : value[1];
    } else {
      const auto halves = bit_copy<Halves>(value);
      return Largest<A, kCount / 2>::of(halves.lower > halves.upper ? halves.lower : halves.upper);
    }
  }
};
template <class A, class V>
MEMBOUND_ALWAYS_INLINE A horizontal_largest(V value) {
  return Largest<A, sizeof(V) / sizeof(A)>::of(value);
}

struct NoHook {
  MEMBOUND_ALWAYS_INLINE void operator()(std::int64_t) const {}
};

// What a sum adds for each element: the product of two values, or `left` alone.
template <class V>
struct Factors {
  Pair<V> left, right;
};

template <class V>
MEMBOUND_ALWAYS_INLINE Pair<V> first_of(const Factors<V>& term, bool product) {
  if (!product) return term.left;
  return {term.left.first * term.right.first, term.left.second * term.right.second};
}
template <class V>
MEMBOUND_ALWAYS_INLINE Pair<V> added(Pair<V> sum, const Factors<V>& term, bool product) {
  if (!product) return {sum.first + term.left.first, sum.second + term.left.second};
  return {multiply_add(term.left.first, term.right.first, sum.first),
          multiply_add(term.left.second, term.right.second, sum.second)};
}

// Takes Terms::kSums sums over at most kBlock columns from `first` on, the first Terms::kProducts
// of them sums of products. terms.whole(col, factors) sets the Factors of one step for each sum;
// terms.partial(col, count, factors) those of a partial step, padded with zeros. hook(col) runs
// before the columns up to col are read, so that prefetches can share the loop.
template <class T, class Terms, class Hook = NoHook>
MEMBOUND_ALWAYS_INLINE void sums_of_block(const Terms& terms, std::int64_t first, std::int64_t cols,
                                          typename Lanes<T>::A* sums, Hook hook = {}) {
  using Row = Lanes<T>;
  using V = typename Row::V;
  constexpr int kSums = Terms::kSums;
  V lanes[kSums][2 * kPairs<T>] = {};
  Factors<V> term[kSums];
  const auto join = [&](int pair, const Factors<V>* of_sums) MEMBOUND_INLINED {
#pragma GCC unroll 8
    for (int sum = 0; sum < kSums; ++sum) {
      V* lane = lanes[sum] + 2 * pair;
      const Pair<V> value = added<V>({lane[0], lane[1]}, of_sums[sum], sum < Terms::kProducts);
      lane[0] = value.first;
      lane[1] = value.second;
    }
  };
  std::int64_t col = 0;
  for (; col + 4 * kLanes<T> <= cols; col += 4 * kLanes<T>) {
    hook(first + col + 4 * kLanes<T>);
    each_pair<T, kSums>([&](int pair) MEMBOUND_INLINED {
      const std::int64_t at = first + col + pair * Row::kStep;
      Pair<V> chain[kSums];
      terms.whole(at, term);
#pragma GCC unroll 8
      for (int sum = 0; sum < kSums; ++sum)
        chain[sum] = first_of(term[sum], sum < Terms::kProducts);
#pragma GCC unroll 3
      for (int visit = 1; visit < 4; ++visit) {
        terms.whole(at + visit * kLanes<T>, term);
#pragma GCC unroll 8
        for (int sum = 0; sum < kSums; ++sum)
          chain[sum] = added(chain[sum], term[sum], sum < Terms::kProducts);
      }
#pragma GCC unroll 8
      for (int sum = 0; sum < kSums; ++sum) {
        lanes[sum][2 * pair] += chain[sum].first;
        lanes[sum][2 * pair + 1] += chain[sum].second;
      }
    });
  }
  hook(first + cols);
  for (; col + kLanes<T> <= cols; col += kLanes<T>) {
    each_pair<T, kSums>([&](int pair) MEMBOUND_INLINED {
      terms.whole(first + col + pair * Row::kStep, term);
      join(pair, term);
    });
  }
  each_pair<T, kSums>([&](int pair) MEMBOUND_INLINED {
    const std::int64_t at = col + pair * Row::kStep;
    const std::int64_t left = cols - at;
    if (left <= 0) return;
    if (left >= Row::kStep) {
      terms.whole(first + at, term);
      join(pair, term);
    } else {
      Factors<V> last[kSums];
      terms.partial(first + at, left, last);
      join(pair, last);
    }
  });
#pragma GCC unroll 8
  for (int sum = 0; sum < kSums; ++sum) sums[sum] = reduce_lanes<T>(lanes[sum]);
}

// The same sums, bit for bit, for rows of at most one step: all other lanes would be zero.
template <class T, class Terms, class Hook>
MEMBOUND_ALWAYS_INLINE void sums_of_step(const Terms& terms, std::int64_t cols,
                                         typename Lanes<T>::A* sums, Hook hook) {
  using V = typename Lanes<T>::V;
  Factors<V> term[Terms::kSums];
  hook(cols);
  cols == Lanes<T>::kStep ? terms.whole(0, term) : terms.partial(0, cols, term);
#pragma GCC unroll 8
  for (int sum = 0; sum < Terms::kSums; ++sum) {
    const Pair<V> value = added<V>(Pair<V>{}, term[sum], sum < Terms::kProducts);
    sums[sum] = horizontal_sum(value.first + value.second);
  }
}

// The same sum, bit for bit, of a few steps in registers.
template <class T, int kSteps>
MEMBOUND_ALWAYS_INLINE typename Lanes<T>::A sum_of_steps(
    const Pair<typename Lanes<T>::V> (&values)[kSteps]) {
  if constexpr (kSteps == 1) return horizontal_sum(values[0].first + values[0].second);
  typename Lanes<T>::V lanes[2 * kPairs<T>] = {};
  static_assert(kSteps < 4 * kPairs<T>);  // else four values of a lane add up before they join it
#pragma GCC unroll 4
  for (int step = 0; step < kSteps; ++step) {
    auto* const lane = lanes + 2 * (step % kPairs<T>);
    lane[0] = step < kPairs<T> ? values[step].first : lane[0] + values[step].first;
    lane[1] = step < kPairs<T> ? values[step].second : lane[1] + values[step].second;
  }
  return reduce_lanes<T>(lanes);
}

// Adds up blocks: float in double, and double with Kahan-style compensation (TwoSum).
template <class A>
struct BlockSum {
  double total = 0;
  double lost = 0;

  MEMBOUND_ALWAYS_INLINE void add(A block) {
    const double before = total;
    total += block;
    if constexpr (sizeof(A) == 8) {
      const double part = total - before;
      lost += (before - (total - part)) + (block - part);
    }
  }
  MEMBOUND_ALWAYS_INLINE A value() const {
    // An infinite or NaN total has a NaN for its error.
    return static_cast<A>(lost == lost ? total + lost : total);
  }
};

// Sums over whole rows.
template <class T, class Terms, class Hook = NoHook>
MEMBOUND_ALWAYS_INLINE void sums_of_rows(const Terms& terms, std::int64_t cols,
                                         typename Lanes<T>::A* sums, Hook hook = {}) {
  using A = typename Lanes<T>::A;
  if (cols <= Lanes<T>::kStep) return sums_of_step<T>(terms, cols, sums, hook);
  if (cols <= kBlock<T>) return sums_of_block<T>(terms, 0, cols, sums, hook);
  BlockSum<A> totals[Terms::kSums];
  for (std::int64_t first = 0; first < cols; first += kBlock<T>) {
    const std::int64_t count = cols - first < kBlock<T> ? cols - first : kBlock<T>;
    A parts[Terms::kSums];
    sums_of_block<T>(terms, first, count, parts, hook);
    for (int sum = 0; sum < Terms::kSums; ++sum) totals[sum].add(parts[sum]);
  }
  for (int sum = 0; sum < Terms::kSums; ++sum) sums[sum] = totals[sum].value();
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
