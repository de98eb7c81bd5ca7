// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What of a call of rope can be read in vectors of 16 bytes, and in pieces of them.
#include <cstdint>

#include "cuda/row/offset.cuh"
#include "ops/rope.hpp"

namespace membound::cuda {

// Whether every head starts on a piece of kElements.
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

// One of float32 beside 16 bits, or of the dtype of x, for one axis.
template <class T>
bool has_common_table(const RopeProblem& p) {
  const bool fits =
      p.table_dtype == p.dtype || (sizeof(T) == 2 && p.table_dtype == DType::kFloat32);
  return p.cos.data != nullptr && fits && p.axes == 1;
}

// With every row on a vector, and the columns of elements one after the other.
template <class T>
bool table_in_vectors(const RopeProblem& p) {
  if (!has_common_table<T>(p)) return false;
  const std::int64_t elements = kVectorBytes / static_cast<std::int64_t>(dtype_size(p.table_dtype));
  const auto in_vectors = [&](const RopeTable& table) {
    const bool neighbours = p.interleaved && table.second == 1;
    const std::int64_t starts =
        table.batch_stride | table.row_stride | (neighbours ? 0 : table.second);
    return table.col_stride == (neighbours ? 2 : 1) && starts % elements == 0 &&
           starts_on_vector(table.data);
  };
  return in_vectors(p.cos) && in_vectors(p.sin);
}

}  // namespace membound::cuda
