// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/heads.hpp"
#include "core/rows.hpp"
#include "membound/norm_call.hpp"

namespace membound {

// What both back ends receive: checked, flattened to rows x cols. dsum is the second gradient of
// the add_ forms, which is added to dx. dx and dresidual are the same numbers, each rounded to its
// own dtype. At least one of the gradients is wanted; they may be written over inputs of rows.
struct RmsNormBackwardProblem {
  InputRows dy, x, dsum, gate, mean, rstd;
  InputColumns weight;
  OutputRows dx, dresidual, dgate;
  OutputColumns dweight, dbias;
  void* workspace;   // GPU with dweight or dbias: as many bytes as norm_backward_workspace says
  DType accumulate;  // of sums: float64 where an input of rows is, else float32
  DType rounded_to;  // what kBeforeWeight rounded the normalised row to
  Rounding rounding;
  bool centred;          // has a mean, whose data may be null if there are no rows
  bool accumulate_sums;  // dweight += instead of =
  bool norm_before_gate;
  std::int64_t rows;  // 0 only with dweight or dbias, which are then zero
  std::int64_t cols, heads;
  double weight_offset;

  // A weight of x's dtype and all gradients of rows: the common path, which GPU kernels under
  // register pressure are compiled for.
  bool is_common() const {
    return weight.data != nullptr && weight.dtype == x.dtype && dx.data != nullptr &&
           (gate.data == nullptr || dgate.data != nullptr);
  }
  // And no options.
  bool is_plain() const {
    return is_common() && weight_offset == 0.0 && rounding == Rounding::kOnce;
  }
};

// The arrays of a call of (..., heads, cols) that a head has its own part of.
inline constexpr CallArray<NormBackwardCall, ConstTensorView> kNormBackwardInputs[] = {
    {&NormBackwardCall::dy},
    {&NormBackwardCall::dsum},
    {&NormBackwardCall::x},
    {&NormBackwardCall::gate},
    {&NormBackwardCall::weight},
    {&NormBackwardCall::mean, /*is_statistic=*/true},
    {&NormBackwardCall::rstd, /*is_statistic=*/true},
};
inline constexpr CallArray<NormBackwardCall, TensorView> kNormBackwardOutputs[] = {
    {&NormBackwardCall::dx},      {&NormBackwardCall::dresidual}, {&NormBackwardCall::dgate},
    {&NormBackwardCall::dweight}, {&NormBackwardCall::dbias},
};

// The heads of a weight of (heads, cols), 1 for one of (cols,).
std::int64_t heads_of(const NormBackwardCall& call);

namespace cpu {
void rms_norm_backward(const RmsNormBackwardProblem& problem);
}
namespace cuda {
void rms_norm_backward(const RmsNormBackwardProblem& problem, StreamView stream);
}

}  // namespace membound
