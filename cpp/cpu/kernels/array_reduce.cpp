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
// Not for NaNs, which Extremes looks for.
struct VectorMinimum : functors::Minimum {
  template <class V>
  static MEMBOUND_ALWAYS_INLINE V vectors(V a, V b) {
    return a < b ? a : b;
  }
};
struct VectorMaximum : functors::Maximum {
  template <class V>
  static MEMBOUND_ALWAYS_INLINE V vectors(V a, V b) {
    return a > b ? a : b;
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
    std::int64_t at = kLanes, filled = count < kLanes ? count : kLanes;
    if (count >= kLanes) {
      V sums[kVectors];
      for (int i = 0; i < kVectors; ++i) sums[i] = load<V>(x + i * kPerVector);
      for (; at + kLanes <= count; at += kLanes) {
        for (int i = 0; i < kVectors; ++i)
          sums[i] = F::vectors(sums[i], load<V>(x + at + i * kPerVector));
      }
      if (at == count) filled = kPerVector;
      for (int half = kVectors / 2; half > 0 && at == count; half /= 2) {
        for (int i = 0; i < half; ++i) sums[i] = F::vectors(sums[i], sums[i + half]);
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

// The order in which extremes are taken is free, so a row is one loop; a NaN is what it gives.
template <class F, class T>
struct Extremes {
  using V = typename VectorOf<T>::type;
  static constexpr int kPerVector = kVectorBytes / sizeof(T), kVectors = 4;
  static constexpr std::int64_t kLanes = kVectors * kPerVector;

  static T of_few(const T* x, std::int64_t count) {
    T best = x[0];
    for (std::int64_t i = 1; i < count; ++i) {
      keep_scalar();
      best = F::apply(best, x[i]);
    }
    return best;
  }
  static T row(const T* x, std::int64_t count) {
    if (count < kLanes) return of_few(x, count);
    V best[kVectors];
    decltype(best[0] != best[0]) unordered{};
    for (int i = 0; i < kVectors; ++i) best[i] = load<V>(x + i * kPerVector);
    const auto take_in = [&](const T* from) MEMBOUND_INLINED {
      for (int i = 0; i < kVectors; ++i) {
        const V value = load<V>(from + i * kPerVector);
        if constexpr (scalar::Number<T>::kFloating) unordered |= value != value;
        best[i] = F::vectors(best[i], value);
      }
    };
    std::int64_t at = 0;
    for (; at + kLanes <= count; at += kLanes) take_in(x + at);
    if (at < count) take_in(x + count - kLanes);  // some elements twice
    for (int i = 1; i < kVectors; ++i) best[0] = F::vectors(best[0], best[i]);
    T lanes[kPerVector];
    store(lanes, best[0]);
    const T extreme = of_few(lanes, kPerVector);
    if constexpr (scalar::Number<T>::kFloating) {
      for (int i = 0; i < kPerVector; ++i) {
        if (unordered[i] != 0) return T(__builtin_nan(""));
      }
    }
    return extreme;
  }
};

template <class F, class T>
void extremes_of_rows(const ArrayRows& rows) {
  const T* x = static_cast<const T*>(rows.values);
  T* results = static_cast<T*>(rows.results);
  for (std::int64_t at = 0; at < rows.rows; ++at)
    results[at] = Extremes<F, T>::row(x + at * rows.row_stride, rows.count);
}

template <class F>
void reduce_extremes(const ArrayRows& rows) {
  with_type(rows.dtype, [&]<class T>(TypeTag<T>) MEMBOUND_INLINED {
    if constexpr (scalar::kSameType<T, bool>) {
      extremes_of_rows<F, std::uint8_t>(rows);
    } else {
      extremes_of_rows<F, T>(rows);
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
