// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/ops/rms_norm.hpp"
#include "membound/ops/rms_norm_backward.hpp"
#include "membound/ops/rms_norm_quant.hpp"

// The norms of the C++ library behind one signature, for calls from Python and from XLA.
namespace membound::python {

// The kind of forward and its options.
struct NormOptions {
  RmsNormOptions numbers;
  bool centred = false;          // layer_norm
  bool norm_before_gate = true;  // of rms_norm_gated
};

// The arrays of a forward; null: absent. residual and residual_out are given together. z: the gate.
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

// layer_norm when centred, else rms_norm; with a residual their added forms, with z the gated one.
void run_norm(const NormOptions& options, const NormArrays& arrays, StreamView stream);
void run_norm(const NormOptions& options, const NormArrays& arrays, Device staging_device);

struct NormBackwardOptions {
  RmsNormBackwardOptions numbers;
  bool norm_before_gate = true;
  bool added = false;  // for add_rms_norm and add_layer_norm
};

// The arrays of a quantised forward; null: absent. Exactly one of static_scale and scale is given.
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

// The shape and dtype of the scales of x: one per row, or per group_size columns of a row.
TensorView quant_scales_of(const TensorView& x, std::int64_t group_size);

// The arrays of a backward; null: absent, or not wanted.
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

// The gradients of layer_norm with a mean, else of rms_norm; with `added` those of the added forms,
// with z those of the gated form.
void run_norm_backward(const NormBackwardOptions& options, const NormBackwardArrays& arrays,
                       StreamView stream);
// Bytes of workspace for its sums on a GPU; 0 without dweight and dbias.
std::int64_t norm_backward_workspace(const NormBackwardOptions& options,
                                     const NormBackwardArrays& arrays);
// The same for gradients of layer_norm or of rms_norm, which may have a gate. heads: of the weight.
// mixed: as in rms_norm_backward_workspace.
std::int64_t norm_backward_workspace(bool centred, bool gated, const ConstTensorView& x,
                                     std::int64_t heads, bool mixed);

}  // namespace membound::python
