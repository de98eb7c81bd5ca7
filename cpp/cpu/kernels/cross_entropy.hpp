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

// One row. All strides count elements.
struct CrossEntropyRow {
  const void* logits;
  void* dlogits;  // null: not wanted
  DType dtype;
  CrossEntropyNumbers numbers;
  std::int64_t cols, logits_col_stride, dlogits_col_stride;
  std::int64_t label;  // a column; -1: the row is ignored
  double dloss;
  bool lse_known;
  bool bypass_cache;  // by dlogits
  std::int64_t ask_distance;
  // Read where it is known, else written. In double, that the loss of float32 keeps its digits;
  // rounded to the dtype of sums where the gradient takes it.
  double lse;
  double loss;
};

#define MEMBOUND_DECLARE_CROSS_ENTROPY(isa) \
  namespace isa {                           \
  void cross_entropy(CrossEntropyRow& row); \
  }
MEMBOUND_DECLARE_CROSS_ENTROPY(baseline)
MEMBOUND_DECLARE_CROSS_ENTROPY(avx2)
MEMBOUND_DECLARE_CROSS_ENTROPY(avx512)
MEMBOUND_DECLARE_CROSS_ENTROPY(neon)
#undef MEMBOUND_DECLARE_CROSS_ENTROPY

}  // namespace membound::cpu
