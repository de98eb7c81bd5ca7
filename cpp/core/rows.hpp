// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/heads.hpp"
#include "core/layout.hpp"
#include "membound/dtype.hpp"

// The arrays of a problem, as back ends receive them.
namespace membound {

// An array of rows, flattened to rows x cols; strides in elements. Pointer: const void* or void*.
template <class Pointer>
struct BasicRows {
  Pointer data = nullptr;  // null: no array
  DType dtype = DType::kFloat32;
  RowLayout layout;
  std::int64_t col_stride = 1;
};
using InputRows = BasicRows<const void*>;
using OutputRows = BasicRows<void*>;

// One number per column: a parameter, or its gradient.
template <class Pointer>
struct BasicColumns {
  Pointer data = nullptr;  // null: no array
  DType dtype = DType::kFloat32;
  std::int64_t stride = 1;
  std::int64_t head_stride = 0;  // between heads of (heads, cols)
};
using InputColumns = BasicColumns<const void*>;
using OutputColumns = BasicColumns<void*>;

// The first `axes` axes of a view are its rows; a statistic may have one axis of 1 more.
template <class Pointer>
BasicRows<Pointer> rows_of(const BasicTensorView<Pointer>* view, int axes, const char* op,
                           const char* argument) {
  if (view == nullptr) return {};
  const int last = view->rank - 1;
  const bool has_columns = last >= axes && view->shape[last] != 1;
  return {view->data, view->dtype, row_layout(*view, axes, op, argument),
          has_columns ? view->strides[last] : 1};
}
// otherwise: the dtype of one that is not there.
template <class Pointer>
BasicColumns<Pointer> columns_of(const BasicTensorView<Pointer>* view, DType otherwise) {
  if (view == nullptr) return {nullptr, otherwise};
  return {view->data, view->dtype, column_stride(*view), head_stride(*view)};
}

}  // namespace membound
