// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "norm_ops.hpp"

#include "membound/ops/add_layer_norm.hpp"
#include "membound/ops/add_layer_norm_backward.hpp"
#include "membound/ops/add_rms_norm.hpp"
#include "membound/ops/add_rms_norm_backward.hpp"

namespace membound::python {

namespace {

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
void run_forward(bool centred, const RmsNormOptions& options, const NormArrays& a, Where where) {
  const Input weight(a.weight), bias(a.bias);
  const LayerNormOptions centred_options{options.eps, options.weight_offset};
  if (centred && a.residual) {
    add_layer_norm(*a.x, *a.residual, weight, bias, centred_options, *a.out, *a.residual_out,
                   a.mean, a.rstd, where);
  } else if (centred) {
    layer_norm(*a.x, weight, bias, centred_options, *a.out, a.mean, a.rstd, where);
  } else if (a.residual) {
    add_rms_norm(*a.x, *a.residual, weight, options, *a.out, *a.residual_out, a.rstd, where);
  } else {
    rms_norm(*a.x, weight, options, *a.out, a.rstd, where);
  }
}

}  // namespace

void run_norm(bool centred, const RmsNormOptions& options, const NormArrays& arrays,
              StreamView stream) {
  run_forward(centred, options, arrays, stream);
}

void run_norm(bool centred, const RmsNormOptions& options, const NormArrays& arrays,
              Device staging_device) {
  run_forward(centred, options, arrays, staging_device);
}

void run_norm_backward(const RmsNormBackwardOptions& options, const NormBackwardArrays& a,
                       StreamView stream) {
  const Input weight(a.weight);
  const LayerNormBackwardOptions centred_options{options.weight_offset, options.accumulate};
  if (a.mean && a.dresidual_out) {
    add_layer_norm_backward(*a.dy, *a.dresidual_out, *a.x, weight, *a.mean, *a.rstd,
                            centred_options, a.dx, a.dweight, a.dbias, a.workspace, stream);
  } else if (a.mean) {
    layer_norm_backward(*a.dy, *a.x, weight, *a.mean, *a.rstd, centred_options, a.dx, a.dweight,
                        a.dbias, a.workspace, stream);
  } else if (a.dresidual_out) {
    add_rms_norm_backward(*a.dy, *a.dresidual_out, *a.x, weight, *a.rstd, options, a.dx, a.dweight,
                          a.workspace, stream);
  } else {
    rms_norm_backward(*a.dy, *a.x, weight, *a.rstd, options, a.dx, a.dweight, a.workspace, stream);
  }
}

std::int64_t norm_backward_workspace(bool centred, const ConstTensorView& x) {
  return centred ? layer_norm_backward_workspace(x) : rms_norm_backward_workspace(x);
}

}  // namespace membound::python
