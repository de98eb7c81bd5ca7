// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/rms_norm_generic.hpp"

#include <initializer_list>

#include "cuda/norm/rms_norm_generic_config.hpp"

namespace membound {

namespace {

bool have_one_dtype(DType dtype, std::initializer_list<const ConstTensorView*> inputs,
                    std::initializer_list<const TensorView*> outputs) {
  for (const auto* view : inputs) {
    if (view != nullptr && view->dtype != dtype) return false;
  }
  for (const auto* view : outputs) {
    if (view != nullptr && view->dtype != dtype) return false;
  }
  return true;
}

DType accumulate_dtype_of(std::initializer_list<const ConstTensorView*> inputs) {
  for (const auto* view : inputs) {
    if (view != nullptr && view->dtype == DType::kFloat64) return DType::kFloat64;
  }
  return DType::kFloat32;
}

}  // namespace

DType accumulate_dtype(const NormCall& call) {
  return accumulate_dtype_of({call.x, call.residual, call.gate});
}

bool is_generic(const NormCall& call) {
  return !have_one_dtype(call.x->dtype, {call.residual, call.gate},
                         {call.out, call.residual_out}) ||
         (call.weight == nullptr && call.options.weight_offset != 0.0);
}

DType accumulate_dtype(const NormBackwardCall& call) {
  return accumulate_dtype_of({call.dy, call.x, call.dsum, call.gate, call.mean, call.rstd});
}

// Without rows, sums are zero whatever the dtypes.
bool is_generic(const NormBackwardCall& call) {
  const ConstTensorView& x = *call.x;
  if (x.size() == 0) return false;
  return !have_one_dtype(x.dtype, {call.dy, call.dsum, call.gate}, {call.dx, call.dgate}) ||
         call.dresidual != nullptr ||
         !have_one_dtype(accumulate_dtype(x.dtype), {call.mean, call.rstd}, {}) ||
         (call.weight == nullptr && call.options.weight_offset != 0.0);
}

std::int64_t generic_gradient_workspace(std::int64_t rows, std::int64_t cols, std::int64_t heads,
                                        bool centred) {
  const auto config = cuda::tuning::generic_backward_config(rows, cols, heads, /*sums=*/true);
  return std::int64_t{config.partial_rows} * heads * cols * (centred ? 2 : 1) *
         std::int64_t{sizeof(double)};
}

}  // namespace membound
