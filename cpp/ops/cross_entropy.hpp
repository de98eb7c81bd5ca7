// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/token_integers.hpp"
#include "membound/dtype.hpp"
#include "membound/ops/cross_entropy.hpp"

namespace membound {

// One number for each row, in the dtype of sums.
struct RowNumbers {
  const void* data;  // null: none
  RowLayout rows;
};

// What both back ends receive: checked, flattened to rows x cols.
struct CrossEntropyProblem {
  const void* logits;
  void* dlogits;  // null: not wanted; may be logits: in place
  DType dtype;
  TokenIntegers labels;
  RowNumbers dloss;
  RowNumbers loss;  // null: lse is known, and read
  RowNumbers lse;   // null: not wanted
  CrossEntropyOptions options;
  std::int64_t rows, cols;  // at least 1
  RowLayout logits_rows, dlogits_rows;
  std::int64_t logits_col_stride, dlogits_col_stride;

  // The column that a row's label names; -1: the row is ignored.
  MEMBOUND_HOST_DEVICE std::int64_t column(std::int64_t label) const {
    return label == options.ignore_index || label < 0 || label >= cols ? -1 : label;
  }
};

// What forward and backward check alike, and put into their problem.
CrossEntropyProblem cross_entropy_problem(const ConstTensorView& logits,
                                          const ConstTensorView& labels,
                                          const ConstTensorView* dloss,
                                          const CrossEntropyOptions& options,
                                          const TensorView* dlogits, const char* op);

namespace cpu {
void cross_entropy(const CrossEntropyProblem& problem);
}
namespace cuda {
void cross_entropy(const CrossEntropyProblem& problem, StreamView stream);
}

}  // namespace membound
