// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/check.hpp"
#include "norm_ops.hpp"
#include "torch/kernel.hpp"
#include "torch/options.hpp"

namespace membound::python::torch {

namespace {

// kStatistics is false if no gradient will be computed: the statistics are not written.
template <bool kStatistics>
std::array<Tensor, 1 + kStatistics> rms_norm(const Tensor& x, const MaybeTensor& weight,
                                             const RmsNormNumbers& numbers) {
  std::array<Tensor, 1 + kStatistics> made{new_like(x.view())};
  NormArrays arrays{.x = &x.view(), .weight = view_of(weight), .out = &made[0].view()};
  if constexpr (kStatistics) {
    made[1] = new_rows(x.view());
    arrays.rstd = &made[1].view();
  }
  run_norm({numbers.options("rms_norm")}, arrays, current_stream(x.view()));
  return made;
}

template <bool kStatistics>
std::array<Tensor, 2 + kStatistics> add_rms_norm(const Tensor& x, const Tensor& residual,
                                                 const MaybeTensor& weight,
                                                 const RmsNormNumbers& numbers) {
  std::array<Tensor, 2 + kStatistics> made{new_like(x.view()), new_like(x.view())};
  NormArrays arrays{.x = &x.view(),
                    .residual = &residual.view(),
                    .weight = view_of(weight),
                    .out = &made[0].view(),
                    .residual_out = &made[1].view()};
  if constexpr (kStatistics) {
    made[2] = new_rows(x.view());
    arrays.rstd = &made[2].view();
  }
  run_norm({numbers.options("add_rms_norm")}, arrays, current_stream(x.view()));
  return made;
}

template <bool kStatistics>
std::array<Tensor, 1 + kStatistics> rms_norm_gated(const Tensor& x, const Tensor& z,
                                                   const MaybeTensor& weight,
                                                   const bool& norm_before_gate,
                                                   const RmsNormNumbers& numbers) {
  std::array<Tensor, 1 + kStatistics> made{new_like(x.view())};
  NormArrays arrays{
      .x = &x.view(), .z = &z.view(), .weight = view_of(weight), .out = &made[0].view()};
  if constexpr (kStatistics) {
    made[1] = new_rows(x.view());
    arrays.rstd = &made[1].view();
  }
  run_norm({.numbers = numbers.options("rms_norm_gated"), .norm_before_gate = norm_before_gate},
           arrays, current_stream(x.view()));
  return made;
}

// layer_norm's two statistics.
NormOptions centred(double eps, double weight_offset) {
  return {.numbers = {.eps = eps, .weight_offset = weight_offset}, .centred = true};
}

template <bool kStatistics>
std::array<Tensor, kStatistics ? 3 : 1> layer_norm(const Tensor& x, const MaybeTensor& weight,
                                                   const MaybeTensor& bias, const double& eps,
                                                   const double& weight_offset) {
  std::array<Tensor, kStatistics ? 3 : 1> made{new_like(x.view())};
  NormArrays arrays{
      .x = &x.view(), .weight = view_of(weight), .bias = view_of(bias), .out = &made[0].view()};
  if constexpr (kStatistics) {
    made[1] = new_rows(x.view());
    made[2] = new_rows(x.view());
    arrays.mean = &made[1].view();
    arrays.rstd = &made[2].view();
  }
  run_norm(centred(eps, weight_offset), arrays, current_stream(x.view()));
  return made;
}

template <bool kStatistics>
std::array<Tensor, kStatistics ? 4 : 2> add_layer_norm(const Tensor& x, const Tensor& residual,
                                                       const MaybeTensor& weight,
                                                       const MaybeTensor& bias, const double& eps,
                                                       const double& weight_offset) {
  std::array<Tensor, kStatistics ? 4 : 2> made{new_like(x.view()), new_like(x.view())};
  NormArrays arrays{.x = &x.view(),
                    .residual = &residual.view(),
                    .weight = view_of(weight),
                    .bias = view_of(bias),
                    .out = &made[0].view(),
                    .residual_out = &made[1].view()};
  if constexpr (kStatistics) {
    made[2] = new_rows(x.view());
    made[3] = new_rows(x.view());
    arrays.mean = &made[2].view();
    arrays.rstd = &made[3].view();
  }
  run_norm(centred(eps, weight_offset), arrays, current_stream(x.view()));
  return made;
}

// In place on input and residual.
void run_fused(const Tensor& input, const Tensor& residual, const MaybeTensor& weight,
               const RmsNormOptions& options) {
  run_norm({options},
           {.x = &input.view(),
            .residual = &residual.view(),
            .weight = view_of(weight),
            .out = &input.view(),
            .residual_out = &residual.view()},
           current_stream(input.view()));
}

void fused_add_rms_norm(const Tensor& input, const Tensor& residual, const MaybeTensor& weight,
                        const double& epsilon) {
  run_fused(input, residual, weight, {.eps = epsilon});
}

void gemma_fused_add_rms_norm(const Tensor& input, const Tensor& residual,
                              const MaybeTensor& weight, const double& epsilon) {
  MEMBOUND_CHECK(weight, TypeMismatch, "gemma_fused_add_rms_norm",
                 "argument 'weight' must be an array, got None");
  run_fused(input, residual, weight, {.eps = epsilon, .weight_offset = 1.0});
}

}  // namespace

void add_norm_kernels(Kernels& all) {
  all.push_back(kernel<&rms_norm<true>>("rms_norm_forward"));
  all.push_back(kernel<&rms_norm<false>>("rms_norm_inference"));
  all.push_back(kernel<&add_rms_norm<true>>("add_rms_norm_forward"));
  all.push_back(kernel<&add_rms_norm<false>>("add_rms_norm_inference"));
  all.push_back(kernel<&rms_norm_gated<true>>("rms_norm_gated_forward"));
  all.push_back(kernel<&rms_norm_gated<false>>("rms_norm_gated_inference"));
  all.push_back(kernel<&layer_norm<true>>("layer_norm_forward"));
  all.push_back(kernel<&layer_norm<false>>("layer_norm_inference"));
  all.push_back(kernel<&add_layer_norm<true>>("add_layer_norm_forward"));
  all.push_back(kernel<&add_layer_norm<false>>("add_layer_norm_inference"));
  all.push_back(kernel<&fused_add_rms_norm>("fused_add_rms_norm"));
  all.push_back(kernel<&gemma_fused_add_rms_norm>("gemma_fused_add_rms_norm"));
}

}  // namespace membound::python::torch
