// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// On the host: strided arrays of rows as kernels want them, and which kernels can take them.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cuda/vec.cuh"
#include "membound/dtype.hpp"

namespace membound::cuda {

inline RowArray row_array(const void* data, const RowLayout& layout, std::int64_t rows,
                          std::int64_t cols, std::int64_t col_stride, std::size_t size) {
  std::int64_t last = std::max<std::int64_t>(0, (cols - 1) * col_stride);
  for (int axis = 0; axis < layout.rank; ++axis) {
    const std::int64_t extent = layout.rank == 1 ? rows : layout.shape[axis];
    last += std::max<std::int64_t>(0, (extent - 1) * layout.strides[axis]);
  }
  return {layout, col_stride,
          static_cast<const char*>(data) + (last + 1) * static_cast<std::int64_t>(size)};
}

template <class T>
Access row_access(const void* data, const RowLayout& layout, std::int64_t cols,
                  std::int64_t col_stride) {
  if (col_stride != 1) return Access::kAny;
  const bool aligned = layout.rank <= 1 && layout.strides[0] % kPack<T> == 0 &&
                       cols % kPack<T> == 0 &&
                       reinterpret_cast<std::uintptr_t>(data) % kChunkBytes == 0;
  return aligned ? Access::kAligned : Access::kShifted;
}

// Aligned weights of x's dtype, or float beside 16-bit x, go with every kernel.
template <class T>
Access weight_access(const void* weight, DType dtype, std::int64_t stride) {
  if (weight == nullptr) return Access::kAligned;
  const bool dtype_fits = dtype == kDTypeOf<T> || (sizeof(T) == 2 && dtype == DType::kFloat32);
  const bool aligned = stride == 1 && reinterpret_cast<std::uintptr_t>(weight) % kChunkBytes == 0;
  return dtype_fits && aligned ? Access::kAligned : Access::kAny;
}

}  // namespace membound::cuda
