// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/ops/rms_norm.hpp"
#include "membound/ops/rms_norm_backward.hpp"
#include "membound/ops/rms_norm_quant.hpp"

// The norms of the C++ library behind one signature: calls from Python and from XLA come here.
namespace membound::python {

// Which forward it is, and what it computes with.
struct NormOptions {
  RmsNormOptions numbers;
  bool centred = false;          // layer_norm
  bool norm_before_gate = true;  // of rms_norm_gated
};

// The arrays of a forward; null: not there. residual and residual_out come together. z: the gate.
struct NormArrays {
  const TensorView* x = nullptr;
  const TensorView* residual = nullptr;
  const TensorView* z = nullptr;
  const TensorView* weight = nullptr;
  const TensorView* bias = nullptr;
  const TensorView* out = nullptr;
  const TensorView* residual_out = nullptr;
  const TensorView* mean = nullptr;
  const TensorView* rstd = nullptr;
};

// The function that computes a form: layer_norm when centred, with a residual its added form ...
const char* forward_name(bool centred, bool added, bool gated);

// layer_norm when centred, else rms_norm; with a residual their added forms, with z the gated one.
void run_norm(const NormOptions& options, const NormArrays& arrays, StreamView stream);
void run_norm(const NormOptions& options, const NormArrays& arrays, Device staging_device);

struct NormBackwardOptions {
  RmsNormBackwardOptions numbers;
  bool norm_before_gate = true;
  bool added = false;  // of add_rms_norm and add_layer_norm
};

// The arrays of a quantised forward; null: not there. One of static_scale and scale is.
struct NormQuantArrays {
  const TensorView* x = nullptr;
  const TensorView* residual = nullptr;
  const TensorView* weight = nullptr;
  const TensorView* static_scale = nullptr;
  const TensorView* out = nullptr;
  const TensorView* residual_out = nullptr;
  const TensorView* scale = nullptr;
};

// rms_norm_quant; with a residual its added form.
void run_norm_quant(const RmsNormQuantOptions& options, const NormQuantArrays& arrays,
                    StreamView stream);

// The shape and dtype of the scales of x: one for each row, or each group_size columns of one.
TensorView quant_scales_of(const TensorView& x, std::int64_t group_size);

// The arrays of a backward; null: not there, or not wanted.
struct NormBackwardArrays {
  const TensorView* dy = nullptr;
  const TensorView* dresidual_out = nullptr;
  const TensorView* x = nullptr;
  const TensorView* z = nullptr;
  const TensorView* weight = nullptr;
  const TensorView* mean = nullptr;
  const TensorView* rstd = nullptr;
  const TensorView* dx = nullptr;
  const TensorView* dresidual = nullptr;
  const TensorView* dz = nullptr;
  const TensorView* dweight = nullptr;
  const TensorView* dbias = nullptr;
  const TensorView* workspace = nullptr;
};

// layer_norm's gradients with a mean, else rms_norm's; added those of the added forms, with z those
// of the gated one.
void run_norm_backward(const NormBackwardOptions& options, const NormBackwardArrays& arrays,
                       StreamView stream);
// Bytes that its sums are made in on a GPU; 0 without dweight and dbias.
std::int64_t norm_backward_workspace(const NormBackwardOptions& options,
                                     const NormBackwardArrays& arrays);

}  // namespace membound::python
