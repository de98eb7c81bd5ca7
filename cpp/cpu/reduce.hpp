// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/vec.hpp"

// Sums of squares in one fixed tree per dtype, the same on every instruction set: element i of a
// block goes to lane i % 64 (32 for float64), four visits of a lane add up before they join it,
// lanes fold by halves (bfloat16: even onto odd first), blocks add up in twice the precision.
// Chains stay short because equal elements err in one direction: 64 additions in a row cost 5 ulp
// of rstd on a constant row. Products are rounded before they are added only where the CPU has no
// fused multiply-add (baseline): its bits may differ from the other sets, which agree.
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

template <class T>
constexpr int kLanes = sizeof(typename Lanes<T>::A) == 8 ? 32 : 64;
template <class T>
constexpr int kPairs = kLanes<T> / Lanes<T>::kStep;  // of registers that make up the lanes
template <class T>
constexpr std::int64_t kBlock = 32 * kLanes<T>;  // elements

// Upper halves onto lower ones; constant bounds keep the lanes in registers.
template <int kHalf, class V>
MEMBOUND_ALWAYS_INLINE void fold_halves(V* lanes) {
  if constexpr (kHalf > 0) {
#pragma GCC unroll 16
    for (int lane = 0; lane < kHalf; ++lane) lanes[lane] += lanes[lane + kHalf];
    fold_halves<kHalf / 2>(lanes);
  }
}

template <class T>
MEMBOUND_ALWAYS_INLINE typename Lanes<T>::A fold(typename Lanes<T>::V* lanes) {
  if constexpr (Lanes<T>::kEvenOdd) {
#pragma GCC unroll 16
    for (int pair = 0; pair < kPairs<T>; ++pair)
      lanes[pair] = lanes[2 * pair] + lanes[2 * pair + 1];
    fold_halves<kPairs<T> / 2>(lanes);
  } else {
    fold_halves<kPairs<T>>(lanes);
  }
  return horizontal_sum(lanes[0]);
}

struct NoCompany {
  MEMBOUND_ALWAYS_INLINE void operator()(std::int64_t) const {}
};

// Sum of (x * scale)^2 over at most kBlock contiguous elements. company(col) is called before the
// elements up to col are read, so that other work can share the loop.
template <class T, bool kScaled = false, class Company = NoCompany>
MEMBOUND_ALWAYS_INLINE typename Lanes<T>::A sum_squares_of_block(const T* x, std::int64_t cols,
                                                                 [[maybe_unused]]
                                                                 typename Lanes<T>::A scale = 1,
                                                                 Company company = {}) {
  using Row = Lanes<T>;
  using Values = Pair<typename Row::V>;
  const auto read = [&](const T* from) -> Values {
    Values value = Row::read(from);
    if constexpr (kScaled) {
      value.first *= scale;
      value.second *= scale;
    }
    return value;
  };
  const auto square = [](Values value) -> Values {
    return {value.first * value.first, value.second * value.second};
  };
  const auto plus_square = [](Values sum, Values value) -> Values {
    return {multiply_add(value.first, value.first, sum.first),
            multiply_add(value.second, value.second, sum.second)};
  };
  typename Row::V lanes[2 * kPairs<T>] = {};
  const auto join = [&](int pair, Values sum) {
    lanes[2 * pair] += sum.first;
    lanes[2 * pair + 1] += sum.second;
  };
  const auto add_to = [&](int pair, Values value) {
    lanes[2 * pair] = multiply_add(value.first, value.first, lanes[2 * pair]);
    lanes[2 * pair + 1] = multiply_add(value.second, value.second, lanes[2 * pair + 1]);
  };
  std::int64_t col = 0;
  for (; col + 4 * kLanes<T> <= cols; col += 4 * kLanes<T>) {
    company(col + 4 * kLanes<T>);
#pragma GCC unroll 16
    for (int pair = 0; pair < kPairs<T>; ++pair) {
      const T* from = x + col + pair * Row::kStep;
      Values sum = square(read(from));
#pragma GCC unroll 3
      for (int visit = 1; visit < 4; ++visit)
        sum = plus_square(sum, read(from + visit * kLanes<T>));
      join(pair, sum);
    }
  }
  company(cols);
  for (; col + kLanes<T> <= cols; col += kLanes<T>) {
#pragma GCC unroll 16
    for (int pair = 0; pair < kPairs<T>; ++pair) {
      add_to(pair, read(x + col + pair * Row::kStep));
    }
  }
#pragma GCC unroll 16
  for (int pair = 0; pair < kPairs<T>; ++pair) {
    const T* from = x + col + pair * Row::kStep;
    const std::int64_t left = cols - col - pair * Row::kStep;
    if (left <= 0) break;
    if (left >= Row::kStep) {
      add_to(pair, read(from));
      continue;
    }
    T padded[Row::kStep] = {};
    __builtin_memcpy(padded, from, left * sizeof(T));
    add_to(pair, read(padded));
  }
  return fold<T>(lanes);
}

// Adds up blocks: float in double, double with the error of each addition kept.
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

template <class T, class Company = NoCompany>
MEMBOUND_ALWAYS_INLINE typename Lanes<T>::A sum_squares(const T* x, std::int64_t cols,
                                                        Company company = {}) {
  if (cols <= kBlock<T>) return sum_squares_of_block<T, false>(x, cols, 1, company);
  BlockSum<typename Lanes<T>::A> sum;
  for (std::int64_t first = 0; first < cols; first += kBlock<T>) {
    const std::int64_t count = cols - first < kBlock<T> ? cols - first : kBlock<T>;
    sum.add(sum_squares_of_block<T, false>(x + first, count, typename Lanes<T>::A{1},
                                           [&](std::int64_t col) { company(first + col); }));
  }
  return sum.value();
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
