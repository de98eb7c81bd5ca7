// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/rows.hpp"
#include "membound/ops/rms_norm.hpp"
#include "membound/stream.hpp"

// Norms that kernels of a single dtype cannot handle: arrays of several dtypes, or an offset
// without a weight. One implementation for all, with dtypes at run time.
namespace membound {

// Sums, and all before the last rounding, are float64 if any input of rows is, else float32. The
// arrays mean what they do in RmsNormProblem.
struct GenericNormProblem {
  InputRows x, residual, gate;
  InputColumns weight, bias;
  OutputRows out, residual_out, mean, rstd;
  DType accumulate;  // float32 or float64; mean and rstd have it too
  Rounding rounding;
  bool centred;
  bool norm_before_gate;
  std::int64_t rows, cols;  // at least 1
  std::int64_t heads;       // row r uses weight and bias of head r % heads; 1 on the CPU
  double eps;
  double weight_offset;
};

// dx and dresidual hold the same numbers, each rounded to its own dtype.
struct GenericNormBackwardProblem {
  InputRows dy, x, dsum, gate, mean, rstd;  // mean: centred only
  InputColumns weight;
  OutputRows dx, dresidual, dgate;
  OutputColumns dweight, dbias;
  void* workspace;   // GPU with dweight or dbias: generic_gradient_workspace bytes
  DType accumulate;  // float32 or float64, as in the forward
  DType rounded_to;  // the dtype to which kBeforeWeight rounded the normalised row
  Rounding rounding;
  bool accumulate_sums;  // dweight += instead of =
  bool norm_before_gate;
  std::int64_t rows;  // 0 only with dweight or dbias, which are then zero
  std::int64_t cols, heads;
  double weight_offset;

  bool centred() const { return mean.data != nullptr; }
};

// True if rows are multiplied by something: an offset without a weight takes its place.
inline bool has_factor(const InputColumns& weight, double offset) {
  return weight.data != nullptr || offset != 0.0;
}

// Sized for float64 sums, which a call may have even if x is narrower.
std::int64_t generic_gradient_workspace(std::int64_t rows, std::int64_t cols, std::int64_t heads,
                                        bool centred);

namespace cpu {
void rms_norm_generic(const GenericNormProblem& problem);
void rms_norm_backward_generic(const GenericNormBackwardProblem& problem);
}  // namespace cpu
namespace cuda {
void rms_norm_generic(const GenericNormProblem& problem, StreamView stream);
void rms_norm_backward_generic(const GenericNormBackwardProblem& problem, StreamView stream);
}  // namespace cuda

}  // namespace membound
