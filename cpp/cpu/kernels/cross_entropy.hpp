// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/dtype.hpp"

// The interface between cpu/cross_entropy.cpp and the units per instruction set: plain data and
// function names only.
namespace membound::cpu {

// Constants of all rows. An infinite softcap means none.
struct CrossEntropyNumbers {
  double label_smoothing, z_loss, softcap;
  // Class weights for label smoothing, in the accumulate dtype, and their sum; null: all are 1.
  const void* class_weights;
  double class_weights_sum;
};

// Evenly spaced rows, few enough that their logits are still in the cache when the gradient reads
// them again. All strides count elements.
struct CrossEntropyRows {
  static constexpr std::int64_t kMost = 64;
  static constexpr std::int64_t kIgnored = -1, kOutside = -2;  // for labels
  const void* logits;
  void* dlogits;  // null: not wanted
  DType dtype;
  CrossEntropyNumbers numbers;
  std::int64_t rows, cols;
  std::int64_t logits_row_stride, logits_col_stride, dlogits_row_stride, dlogits_col_stride;
  bool lse_known, wants_predictions, wants_entropy, has_dentropy;
  bool bypass_cache;  // for dlogits
  std::int64_t prefetch_distance;
  // Per row:
  std::int64_t label[kMost];  // a column, or kIgnored or kOutside
  double weight[kMost];       // of its label
  double dloss[kMost];
  // lse in two parts, the largest logit and log(sum of powers) relative to it: read if lse_known,
  // else written. Double keeps the digits of float32 losses; the gradient rounds it.
  double top[kMost], low[kMost];
  double loss[kMost], z_loss[kMost];
  double entropy[kMost], dentropy[kMost];  // the former is read if has_dentropy
  std::int64_t prediction[kMost];
};

}  // namespace membound::cpu
