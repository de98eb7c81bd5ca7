// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/dtype.hpp"

// The interface between cpu/embedding.cpp and the units per instruction set: plain data and
// function names only.
namespace membound::cpu {

// Row pointers of looked-up rows, in any order.
struct EmbeddingRows {
  const void* const* weight;    // null for a token without a row: zeros are written
  const void* const* position;  // null entry: nothing is added; null array: no positions at all
  void* const* out;
  DType dtype, out_dtype;
  std::int64_t rows, cols;
  std::int64_t weight_col_stride, position_col_stride, out_col_stride;
  double scale;
  bool copies;  // byte copies: one dtype throughout, nothing to compute
  bool bypass_cache;
};

}  // namespace membound::cpu
