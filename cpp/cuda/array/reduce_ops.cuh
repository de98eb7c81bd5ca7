// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What reductions compute: Value is what a thread holds, A what it reads. Rows of narrow items are
// reduced into Walked: begin() and end() turn one into the other.
#include "core/array/functors.hpp"
#include "cuda/array/unit.cuh"

namespace membound::cuda {

// What reductions read beside the elements.
template <class A>
struct ReduceContext {
  ReduceOp op;
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

// Sums, products, extreme values and counts. The op is a run-time number outside the loop over the
// elements of a unit, so that each type has one kernel.
template <class A>
struct Accumulation {
  using Value = A;
  using Walked = A;
  using Context = ReduceContext<A>;

  static __device__ A identity(const Context& context) {
    if (context.op == ReduceOp::kProd) return A(1);
    if (context.op != ReduceOp::kMax && context.op != ReduceOp::kMin) return A(0);
    const bool is_max = context.op == ReduceOp::kMax;
    if constexpr (scalar::Number<A>::kFloating) {
      return is_max ? -scalar::Number<A>::kInfinity : scalar::Number<A>::kInfinity;
    } else {
      return is_max ? scalar::Number<A>::kLowest : scalar::Number<A>::kHighest;
    }
  }
  // Calls body(step) with values[i] = step(values[i], x[i], centres[i]) of the op. kDense: loads of
  // vectors; products are not so frequent that they are compiled for those.
  template <bool kDense, class Body>
  static __device__ void with_step(const Context& context, Body&& body) {
    switch (context.op) {
      case ReduceOp::kSum: return body([](A sum, A x, A) { return sum + x; });
      case ReduceOp::kProd:
        if constexpr (!kDense) body([](A product, A x, A) { return product * x; });
        return;
      case ReduceOp::kMin: return body([](A best, A x, A) { return functors::smaller(best, x); });
      case ReduceOp::kMax: return body([](A best, A x, A) { return functors::larger(best, x); });
      case ReduceOp::kSquaredDeviations:
        if constexpr (scalar::Number<A>::kFloating)
          body([](A sum, A x, A centre) { return sum + (x - centre) * (x - centre); });
        return;
      default:
        if constexpr (scalar::kSameType<A, std::uint64_t>) {
          const A magnitude = context.magnitude;
          body([=](A sum, A x, A) { return sum + ((x & magnitude) != 0); });
        }
    }
  }
  template <class Step>
  static __device__ void next(const Step& step, A (&values)[kUnitItems], const A (&x)[kUnitItems],
                              const A (&centres)[kUnitItems], std::int64_t, std::int64_t) {
#pragma unroll
    for (int i = 0; i < kUnitItems; ++i) values[i] = step(values[i], x[i], centres[i]);
  }
  static __device__ void begin(const A (&values)[kUnitItems], Walked (&walked)[kUnitItems]) {
    memcpy(walked, values, sizeof(values));
  }
  template <class Step>
  static __device__ void next(const Step& step, Walked (&walked)[kUnitItems],
                              const A (&x)[kUnitItems], const A (&centres)[kUnitItems], int) {
#pragma unroll
    for (int i = 0; i < kUnitItems; ++i) walked[i] = step(walked[i], x[i], centres[i]);
  }
  template <class Place>
  static __device__ void end(A (&values)[kUnitItems], const Walked (&walked)[kUnitItems],
                             const Place&, int count = kUnitItems) {
#pragma unroll
    for (int i = 0; i < kUnitItems; ++i) values[i] = i < count ? walked[i] : values[i];
  }
  static __device__ A merge(const Context& context, A a, A b) {
    if (context.op == ReduceOp::kProd) return a * b;
    if (context.op == ReduceOp::kMin) return functors::smaller(a, b);
    return context.op == ReduceOp::kMax ? functors::larger(a, b) : a + b;
  }
  static __device__ A finish(const Context& context, A value) {
    if (context.op == ReduceOp::kAny) return A(value != 0);
    if (context.op == ReduceOp::kAll) return A(value == A(context.size));
    if constexpr (scalar::Number<A>::kFloating) return value / context.divisor;
    return value;
  }
};

// The first place of the extreme value, or of a NaN.
template <class A>
struct Place {
  struct Value {
    A value;
    std::int64_t place;  // -1: none
  };
  using Context = ReduceContext<A>;

  static __device__ Value identity(const Context&) { return {A(0), -1}; }
  // Whether a value is better than the best one before it.
  template <bool kDense, class Body>
  static __device__ void with_step(const Context& context, Body&& body) {
    const auto nan_first = [](A best, A x, bool better) {
      if constexpr (scalar::Number<A>::kFloating) return better || (x != x && best == best);
      return better;
    };
    if (context.op == ReduceOp::kArgMin) {
      body([=](A best, A x) { return nan_first(best, x, x < best); });
    } else {
      body([=](A best, A x) { return nan_first(best, x, x > best); });
    }
  }
  // Element i of the unit is at place + i * apart; places of one thread grow.
  template <class Step>
  static __device__ void next(const Step& is_better, Value (&values)[kUnitItems],
                              const A (&x)[kUnitItems], const A (&)[kUnitItems], std::int64_t place,
                              std::int64_t apart) {
#pragma unroll
    for (int i = 0; i < kUnitItems; ++i) {
      if (values[i].place < 0 || is_better(values[i].value, x[i]))
        values[i] = {x[i], place + i * apart};
    }
  }
  // While a thread walks, its places are numbers of units: -1 for none, -2 for the one before.
  struct Walked {
    A value;
    int unit;
  };
  static __device__ void begin(const Value (&values)[kUnitItems], Walked (&walked)[kUnitItems]) {
#pragma unroll
    for (int i = 0; i < kUnitItems; ++i)
      walked[i] = {values[i].value, values[i].place < 0 ? -1 : -2};
  }
  template <class Step>
  static __device__ void next(const Step& is_better, Walked (&walked)[kUnitItems],
                              const A (&x)[kUnitItems], const A (&)[kUnitItems], int unit) {
#pragma unroll
    for (int i = 0; i < kUnitItems; ++i) {
      if (walked[i].unit == -1 || is_better(walked[i].value, x[i])) walked[i] = {x[i], unit};
    }
  }
  // The first `count` of them; place(unit, i) is that of element i of a unit.
  template <class PlaceOf>
  static __device__ void end(Value (&values)[kUnitItems], const Walked (&walked)[kUnitItems],
                             const PlaceOf& place, int count = kUnitItems) {
#pragma unroll
    for (int i = 0; i < kUnitItems; ++i) {
      if (i < count && walked[i].unit >= 0) values[i] = {walked[i].value, place(walked[i].unit, i)};
    }
  }
  static __device__ Value merge(const Context& context, const Value& a, const Value& b) {
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    const bool is_less = context.op == ReduceOp::kArgMin ? b.value < a.value : a.value < b.value;
    const bool is_equal = a.value == b.value || (a_nan && b_nan);
    const bool takes_b =
        a.place < 0 || (is_equal ? b.place < a.place : b_nan || (is_less && !a_nan));
    return takes_b && b.place >= 0 ? b : a;
  }
  static __device__ std::int64_t finish(const Context&, const Value& best) { return best.place; }
};

}  // namespace membound::cuda
