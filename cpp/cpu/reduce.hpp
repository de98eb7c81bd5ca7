// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/vec.hpp"

// Sums of products in one fixed tree per dtype, the same on every instruction set: element i of a
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

// The lanes would take all 16 registers of SSE2: there they stay in memory,
// and unrolling would only make the compiler work (float16: two minutes).
#if defined(__SSE2__) && !defined(__AVX2__)
constexpr int kUnrolledPairs = 1;
#else
constexpr int kUnrolledPairs = 16;
#endif

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

// What is added up: the products of two values per element.
template <class V>
struct Factors {
  Pair<V> left, right;
};

// Sums of terms over at most kBlock columns from `first` on, of Terms::kRows rows at once.
// terms.whole(col, factors) sets the Factors of one step for each row, terms.partial(col, count,
// factors) those of less, zeros behind them. company(col) is called before the columns up to col
// are read, so that other work can share the loop.
template <class T, class Terms, class Company = NoCompany>
MEMBOUND_ALWAYS_INLINE void sums_of_block(const Terms& terms, std::int64_t first, std::int64_t cols,
                                          typename Lanes<T>::A* sums, Company company = {}) {
  using Row = Lanes<T>;
  using V = typename Row::V;
  constexpr int kRows = Terms::kRows;
  V lanes[kRows][2 * kPairs<T>] = {};
  Factors<V> term[kRows];
  const auto add_to = [&](int pair, const Factors<V>* terms_of_rows) {
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      V* lane = lanes[row] + 2 * pair;
      const Factors<V>& t = terms_of_rows[row];
      lane[0] = multiply_add(t.left.first, t.right.first, lane[0]);
      lane[1] = multiply_add(t.left.second, t.right.second, lane[1]);
    }
  };
  std::int64_t col = 0;
  for (; col + 4 * kLanes<T> <= cols; col += 4 * kLanes<T>) {
    company(first + col + 4 * kLanes<T>);
#pragma GCC unroll kUnrolledPairs
    for (int pair = 0; pair < kPairs<T>; ++pair) {
      const std::int64_t at = first + col + pair * Row::kStep;
      Pair<V> chain[kRows];
      terms.whole(at, term);
#pragma GCC unroll 4
      for (int row = 0; row < kRows; ++row) {
        const Factors<V>& t = term[row];
        chain[row] = {t.left.first * t.right.first, t.left.second * t.right.second};
      }
#pragma GCC unroll 3
      for (int visit = 1; visit < 4; ++visit) {
        terms.whole(at + visit * kLanes<T>, term);
#pragma GCC unroll 4
        for (int row = 0; row < kRows; ++row) {
          const Factors<V>& t = term[row];
          chain[row] = {multiply_add(t.left.first, t.right.first, chain[row].first),
                        multiply_add(t.left.second, t.right.second, chain[row].second)};
        }
      }
#pragma GCC unroll 4
      for (int row = 0; row < kRows; ++row) {
        lanes[row][2 * pair] += chain[row].first;
        lanes[row][2 * pair + 1] += chain[row].second;
      }
    }
  }
  company(first + cols);
  for (; col + kLanes<T> <= cols; col += kLanes<T>) {
#pragma GCC unroll kUnrolledPairs
    for (int pair = 0; pair < kPairs<T>; ++pair) {
      terms.whole(first + col + pair * Row::kStep, term);
      add_to(pair, term);
    }
  }
#pragma GCC unroll kUnrolledPairs
  for (int pair = 0; pair < kPairs<T>; ++pair) {
    const std::int64_t at = col + pair * Row::kStep;
    const std::int64_t left = cols - at;
    if (left <= 0) break;
    if (left >= Row::kStep) {
      terms.whole(first + at, term);
      add_to(pair, term);
    } else {
      Factors<V> last[kRows];
      terms.partial(first + at, left, last);
      add_to(pair, last);
    }
  }
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) sums[row] = fold<T>(lanes[row]);
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

// Sums of terms over whole rows.
template <class T, class Terms, class Company = NoCompany>
MEMBOUND_ALWAYS_INLINE void sums_of_rows(const Terms& terms, std::int64_t cols,
                                         typename Lanes<T>::A* sums, Company company = {}) {
  using A = typename Lanes<T>::A;
  if (cols <= kBlock<T>) return sums_of_block<T>(terms, 0, cols, sums, company);
  BlockSum<A> totals[Terms::kRows];
  for (std::int64_t first = 0; first < cols; first += kBlock<T>) {
    const std::int64_t count = cols - first < kBlock<T> ? cols - first : kBlock<T>;
    A parts[Terms::kRows];
    sums_of_block<T>(terms, first, count, parts, company);
    for (int row = 0; row < Terms::kRows; ++row) totals[row].add(parts[row]);
  }
  for (int row = 0; row < Terms::kRows; ++row) sums[row] = totals[row].value();
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
