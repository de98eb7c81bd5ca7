// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/stream.hpp"
#include "ops/rms_norm.hpp"
#include "ops/rms_norm_backward.hpp"

// Norms that the kernels of one dtype do not take: arrays of more than one dtype, or an offset
// without a weight. One code for them all, with dtypes at run time.
namespace membound {

bool is_generic(const NormCall& call);
bool is_generic(const NormBackwardCall& call);
// The dtype of sums: float64 where an input of rows is.
DType accumulate_dtype(const NormCall& call);
DType accumulate_dtype(const NormBackwardCall& call);

// What the weight and its offset multiply by: an offset without a weight stands for the weight.
inline bool has_factor(const InputColumns& weight, double offset) {
  return weight.data != nullptr || offset != 0.0;
}

// For float64 sums, which a call may have whose x is narrower.
std::int64_t generic_gradient_workspace(std::int64_t rows, std::int64_t cols, std::int64_t heads,
                                        bool centred);

namespace cpu {
void rms_norm_generic(const RmsNormProblem& problem);
void rms_norm_backward_generic(const RmsNormBackwardProblem& problem);
}  // namespace cpu
namespace cuda {
void rms_norm_generic(const RmsNormProblem& problem, StreamView stream);
void rms_norm_backward_generic(const RmsNormBackwardProblem& problem, StreamView stream);
}  // namespace cuda

}  // namespace membound
