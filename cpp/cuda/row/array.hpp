// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Host side of row access: describes strided arrays of rows to kernels, and finds the fastest
// access that all arrays of a call support.
#include <cstddef>
#include <cstdint>

#include "core/rows.hpp"
#include "cuda/row/reader.cuh"
#include "membound/dtype.hpp"

namespace membound::cuda {

// The stride of the innermost row axis.
inline std::int64_t inner_stride(const RowLayout& layout) {
  return layout.strides[layout.rank == 2 ? 1 : 0];
}

// Whether the rows of two evenly spaced arrays have the same offset from a 16-byte boundary.
template <class T>
bool same_alignment(const OutputRows& a, const OutputRows& b) {
  const auto apart =
      reinterpret_cast<std::uintptr_t>(a.data) - reinterpret_cast<std::uintptr_t>(b.data);
  return apart % kVectorBytes == 0 && (a.layout.strides[0] - b.layout.strides[0]) % kPack<T> == 0;
}

// The widest vectors, of at most 8 bytes, that the start and the length of every row allow. The
// rows have unit stride.
template <class T, class Pointer>
int narrow_width(const BasicRows<Pointer>& rows, std::int64_t cols) {
  if (rows.data == nullptr) return 8;
  auto steps = reinterpret_cast<std::uintptr_t>(rows.data) | 8u;
  const auto also = [&](std::int64_t count) {
    steps |= static_cast<std::uintptr_t>(count) * sizeof(T);
  };
  also(cols);
  for (int axis = 0; axis < rows.layout.rank; ++axis) also(rows.layout.strides[axis]);
  return static_cast<int>(steps & (0 - steps));
}

// Collects the layout of every array of a call, to find the access that all of them support and how
// rows are counted. Kernels of aligned rows need one row axis, or two with the same split in all
// arrays.
template <class T>
class RowAccess {
 public:
  RowAccess(std::int64_t rows, std::int64_t cols) : rows_(rows), cols_(cols) {}

  template <class Pointer>
  void add_rows(const BasicRows<Pointer>& rows) {
    if (rows.data == nullptr) return;
    const RowLayout& layout = rows.layout;
    add_axes(layout);
    if (rows.col_stride != 1) return at_least(Access::kStrided);
    const bool aligned = layout.strides[0] % kPack<T> == 0 &&
                         inner_stride(layout) % kPack<T> == 0 && cols_ % kPack<T> == 0 &&
                         reinterpret_cast<std::uintptr_t>(rows.data) % kVectorBytes == 0;
    if (!aligned) at_least(Access::kUnaligned);
  }
  // Rows of one-byte elements: aligned if they consist of whole vectors of kPack bytes.
  void add_bytes(const void* data, const RowLayout& layout, std::int64_t col_stride) {
    add_axes(layout);
    const bool aligned = col_stride == 1 && layout.strides[0] % kPack<T> == 0 &&
                         inner_stride(layout) % kPack<T> == 0 && cols_ % kPack<T> == 0 &&
                         reinterpret_cast<std::uintptr_t>(data) % kPack<T> == 0;
    if (!aligned) at_least(Access::kStrided);
  }
  void add_statistic(const void* data, const RowLayout& layout) {
    if (data != nullptr) add_axes(layout);
  }
  // Every kernel takes an aligned weight or bias of x's dtype, or of float32 where x has 16 bits.
  void add_affine(const InputColumns& columns) {
    if (columns.data == nullptr) return;
    const DType dtype = columns.dtype;
    const bool dtype_fits = dtype == kDTypeOf<T> || (sizeof(T) == 2 && dtype == DType::kFloat32);
    const auto size = static_cast<std::int64_t>(dtype_size(dtype));
    const bool aligned = columns.stride == 1 && columns.head_stride * size % kVectorBytes == 0 &&
                         reinterpret_cast<std::uintptr_t>(columns.data) % kVectorBytes == 0;
    if (!dtype_fits || !aligned) at_least(Access::kStrided);
  }

  void at_least(Access access) {
    if (access > access_) access_ = access;
  }

  Access access() const { return access_; }
  // Unaligned and strided kernels get offsets from RowLayout and only test that extent is not 0.
  RowSplit split() const {
    if (extent_ == 0) return {};
    return access_ == Access::kAligned ? split_rows(extent_) : RowSplit{.extent = 1};
  }

 private:
  void add_axes(const RowLayout& layout) {
    if (layout.rank <= 1) return;
    const std::int64_t extent = layout.shape[layout.rank - 1];
    const bool countable =
        layout.rank == 2 && rows_ < kMaxSplitRows && (extent_ == 0 || extent_ == extent);
    if (!countable) at_least(Access::kUnaligned);
    extent_ = extent;
  }

  std::int64_t rows_;
  std::int64_t cols_;
  std::int64_t extent_ = 0;  // of the inner row axis; 0: rows have one axis
  Access access_ = Access::kAligned;
};

// Fills in a RowArray, and the stride of the split's inner axis, for each array of a problem.
struct RowArrayBuilder {
  std::int64_t rows;
  std::int64_t cols;
  RowSplit split;

  template <class Pointer>
  void place(const BasicRows<Pointer>& from, RowArray& to, std::int64_t& row_stride) const {
    place(from.data, from.layout, from.col_stride, dtype_size(from.dtype), to, row_stride);
  }
  template <class Pointer>
  void place_statistic(const BasicRows<Pointer>& from, RowArray& to,
                       std::int64_t& row_stride) const {
    place(from.data, from.layout, 0, dtype_size(from.dtype), to, row_stride);
  }
  void place(const void* data, const RowLayout& layout, std::int64_t col_stride, std::size_t size,
             RowArray& to, std::int64_t& row_stride) const {
    if (data == nullptr) return;
    const auto forwards = [](std::int64_t step) { return step > 0 ? step : 0; };
    std::int64_t last = forwards((cols - 1) * col_stride);
    for (int axis = 0; axis < layout.rank; ++axis) {
      const std::int64_t extent = layout.rank == 1 ? rows : layout.shape[axis];
      last += forwards((extent - 1) * layout.strides[axis]);
    }
    row_stride = inner_stride(layout);
    const std::int64_t outer_stride =
        layout.rank == 2 ? layout.strides[0] : row_stride * std::int64_t{split.extent};
    to = {layout, outer_stride, col_stride,
          static_cast<const char*>(data) + (last + 1) * static_cast<std::int64_t>(size)};
  }
};

}  // namespace membound::cuda
