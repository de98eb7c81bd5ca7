// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/array/functors.hpp"
#include "cpu/kernels/array.hpp"
#include "cpu/kernels/array_types.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(kVectorBytes)));
};

template <class V>
constexpr bool kIsFloating = scalar::kSameType<V, F32> || scalar::kSameType<V, F64>;

// The functors on vectors. Extremes have a form for values that are no NaNs, too.
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
    if constexpr (kIsFloating<V>) {
      return b != b ? b : at_most(a, b);  // keeps a NaN in a
    } else {
      return numbers(a, b);
    }
  }
  template <class V>
  static MEMBOUND_ALWAYS_INLINE V numbers(V a, V b) {
    return a < b ? a : b;
  }
};
struct VectorMaximum : functors::Maximum {
  template <class V>
  static MEMBOUND_ALWAYS_INLINE V vectors(V a, V b) {
    if constexpr (kIsFloating<V>) {
      return b != b ? b : at_least(a, b);  // keeps a NaN in a
    } else {
      return numbers(a, b);
    }
  }
  template <class V>
  static MEMBOUND_ALWAYS_INLINE V numbers(V a, V b) {
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
        best[i] = F::numbers(best[i], value);
      }
    };
    std::int64_t at = 0;
    for (; at + kLanes <= count; at += kLanes) take_in(x + at);
    if (at < count) take_in(x + count - kLanes);  // some elements twice
    for (int i = 1; i < kVectors; ++i) best[0] = F::numbers(best[0], best[i]);
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

// Sums and products of those that total_dtype() gives, extremes of all.
template <class F, class Body>
MEMBOUND_ALWAYS_INLINE void with_total(DType dtype, Body body) {
  constexpr bool kIsExtreme = requires { F::numbers(0, 0); };
  with_type(dtype, [&]<class T>(TypeTag<T>) MEMBOUND_INLINED {
    if constexpr (scalar::kSameType<T, bool>) {
      if constexpr (kIsExtreme) body(TypeTag<std::uint8_t>{});
    } else if constexpr (kIsExtreme || scalar::Number<T>::kFloating ||
                         scalar::kSameType<T, std::uint64_t>) {
      body(TypeTag<T>{});
    }
  });
}

// kCount vectors of each row.
template <class F, int kCount, class T>
MEMBOUND_ALWAYS_INLINE void columns_at(const ArrayColumns& all, std::int64_t col) {
  using V = typename VectorOf<T>::type;
  constexpr std::int64_t kLanes = kVectorBytes / sizeof(T);
  V totals[kCount];
  for (int i = 0; i < kCount; ++i)
    totals[i] = load<V>(static_cast<const T*>(all.rows[0]) + col + i * kLanes);
  for (std::int64_t row = 1; row < all.row_count; ++row) {
    const T* x = static_cast<const T*>(all.rows[row]) + col;
    for (int i = 0; i < kCount; ++i) totals[i] = F::vectors(totals[i], load<V>(x + i * kLanes));
  }
  for (int i = 0; i < kCount; ++i)
    store(static_cast<T*>(all.results) + col + i * kLanes, totals[i]);
}
template <class F, class T>
void reduce_columns(const ArrayColumns& all) {
  constexpr std::int64_t kLanes = kVectorBytes / sizeof(T);
  if (all.columns < kLanes) {
    T* results = static_cast<T*>(all.results);
    for (std::int64_t col = 0; col < all.columns; ++col) {
      results[col] = static_cast<const T*>(all.rows[0])[col];
      for (std::int64_t row = 1; row < all.row_count; ++row)
        results[col] = F::apply(results[col], static_cast<const T*>(all.rows[row])[col]);
    }
    return;
  }
  // Up to where the first row is aligned; rows mostly are together.
  const auto place = reinterpret_cast<std::uintptr_t>(all.rows[0]);
  std::int64_t col = static_cast<std::int64_t>(-place % kVectorBytes / sizeof(T));
  if (col > 0) columns_at<F, 1, T>(all, 0);
  for (; col + 4 * kLanes <= all.columns; col += 4 * kLanes) columns_at<F, 4, T>(all, col);
  for (; col + kLanes <= all.columns; col += kLanes) columns_at<F, 1, T>(all, col);
  if (col < all.columns) columns_at<F, 1, T>(all, all.columns - kLanes);  // some again
}

template <class Body>
MEMBOUND_ALWAYS_INLINE void with_functor(ElementwiseOp op, Body body) {
  switch (op) {
    case ElementwiseOp::kAdd: return body(VectorAdd{});
    case ElementwiseOp::kMultiply: return body(VectorMultiply{});
    case ElementwiseOp::kMinimum: return body(VectorMinimum{});
    default: return body(VectorMaximum{});
  }
}

}  // namespace

void array_reduce_rows(const ArrayRows& rows) {
  with_functor(rows.op, [&]<class F>(F) MEMBOUND_INLINED {
    with_total<F>(rows.dtype, [&]<class T>(TypeTag<T>) MEMBOUND_INLINED {
      if constexpr (requires { F::numbers(0, 0); }) {
        extremes_of_rows<F, T>(rows);
      } else {
        Lanes32<F, T>::rows(rows);
      }
    });
  });
}

void array_reduce_columns(const ArrayColumns& columns) {
  with_functor(columns.op, [&]<class F>(F) MEMBOUND_INLINED {
    with_total<F>(columns.dtype,
                  [&]<class T>(TypeTag<T>) MEMBOUND_INLINED { reduce_columns<F, T>(columns); });
  });
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
