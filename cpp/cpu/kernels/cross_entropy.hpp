// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/dtype.hpp"

// The seam between cpu/cross_entropy.cpp and the units per instruction set: plain data and function
// names.
namespace membound::cpu {

// What every row is computed with. Infinite softcap: none.
struct CrossEntropyNumbers {
  double label_smoothing, z_loss, softcap;
};

// Evenly spaced rows, few enough for their logits to be in the cache when the gradient reads them
// again. All strides count elements.
struct CrossEntropyRows {
  static constexpr std::int64_t kMost = 64;
  const void* logits;
  void* dlogits;  // null: not wanted
  DType dtype;
  CrossEntropyNumbers numbers;
  std::int64_t rows, cols;
  std::int64_t logits_row_stride, logits_col_stride, dlogits_row_stride, dlogits_col_stride;
  bool lse_known;
  bool bypass_cache;  // by dlogits
  std::int64_t ask_distance;
  // Of each row.
  std::int64_t label[kMost];  // a column; -1: the row is ignored
  double dloss[kMost];
  // Read where it is known, else written. In double, that the loss of float32 keeps its digits;
  // rounded to the dtype of sums where the gradient takes it.
  double lse[kMost];
  double loss[kMost];
};

#define MEMBOUND_DECLARE_CROSS_ENTROPY(isa)   \
  namespace isa {                             \
  void cross_entropy(CrossEntropyRows& rows); \
  }
MEMBOUND_DECLARE_CROSS_ENTROPY(baseline)
MEMBOUND_DECLARE_CROSS_ENTROPY(avx2)
MEMBOUND_DECLARE_CROSS_ENTROPY(avx512)
MEMBOUND_DECLARE_CROSS_ENTROPY(neon)
#undef MEMBOUND_DECLARE_CROSS_ENTROPY

}  // namespace membound::cpu
