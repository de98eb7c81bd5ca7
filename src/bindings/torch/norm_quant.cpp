// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "norm_ops.hpp"
#include "torch/options.hpp"

namespace membound::python::torch {

namespace {

// With a residual, the sum is returned between codes and scales.
template <std::size_t kCount>
std::array<Tensor, kCount> run(const char* op, const Tensor& x, const Tensor* residual,
                               const MaybeTensor& weight, const MaybeTensor& scale,
                               const QuantNumbers& quant, const RmsNormNumbers& numbers) {
  const Quantisation quantisation = quant.quantisation(op);
  const RmsNormOptions norm = numbers.options(op);
  std::array<Tensor, kCount> made;
  Tensor& scales = made[kCount - 1];
  made[0] = new_codes(x.view(), quantisation);
  if (residual != nullptr) made[1] = new_like(x.view());
  scales = new_scales(x.view(), quantisation, scale);
  run_norm_quant({norm.eps, norm.weight_offset, norm.rounding, quantisation.group_size,
                  quantisation.scale_upper_bound},
                 {.x = &x.view(),
                  .residual = residual != nullptr ? &residual->view() : nullptr,
                  .weight = view_of(weight),
                  .static_scale = view_of(scale),
                  .out = &made[0].view(),
                  .residual_out = residual != nullptr ? &made[1].view() : nullptr,
                  .scale = scale ? nullptr : &scales.view()},
                 current_stream(x.view()));
  return made;
}

std::array<Tensor, 2> rms_norm_quant(const Tensor& x, const MaybeTensor& weight,
                                     const MaybeTensor& scale, const QuantNumbers& quant,
                                     const RmsNormNumbers& numbers) {
  return run<2>("rms_norm_quant", x, nullptr, weight, scale, quant, numbers);
}

std::array<Tensor, 3> add_rms_norm_quant(const Tensor& x, const Tensor& residual,
                                         const MaybeTensor& weight, const MaybeTensor& scale,
                                         const QuantNumbers& quant, const RmsNormNumbers& numbers) {
  return run<3>("add_rms_norm_quant", x, &residual, weight, scale, quant, numbers);
}

}  // namespace

void add_norm_quant_kernels(Kernels& all) {
  all.push_back(kernel<&rms_norm_quant>("rms_norm_quant"));
  all.push_back(kernel<&add_rms_norm_quant>("add_rms_norm_quant"));
}

}  // namespace membound::python::torch
