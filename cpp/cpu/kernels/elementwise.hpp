// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/kernels/elementwise_rows.hpp"
#include "cpu/strided_tile.hpp"

// The loops of element-wise ops over rows. Op(vector) or Op(vector, vector) returns a vector of
// results, all in the accumulate type of T.
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

// A row, or a block of rows, whose elements are contiguous.
template <class T, class Op, int kInputs>
struct ElementwiseRow {
  using V = typename Lanes<T>::V;
  static constexpr std::int64_t kStep = Lanes<T>::kStep;

  Op op;
  const T* inputs[2];
  T* out;

  MEMBOUND_ALWAYS_INLINE Pair<V> result(std::int64_t col) const {
    const Pair<V> a = Lanes<T>::read(inputs[0] + col);
    if constexpr (kInputs == 1) {
      return {op(a.first), op(a.second)};
    } else {
      const Pair<V> b = Lanes<T>::read(inputs[1] + col);
      return {op(a.first, b.first), op(a.second, b.second)};
    }
  }
  // Runs whole steps from `first` up to `end`; returns the first column left. Not inlined: all
  // callers share one copy.
  [[gnu::noinline]] std::int64_t steps(std::int64_t first, std::int64_t end,
                                       CacheHints hints) const {
    std::int64_t col = first;
    for (; col + kStep <= end; col += kStep) {
      for (int i = 0; i < kInputs; ++i)
        prefetch_ahead(inputs[i] + col, kStep * sizeof(T), hints.prefetch_distance);
      const Pair<V> y = result(col);
      hints.non_temporal ? Lanes<T>::write_non_temporal(out + col, y)
                         : Lanes<T>::write(out + col, y);
    }
    return col;
  }
  // At most one step, through padded buffers.
  MEMBOUND_ALWAYS_INLINE void some(std::int64_t first, std::int64_t count) const {
    if (count <= 0) return;
    T padded[kInputs][kStep] = {}, results[kStep];
    for (int i = 0; i < kInputs; ++i) copy_some(inputs[i] + first, padded[i], count);
    ElementwiseRow{op, {padded[0], padded[kInputs - 1]}, results}.steps(0, kStep, {});
    copy_some(results, out + first, count);
  }
  MEMBOUND_ALWAYS_INLINE void run(std::int64_t count, CacheHints hints) const {
    std::int64_t first = hints.non_temporal ? to_boundary(out) : 0;
    first = first < count ? first : count;
    some(0, first);
    const std::int64_t col = steps(first, count, hints);
    some(col, count - col);
  }
};

template <class T, class Op, int kInputs>
void run_rows(const ElementwiseRows& rows, const Op& op) {
  using Row = ElementwiseRow<T, Op, kInputs>;
  const auto input = [&](int i) {
    const EvenRows<const void*>& from = rows.inputs[i];
    return Strided<const T>{static_cast<const T*>(from.data), from.row_stride, from.col_stride};
  };
  const Strided<const T> a = input(0), b = input(kInputs - 1);
  const Strided<T> out{static_cast<T*>(rows.out.data), rows.out.row_stride, rows.out.col_stride};
  const bool strided = a.is_strided() || b.is_strided() || out.is_strided();
  if (!strided && (rows.rows == 1 || !is_narrow<T>(rows.cols))) {
    for (std::int64_t row = 0; row < rows.rows; ++row)
      Row{op, {a.row(row), b.row(row)}, out.row(row)}.run(
          rows.cols, {rows.bypass_cache, rows.prefetch_distance});
    if (rows.bypass_cache) stream_fence();
    return;
  }
  const TileSize size =
      tile_size<T>(rows.cols, a.is_transposed() || b.is_transposed() || out.is_transposed());
  each_tile(rows.rows, rows.cols, size, [&](auto row, auto count, auto col, auto cols) {
    T copies[kInputs][kBlock<T>], results[kBlock<T>];
    gather_tile(a, row, count, col, cols, copies[0]);
    if (kInputs == 2) gather_tile(b, row, count, col, cols, copies[kInputs - 1]);
    Row{op, {copies[0], copies[kInputs - 1]}, results}.run(count * cols, {});
    scatter_tile(out, row, count, col, cols, results);
  });
}

// Runs Op<T>{numbers...} with the storage type T of the rows.
template <template <class> class Op, class... Numbers>
void elementwise(const ElementwiseRows& rows, Numbers... numbers) {
  const auto run = [&]<class T>(T) {
    using V = typename Lanes<T>::V;
    constexpr int kInputs = requires(Op<T> op, V v) { op(v, v); } ? 2 : 1;
    run_rows<T, Op<T>, kInputs>(rows, Op<T>{static_cast<typename Lanes<T>::A>(numbers)...});
  };
  switch (rows.dtype) {
    case DType::kFloat16: return run(Float16{});
    case DType::kBFloat16: return run(BFloat16{});
    case DType::kFloat32: return run(float{});
    default: return run(double{});
  }
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
