// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What reductions compute: Value is what a thread holds, A what it reads. While it walks over units
// at equal steps it holds a RowWalk, whose elements are of one result, or a ColumnWalk, whose
// elements are of four.
#include "core/array/functors.hpp"
#include "cuda/array/unit.cuh"

namespace membound::cuda {

// What reductions read beside the elements. Minima are maxima of elements in reversed order, -x of
// floats and ~x of integers: the bits of `reverse` change in the words of a unit.
template <class A>
struct ReduceContext {
  ReduceOp op;  // not kMin, kArgMin
  bool is_reversed;
  std::uint32_t reverse[2];  // of even and of odd words
  A divisor;
  A magnitude;        // kAny, kAll: the bits that are not the sign, A is unsigned
  std::int64_t size;  // elements of one result
};

template <class Value>
__device__ inline Value shuffled(Value value, int offset) {
  static_assert(sizeof(Value) % 4 == 0);
  std::uint32_t words[sizeof(Value) / 4];
  memcpy(words, &value, sizeof(Value));
#pragma unroll
  for (std::uint32_t& word : words) word = __shfl_xor_sync(0xffffffffu, word, offset);
  memcpy(&value, words, sizeof(Value));
  return value;
}

template <class A, int kItems>
__device__ inline void reverse_order(const ReduceContext<A>& context, RawUnit<A, kItems>& raw) {
#pragma unroll
  for (int word = 0; word < RawUnit<A, kItems>::kWords; ++word)
    raw.words[word] ^= context.reverse[word % 2];
}
template <class A>
__device__ inline A reversed_order(A value) {
  if constexpr (scalar::Number<A>::kFloating)
    return -value;
  else
    return ~value;
}
// What no number is below.
template <class A>
__device__ inline A lowest() {
  if constexpr (scalar::Number<A>::kFloating)
    return -scalar::Number<A>::kInfinity;
  else
    return scalar::Number<A>::kLowest;
}

// Sums, products, extreme values and counts. The op is a run-time number outside the loop over the
// elements of a unit, so that each type has one kernel.
template <class A>
struct Accumulation {
  using Value = A;
  struct RowWalk {
    A values[kUnitItems];
  };
  using ColumnWalk = RowWalk;
  using Context = ReduceContext<A>;

  static __device__ A identity(const Context& context) {
    if (context.op == ReduceOp::kProd) return A(1);
    return context.op == ReduceOp::kMax ? lowest<A>() : A(0);
  }
  // Calls body(step, reverses) with values[i] = step(values[i], x[i], centres[i]); reverses: x may
  // be in reversed order. kDense: loads of vectors, which rare products are not compiled for.
  template <bool kDense, class Body>
  static __device__ void with_step(const Context& context, Body&& body) {
    constexpr std::false_type kAsIs;
    switch (context.op) {
      case ReduceOp::kSum: return body([](A sum, A x, A) { return sum + x; }, kAsIs);
      case ReduceOp::kProd:
        if constexpr (!kDense) body([](A product, A x, A) { return product * x; }, kAsIs);
        return;
      case ReduceOp::kMax:
        return body([](A best, A x, A) { return functors::larger(best, x); }, std::true_type{});
      case ReduceOp::kSquaredDeviations:
        if constexpr (scalar::Number<A>::kFloating)
          body([](A sum, A x, A centre) { return sum + (x - centre) * (x - centre); }, kAsIs);
        return;
      default:
        if constexpr (scalar::kSameType<A, std::uint64_t>) {
          const A magnitude = context.magnitude;
          body([=](A sum, A x, A) { return sum + ((x & magnitude) != 0); }, kAsIs);
        }
    }
  }
  template <class Walk>
  static __device__ Walk begin(const Context&, const A (&values)[kUnitItems]) {
    Walk walk;
    memcpy(walk.values, values, sizeof(values));
    return walk;
  }
  template <class Step>
  static __device__ void next(const Step& step, RowWalk& walk, const A (&x)[kUnitItems],
                              const A (&centres)[kUnitItems], int) {
#pragma unroll
    for (int i = 0; i < kUnitItems; ++i) walk.values[i] = step(walk.values[i], x[i], centres[i]);
  }
  template <class PlaceOf>
  static __device__ void end(const Context&, A (&values)[kUnitItems], const RowWalk& walk,
                             const PlaceOf&, int count) {
#pragma unroll
    for (int i = 0; i < kUnitItems; ++i) values[i] = i < count ? walk.values[i] : values[i];
  }
  static __device__ A merge(const Context& context, A a, A b) {
    if (context.op == ReduceOp::kProd) return a * b;
    return context.op == ReduceOp::kMax ? functors::larger(a, b) : a + b;
  }
  static __device__ A finish(const Context& context, A value) {
    if (context.op == ReduceOp::kAny) return A(value != 0);
    if (context.op == ReduceOp::kAll) return A(value == A(context.size));
    if (context.is_reversed) return reversed_order(value);
    if constexpr (scalar::Number<A>::kFloating) return value / context.divisor;
    return value;
  }
};

// The first place of the largest value, or of a NaN.
template <class A>
struct Place {
  struct Value {
    A value;
    std::int64_t place;  // -1: none
  };
  using Context = ReduceContext<A>;

  // The first unit that has the largest value.
  struct RowWalk {
    A largest, x[kUnitItems];
    int unit;
  };
  struct ColumnWalk {
    A x[kUnitItems];
    int units[kUnitItems];
  };

  static __device__ Value identity(const Context&) { return {A(0), -1}; }
  struct Step {};
  // Whether x comes before the largest value so far, which a NaN stays.
  static __device__ bool is_larger(A x, A largest) { return !(x <= largest) && largest == largest; }
  template <bool kDense, class Body>
  static __device__ void with_step(const Context&, Body&& body) {
    body(Step{}, std::true_type{});
  }
  // The first unit counts though it may be no larger than this.
  template <class Walk>
  static __device__ Walk begin(const Context&, const Value (&)[kUnitItems]) {
    const A least = lowest<A>();
    if constexpr (scalar::kSameType<Walk, RowWalk>)
      return {least, {least, least, least, least}, 0};
    else
      return {{least, least, least, least}, {}};
  }
  static __device__ void next(Step, RowWalk& walk, const A (&x)[kUnitItems],
                              const A (&)[kUnitItems], int unit) {
    using functors::larger;
    const A best = larger(larger(x[0], x[1]), larger(x[2], x[3]));
    if (is_larger(best, walk.largest)) walk = {best, {x[0], x[1], x[2], x[3]}, unit};
  }
  static __device__ void next(Step, ColumnWalk& walk, const A (&x)[kUnitItems],
                              const A (&)[kUnitItems], int unit) {
#pragma unroll
    for (int i = 0; i < kUnitItems; ++i) {
      if (is_larger(x[i], walk.x[i])) walk.x[i] = x[i], walk.units[i] = unit;
    }
  }
  // place(unit, i) is that of element i of a unit. Elements after a row's end repeat the first.
  template <class PlaceOf>
  static __device__ void end(const Context& context, Value (&values)[kUnitItems],
                             const RowWalk& walk, const PlaceOf& place, int) {
    int first = 0;
#pragma unroll
    for (int i = kUnitItems - 1; i >= 0; --i) {
      if (walk.x[i] == walk.largest || walk.x[i] != walk.x[i]) first = i;
    }
    values[0] = merge(context, values[0], {walk.largest, place(walk.unit, first)});
  }
  template <class PlaceOf>
  static __device__ void end(const Context& context, Value (&values)[kUnitItems],
                             const ColumnWalk& walk, const PlaceOf& place, int) {
#pragma unroll
    for (int i = 0; i < kUnitItems; ++i)
      values[i] = merge(context, values[i], {walk.x[i], place(walk.units[i], i)});
  }
  static __device__ Value merge(const Context&, const Value& a, const Value& b) {
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    const bool is_equal = a.value == b.value || (a_nan && b_nan);
    const bool takes_b =
        a.place < 0 || (is_equal ? b.place < a.place : b_nan || (a.value < b.value && !a_nan));
    return takes_b && b.place >= 0 ? b : a;
  }
  static __device__ std::int64_t finish(const Context&, const Value& best) { return best.place; }
};

}  // namespace membound::cuda
