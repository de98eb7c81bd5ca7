// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tests whether the arrays of a rope call can be accessed in 16-byte or narrower vectors.
#include <cstdint>

#include "cuda/row/offset.cuh"
#include "ops/rope.hpp"

namespace membound::cuda {

// True if every head is aligned to kElements elements.
template <class T, int kElements = kPack<T>>
bool in_vectors(const RopeProblem& p, const void* data, const RopeStrides& strides,
                std::int64_t heads) {
  const auto fits = [](std::int64_t extent, std::int64_t stride) {
    return extent == 1 || stride % kElements == 0;
  };
  return reinterpret_cast<std::uintptr_t>(data) % (kElements * sizeof(T)) == 0 &&
         strides.dim == 1 && fits(p.batch, strides.batch) && fits(p.seq, strides.seq) &&
         fits(heads, strides.head);
}

// True for a table of x's dtype, or of float32 with 16-bit x, on one axis.
template <class T>
bool has_common_table(const RopeProblem& p) {
  const bool fits =
      p.table_dtype == p.dtype || (sizeof(T) == 2 && p.table_dtype == DType::kFloat32);
  return p.cos.data != nullptr && fits && p.axes == 1;
}

// True if in addition all rows are aligned to 16 bytes and the columns of each element are
// contiguous.
template <class T>
bool table_in_vectors(const RopeProblem& p) {
  if (!has_common_table<T>(p)) return false;
  const std::int64_t elements = kVectorBytes / static_cast<std::int64_t>(dtype_size(p.table_dtype));
  const auto in_vectors = [&](const RopeTable& table) {
    const bool neighbours = p.interleaved && table.second == 1;
    const std::int64_t starts =
        table.batch_stride | table.row_stride | (neighbours ? 0 : table.second);
    return table.col_stride == (neighbours ? 2 : 1) && starts % elements == 0 &&
           is_vector_aligned(table.data);
  };
  return in_vectors(p.cos) && in_vectors(p.sin);
}

}  // namespace membound::cuda
