// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What of a call of rope can be read in chunks of 16 bytes, and in pieces of them.
#include <cstdint>

#include "cuda/row_access.cuh"
#include "ops/rope.hpp"

namespace membound::cuda {

// Whether every head starts on a piece of kElements.
template <class T, int kElements = kPack<T>>
bool in_chunks(const RopeProblem& p, const void* data, const RopeStrides& strides,
               std::int64_t heads) {
  const auto fits = [](std::int64_t extent, std::int64_t stride) {
    return extent == 1 || stride % kElements == 0;
  };
  return reinterpret_cast<std::uintptr_t>(data) % (kElements * sizeof(T)) == 0 &&
         strides.dim == 1 && fits(p.batch, strides.batch) && fits(p.seq, strides.seq) &&
         fits(heads, strides.head);
}

// One of float32 beside 16 bits, or of the dtype of x, for one axis.
template <class T>
bool has_everyday_table(const RopeProblem& p) {
  const bool fits =
      p.table_dtype == p.dtype || (sizeof(T) == 2 && p.table_dtype == DType::kFloat32);
  return p.cos != nullptr && fits && p.axes == 1;
}

// With every row on a chunk.
template <class T>
bool table_in_chunks(const RopeProblem& p) {
  if (!has_everyday_table<T>(p)) return false;
  const std::int64_t elements = kChunkBytes / static_cast<std::int64_t>(dtype_size(p.table_dtype));
  const std::int64_t strides =
      p.cos_batch_stride | p.cos_row_stride | p.sin_batch_stride | p.sin_row_stride;
  return p.cos_col_stride == 1 && p.sin_col_stride == 1 && strides % elements == 0 &&
         starts_on_chunk(p.cos) && starts_on_chunk(p.sin);
}

}  // namespace membound::cuda
