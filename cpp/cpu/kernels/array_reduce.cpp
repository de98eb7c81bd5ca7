// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/array/functors.hpp"
#include "cpu/kernels/array.hpp"
#include "cpu/kernels/array_types.hpp"
#include "cpu/pairwise.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(kVectorBytes)));
};

// The functors on vectors.
struct VectorAdd : functors::Add {
  template <class V>
  static MEMBOUND_ALWAYS_INLINE V vectors(V a, V b) {
    return a + b;
  }
};
struct VectorMultiply : functors::Multiply {
  template <class V>
  static MEMBOUND_ALWAYS_INLINE V vectors(V a, V b) {
    return a * b;
  }
};
struct VectorMinimum : functors::Minimum {
  template <class V>
  static MEMBOUND_ALWAYS_INLINE V vectors(V a, V b) {
    return (a <= b) | (a != a) ? a : b;
  }
};
struct VectorMaximum : functors::Maximum {
  template <class V>
  static MEMBOUND_ALWAYS_INLINE V vectors(V a, V b) {
    return (a >= b) | (a != a) ? a : b;
  }
};

// In a loop of few steps: compilers would make ten times the code of it.
MEMBOUND_ALWAYS_INLINE void keep_scalar() { asm volatile(""); }

// The lanes of a block, in vectors. Integers may have more than kTreeLanes: their order is free.
template <class F, class T>
struct Lanes32 {
  using V = typename VectorOf<T>::type;
  static constexpr int kPerVector = kVectorBytes / sizeof(T);
  static constexpr int kVectors = kPerVector >= kTreeLanes ? 2 : kTreeLanes / kPerVector;
  static constexpr std::int64_t kLanes = kVectors * kPerVector;

  [[gnu::noinline]] static T block(const T* x, std::int64_t count) {
    T lanes[kLanes];
    std::int64_t at = kLanes;
    if (count >= kLanes) {
      V sums[kVectors];
      for (int i = 0; i < kVectors; ++i) sums[i] = load<V>(x + i * kPerVector);
      for (; at + kLanes <= count; at += kLanes) {
        for (int i = 0; i < kVectors; ++i)
          sums[i] = F::vectors(sums[i], load<V>(x + at + i * kPerVector));
      }
      for (int i = 0; i < kVectors; ++i) store(lanes + i * kPerVector, sums[i]);
    } else {
      for (std::int64_t i = 0; i < count; ++i) {
        keep_scalar();
        lanes[i] = x[i];
      }
    }
    for (std::int64_t i = 0; at + i < count; ++i) {
      keep_scalar();
      lanes[i] = F::apply(lanes[i], x[at + i]);
    }
    const std::int64_t filled = count < kLanes ? count : kLanes;
    for (std::int64_t half = kLanes / 2; half > 0; half /= 2) {
      for (std::int64_t i = 0; i < half && i + half < filled; ++i) {
        keep_scalar();
        lanes[i] = F::apply(lanes[i], lanes[i + half]);
      }
    }
    return lanes[0];
  }

  static T row(const T* x, std::int64_t count) {
    if (count <= kTreeBlock) return block(x, count);
    T stack[kTreeLevels];
    int depth = 0;
    PairwiseCounter counter;
    for (std::int64_t at = 0; at < count; at += kTreeBlock) {
      T total = block(x + at, count - at < kTreeBlock ? count - at : kTreeBlock);
      for (int merges = counter.merges_of_next(); merges > 0; --merges)
        total = F::apply(stack[--depth], total);
      stack[depth++] = total;
    }
    T total = stack[--depth];
    while (depth > 0) total = F::apply(stack[--depth], total);
    return total;
  }

  static void rows(const ArrayRows& rows) {
    const T* x = static_cast<const T*>(rows.values);
    T* results = static_cast<T*>(rows.results);
    for (std::int64_t at = 0; at < rows.rows; ++at)
      results[at] = row(x + at * rows.row_stride, rows.count);
  }
};

template <class F>
void reduce_sums(const ArrayRows& rows) {
  switch (rows.dtype) {
    case DType::kUInt64: return Lanes32<F, std::uint64_t>::rows(rows);
    case DType::kFloat32: return Lanes32<F, float>::rows(rows);
    case DType::kFloat64: return Lanes32<F, double>::rows(rows);
    default: return;
  }
}

template <class F>
void reduce_extremes(const ArrayRows& rows) {
  with_type(rows.dtype, [&]<class T>(TypeTag<T>) MEMBOUND_INLINED {
    if constexpr (scalar::kSameType<T, bool>) {
      Lanes32<F, std::uint8_t>::rows(rows);
    } else {
      Lanes32<F, T>::rows(rows);
    }
  });
}

}  // namespace

void array_reduce_rows(const ArrayRows& rows) {
  switch (rows.op) {
    case ElementwiseOp::kAdd: return reduce_sums<VectorAdd>(rows);
    case ElementwiseOp::kMultiply: return reduce_sums<VectorMultiply>(rows);
    case ElementwiseOp::kMinimum: return reduce_extremes<VectorMinimum>(rows);
    default: return reduce_extremes<VectorMaximum>(rows);
  }
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
