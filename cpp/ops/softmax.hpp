// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/layout.hpp"
#include "membound/dtype.hpp"
#include "membound/ops/softmax.hpp"

namespace membound {

// What both back ends receive: checked, flattened to rows x cols.
struct SoftmaxProblem {
  const void* x;
  const void* mask;  // null: none
  void* out;         // may be x: in place
  DType dtype, mask_dtype;
  double scale;
  std::int64_t rows, cols;     // at least 1
  std::int64_t queries;        // rows per matrix, for causal_offset; 0: not causal
  std::int64_t causal_offset;  // from -queries to cols
  RowLayout x_rows, mask_rows, out_rows;
  std::int64_t x_col_stride, mask_col_stride, out_col_stride;

  // The number of leading columns that a row keeps.
  MEMBOUND_HOST_DEVICE std::int64_t kept(std::int64_t row) const {
    if (queries == 0) return cols;
    const std::int64_t count = row % queries + causal_offset + 1;
    return count < 0 ? 0 : count < cols ? count : cols;
  }
};

namespace cpu {
void softmax(const SoftmaxProblem& problem);
}
namespace cuda {
void softmax(const SoftmaxProblem& problem, StreamView stream);
}

}  // namespace membound
