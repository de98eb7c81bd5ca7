// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/token_integers.hpp"
#include "membound/dtype.hpp"
#include "membound/ops/cross_entropy.hpp"

namespace membound {

// One number per row, in the accumulate dtype.
struct RowNumbers {
  const void* data;  // null: none
  RowLayout rows;
};

// One number per column, of any floating dtype.
struct ClassWeights {
  const void* data;  // null: all are 1
  DType dtype;
  std::int64_t stride;
};

// What both back ends receive: checked, flattened to rows x cols.
struct CrossEntropyProblem {
  static constexpr std::int64_t kIgnored = -1, kOutside = -2;

  const void* logits;
  void* dlogits;  // null: not wanted; may be logits: in place
  DType dtype;
  TokenIntegers labels;
  ClassWeights weight;
  RowNumbers dloss;
  RowNumbers loss;            // null: lse is read, not computed
  RowNumbers lse;             // null: not wanted
  RowNumbers lse_low;         // the low part of lse, to be added to it; null: none
  RowNumbers z_loss;          // null: not wanted
  RowNumbers entropy;         // null: not wanted; read where dentropy is given
  RowNumbers dentropy;        // null: none
  TokenIntegers predictions;  // written, data null: not wanted
  CrossEntropyOptions options;
  std::int64_t rows, cols;  // cols at least 1; rows too, unless there is a reduction
  RowLayout logits_rows, dlogits_rows;
  std::int64_t logits_col_stride, dlogits_col_stride;
  // In the accumulate dtype: the totals of loss and z_loss (null: no reduction, or not wanted) and,
  // for a mean with a gradient, scratch for dloss divided by the sum of weights.
  void* total;
  void* z_total;
  void* scale;

  // The column of a label, or one of the constants.
  MEMBOUND_HOST_DEVICE std::int64_t column(std::int64_t label) const {
    if (label == options.ignore_index) return kIgnored;
    return label < 0 || label >= cols ? kOutside : label;
  }
  MEMBOUND_HOST_DEVICE bool is_mean() const { return options.reduction == Reduction::kMean; }
};

// The checks of both forward and backward, and the problem with what they share.
CrossEntropyProblem cross_entropy_problem(const ConstTensorView& logits,
                                          const ConstTensorView& labels,
                                          const ConstTensorView* weight,
                                          const ConstTensorView* dloss,
                                          const CrossEntropyOptions& options,
                                          const TensorView* dlogits, const char* op);

// An lse in two parts along its last axis.
void check_lse(const ConstTensorView& lse, const ConstTensorView& logits, const char* op);
void set_lse(CrossEntropyProblem& problem, const ConstTensorView& lse, const char* op);
RowNumbers row_numbers(const ConstTensorView& view, const char* op, const char* argument);

namespace cpu {
void cross_entropy(const CrossEntropyProblem& problem);
}
namespace cuda {
void cross_entropy(const CrossEntropyProblem& problem, StreamView stream);
}

}  // namespace membound
