// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "norm_ops.hpp"

#include "membound/ops/add_layer_norm.hpp"
#include "membound/ops/add_layer_norm_backward.hpp"
#include "membound/ops/add_rms_norm.hpp"
#include "membound/ops/add_rms_norm_backward.hpp"
#include "membound/ops/add_rms_norm_quant.hpp"
#include "membound/ops/rms_norm_gated.hpp"
#include "membound/ops/rms_norm_gated_backward.hpp"

namespace membound::python {

namespace {

// The view of an optional array.
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
  const RmsNormOptions& options = given.numbers;
  const Input weight(a.weight), bias(a.bias);
  const LayerNormOptions centred_options{options.eps, options.weight_offset};
  if (given.centred && a.residual) {
    add_layer_norm(*a.x, *a.residual, weight, bias, centred_options, *a.out, *a.residual_out,
                   a.mean, a.rstd, where);
  } else if (given.centred) {
    layer_norm(*a.x, weight, bias, centred_options, *a.out, a.mean, a.rstd, where);
  } else if (a.residual) {
    add_rms_norm(*a.x, *a.residual, weight, options, *a.out, *a.residual_out, a.rstd, where);
  } else if (a.z) {
    rms_norm_gated(*a.x, *a.z, weight,
                   {options.eps, options.weight_offset, options.rounding, given.norm_before_gate},
                   *a.out, a.rstd, where);
  } else {
    rms_norm(*a.x, weight, options, *a.out, a.rstd, where);
  }
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
  const Input weight(a.weight), static_scale(a.static_scale);
  if (a.residual) {
    add_rms_norm_quant(*a.x, *a.residual, weight, options, *a.out, *a.residual_out, static_scale,
                       a.scale, stream);
  } else {
    rms_norm_quant(*a.x, weight, options, *a.out, static_scale, a.scale, stream);
  }
}

TensorView quant_scales_of(const TensorView& x, std::int64_t group_size) {
  TensorView scales = x;
  scales.dtype = DType::kFloat32;
  if (x.rank == 0) return scales;  // every op refuses rank 0
  if (group_size == 0) {
    --scales.rank;
  } else {
    std::int64_t& last = scales.shape[scales.rank - 1];
    last = (last + group_size - 1) / group_size;
  }
  return scales;
}

void run_norm_backward(const NormBackwardOptions& given, const NormBackwardArrays& a,
                       StreamView stream) {
  const RmsNormBackwardOptions& options = given.numbers;
  const Input weight(a.weight), dresidual_out(a.dresidual_out);
  const LayerNormBackwardOptions centred_options{options.weight_offset, options.accumulate};
  if (a.mean && given.added) {
    add_layer_norm_backward(*a.dy, dresidual_out, *a.x, weight, *a.mean, *a.rstd, centred_options,
                            a.dx, a.dresidual, a.dweight, a.dbias, a.workspace, stream);
  } else if (a.mean) {
    layer_norm_backward(*a.dy, *a.x, weight, *a.mean, *a.rstd, centred_options, a.dx, a.dweight,
                        a.dbias, a.workspace, stream);
  } else if (given.added) {
    add_rms_norm_backward(*a.dy, dresidual_out, *a.x, weight, *a.rstd, options, a.dx, a.dresidual,
                          a.dweight, a.workspace, stream);
  } else if (a.z) {
    rms_norm_gated_backward(
        *a.dy, *a.x, *a.z, weight, *a.rstd,
        {options.weight_offset, options.rounding, given.norm_before_gate, options.accumulate}, a.dx,
        a.dz, a.dweight, a.workspace, stream);
  } else {
    rms_norm_backward(*a.dy, *a.x, weight, *a.rstd, options, a.dx, a.dweight, a.workspace, stream);
  }
}

std::int64_t norm_backward_workspace(bool centred, bool gated, const ConstTensorView& x,
                                     std::int64_t heads, bool mixed) {
  if (centred) return layer_norm_backward_workspace(x, heads, mixed);
  return gated ? rms_norm_gated_backward_workspace(x, heads, mixed)
               : rms_norm_backward_workspace(x, heads, mixed);
}

namespace {

// The heads of a weight of (heads, cols), else 1; the op checks the shape afterwards.
std::int64_t heads_of(const TensorView& x, const TensorView* weight) {
  if (weight == nullptr || weight->rank != 2 || x.rank < 3) return 1;
  return weight->shape[0] == x.shape[x.rank - 2] ? weight->shape[0] : 1;
}

bool is_mixed(const NormBackwardOptions& options, const NormBackwardArrays& a) {
  for (const TensorView* rows : {a.dy, a.dresidual_out, a.z, a.dx, a.dz}) {
    if (rows != nullptr && rows->dtype != a.x->dtype) return true;
  }
  for (const TensorView* statistic : {a.mean, a.rstd}) {
    if (statistic != nullptr && statistic->dtype != accumulate_dtype(a.x->dtype)) return true;
  }
  return a.dresidual != nullptr || (a.weight == nullptr && options.numbers.weight_offset != 0.0);
}

}  // namespace

std::int64_t norm_backward_workspace(const NormBackwardOptions& options,
                                     const NormBackwardArrays& a) {
  if (a.dweight == nullptr && a.dbias == nullptr) return 0;
  return norm_backward_workspace(a.mean != nullptr, a.z != nullptr, *a.x, heads_of(*a.x, a.weight),
                                 is_mixed(options, a));
}

}  // namespace membound::python
