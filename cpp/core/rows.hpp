// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/layout.hpp"
#include "membound/dtype.hpp"

// Arrays of calls that mix dtypes, known at run time only.
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

}  // namespace membound
