// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/dtype.hpp"

// The interface between cpu/embedding_backward.cpp and the units per instruction set: plain data
// and function names only.
namespace membound::cpu {

// Columns [first, last) of one row of the gradient.
struct EmbeddingGradientRow {
  const void* const* dy;  // the rows of its tokens, in order
  void* out;
  DType dtype, out_dtype;
  std::int64_t count;      // at least 1
  std::int64_t following;  // rows of dy after these, which the next calls read
  std::int64_t first, last;
  std::int64_t dy_col_stride, out_col_stride;
  double scale;
  bool by_frequency, accumulate;
};

// Columns [0, cols) of `rows` rows, row_stride apart, that are set to zero. `rows` may be 0.
struct EmbeddingGradientZeros {
  void* out;
  DType dtype;
  std::int64_t rows, cols, row_stride, col_stride;
  bool bypass_cache;
  bool last;  // the last call of a thread: fence the non-temporal stores
};

}  // namespace membound::cpu
