// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "norm_ops.hpp"

#include "membound/norm_call.hpp"

namespace membound::python {

const char* forward_name(bool centred, bool added, bool gated) {
  if (centred) return added ? "add_layer_norm" : "layer_norm";
  if (gated) return "rms_norm_gated";
  return added ? "add_rms_norm" : "rms_norm";
}

namespace {

const char* backward_name(bool centred, bool added, bool gated) {
  if (centred) return added ? "add_layer_norm_backward" : "layer_norm_backward";
  if (gated) return "rms_norm_gated_backward";
  return added ? "add_rms_norm_backward" : "rms_norm_backward";
}

// The view that the library reads of an array that may not be there.
class Input {
 public:
  explicit Input(const TensorView* array) : given_(array != nullptr) {
    if (given_) view_ = *array;
  }
  operator const ConstTensorView*() const { return given_ ? &view_ : nullptr; }

 private:
  ConstTensorView view_;
  bool given_;
};

template <class Where>
void run_forward(const NormOptions& given, const NormArrays& a, Where where) {
  const Input x(a.x), residual(a.residual), gate(a.z), weight(a.weight), bias(a.bias);
  norm({.op = forward_name(given.centred, a.residual != nullptr, a.z != nullptr),
        .x = x,
        .residual = residual,
        .gate = gate,
        .weight = weight,
        .bias = bias,
        .options = given.numbers,
        .centred = given.centred,
        .norm_before_gate = given.norm_before_gate,
        .out = a.out,
        .residual_out = a.residual_out,
        .mean = a.mean,
        .rstd = a.rstd},
       where);
}

// The call, whose inputs are held by `inputs`.
struct BackwardInputs {
  const Input dy, dsum, x, gate, weight, mean, rstd;
  explicit BackwardInputs(const NormBackwardArrays& a)
      : dy(a.dy),
        dsum(a.dresidual_out),
        x(a.x),
        gate(a.z),
        weight(a.weight),
        mean(a.mean),
        rstd(a.rstd) {}
};
membound::NormBackwardCall backward_call(const NormBackwardOptions& given,
                                         const NormBackwardArrays& a,
                                         const BackwardInputs& inputs) {
  const bool centred = a.mean != nullptr;
  return {.op = backward_name(centred, given.added, a.z != nullptr),
          .x_name = given.added ? "residual_out" : "x",
          .dy = inputs.dy,
          .dsum = inputs.dsum,
          .x = inputs.x,
          .gate = inputs.gate,
          .weight = inputs.weight,
          .mean = inputs.mean,
          .rstd = inputs.rstd,
          .options = given.numbers,
          .is_added = given.added,
          .norm_before_gate = given.norm_before_gate,
          .dx = a.dx,
          .dresidual = a.dresidual,
          .dgate = a.dz,
          .dweight = a.dweight,
          .dbias = a.dbias,
          .workspace = a.workspace};
}

}  // namespace

void run_norm(const NormOptions& options, const NormArrays& arrays, StreamView stream) {
  run_forward(options, arrays, stream);
}

void run_norm(const NormOptions& options, const NormArrays& arrays, Device staging_device) {
  run_forward(options, arrays, staging_device);
}

void run_norm_quant(const RmsNormQuantOptions& options, const NormQuantArrays& a,
                    StreamView stream) {
  const Input x(a.x), residual(a.residual), weight(a.weight), static_scale(a.static_scale);
  norm_quant({.op = a.residual ? "add_rms_norm_quant" : "rms_norm_quant",
              .x = x,
              .residual = residual,
              .weight = weight,
              .static_scale = static_scale,
              .options = options,
              .out = a.out,
              .residual_out = a.residual_out,
              .scale = a.scale},
             stream);
}

TensorView quant_scales_of(const TensorView& x, std::int64_t group_size) {
  TensorView scales = x;
  scales.dtype = DType::kFloat32;
  if (x.rank == 0) return scales;  // which no op takes
  if (group_size == 0) {
    --scales.rank;
  } else {
    std::int64_t& last = scales.shape[scales.rank - 1];
    last = (last + group_size - 1) / group_size;
  }
  return scales;
}

void run_norm_backward(const NormBackwardOptions& options, const NormBackwardArrays& arrays,
                       StreamView stream) {
  norm_backward(backward_call(options, arrays, BackwardInputs(arrays)), stream);
}

std::int64_t norm_backward_workspace(const NormBackwardOptions& options,
                                     const NormBackwardArrays& arrays) {
  return membound::norm_backward_workspace(backward_call(options, arrays, BackwardInputs(arrays)));
}

}  // namespace membound::python
