// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/dtype.hpp"

// The seam between cpu/embedding.cpp and the units per instruction set: plain data and function
// names.
namespace membound::cpu {

// Rows that were looked up, wherever they lie.
struct EmbeddingRows {
  const void* const* weight;    // null where a token has no row: zeros are written
  const void* const* position;  // null where nothing is added; null altogether: nowhere
  void* const* out;
  DType dtype, out_dtype;
  std::int64_t rows, cols;
  std::int64_t weight_col_stride, position_col_stride, out_col_stride;
  double scale;
  bool copies;  // bytes, from one dtype to the same
  bool bypass_cache;
};

#define MEMBOUND_DECLARE_EMBEDDING(isa)      \
  namespace isa {                            \
  void embedding(const EmbeddingRows& rows); \
  }
MEMBOUND_DECLARE_EMBEDDING(baseline)
MEMBOUND_DECLARE_EMBEDDING(avx2)
MEMBOUND_DECLARE_EMBEDDING(avx512)
MEMBOUND_DECLARE_EMBEDDING(neon)
#undef MEMBOUND_DECLARE_EMBEDDING

}  // namespace membound::cpu
