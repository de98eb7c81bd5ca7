// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/layout.hpp"
#include "membound/dtype.hpp"
#include "membound/ops/rms_norm.hpp"
#include "membound/stream.hpp"

namespace membound {

// What both back ends receive: checked, flattened to rows x cols, no tensors, no user errors.
struct RmsNormProblem {
  const void* x;
  const void* weight;  // null: none
  void* out;           // equal to x: in place
  void* rstd;          // null: not wanted; else accumulate_dtype(dtype)
  DType dtype;         // of x and out
  DType weight_dtype;  // equal to dtype when there is no weight
  Rounding rounding;
  std::int64_t rows;                                         // at least 1
  std::int64_t cols;                                         // at least 1
  RowLayout x_rows, out_rows, rstd_rows;                     // where each row starts, in elements
  std::int64_t x_col_stride, out_col_stride, weight_stride;  // 1 when cols is 1
  double eps;
  double weight_offset;
};

namespace cpu {
void rms_norm(const RmsNormProblem& problem);
}
namespace cuda {
void rms_norm(const RmsNormProblem& problem, StreamView stream);
}

}  // namespace membound
