// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/ops/rms_norm.hpp"
#include "membound/ops/rms_norm_backward.hpp"

// The norms of the C++ library behind one signature: calls from Python and from XLA come here.
namespace membound::python {

// The arrays of a forward; null: not there. residual and residual_out come together.
struct NormArrays {
  const TensorView* x = nullptr;
  const TensorView* residual = nullptr;
  const TensorView* weight = nullptr;
  const TensorView* bias = nullptr;
  const TensorView* out = nullptr;
  const TensorView* residual_out = nullptr;
  const TensorView* mean = nullptr;
  const TensorView* rstd = nullptr;
};

// layer_norm when centred, else rms_norm; with a residual their added forms.
void run_norm(bool centred, const RmsNormOptions& options, const NormArrays& arrays,
              StreamView stream);
void run_norm(bool centred, const RmsNormOptions& options, const NormArrays& arrays,
              Device staging_device);

// The arrays of a backward; null: not there, or not wanted.
struct NormBackwardArrays {
  const TensorView* dy = nullptr;
  const TensorView* dresidual_out = nullptr;
  const TensorView* x = nullptr;
  const TensorView* weight = nullptr;
  const TensorView* mean = nullptr;
  const TensorView* rstd = nullptr;
  const TensorView* dx = nullptr;
  const TensorView* dweight = nullptr;
  const TensorView* dbias = nullptr;
  const TensorView* workspace = nullptr;
};

// layer_norm's gradients with a mean, else rms_norm's; with dresidual_out those of the added forms.
void run_norm_backward(const RmsNormBackwardOptions& options, const NormBackwardArrays& arrays,
                       StreamView stream);
std::int64_t norm_backward_workspace(bool centred, const ConstTensorView& x);

}  // namespace membound::python
