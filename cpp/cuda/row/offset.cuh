// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Offsets of rows with any number of axes, and 16-byte alignment.
#include <cstdint>

#include "core/layout.hpp"
#include "cuda/row/convert.cuh"

namespace membound::cuda {

inline bool is_vector_aligned(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % kVectorBytes == 0;
}

// RowLayout::offset as a loop: unrolled, its divisions took 12 KB of every kernel.
static __device__ __noinline__ std::int64_t looped_row_offset(const RowLayout& rows,
                                                              std::int64_t row) {
  std::int64_t at = 0;
#pragma unroll 1
  for (int axis = rows.rank - 1; axis > 0; --axis) {
    const std::int64_t outer = row / rows.shape[axis];
    at += (row - outer * rows.shape[axis]) * rows.strides[axis];
    row = outer;
  }
  return at + row * rows.strides[0];
}

}  // namespace membound::cuda
