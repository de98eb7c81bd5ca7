// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "norm_ops.hpp"
#include "torch/kernel.hpp"
#include "torch/options.hpp"

namespace membound::python::torch {

namespace {

using Wanted = std::vector<bool>;

// The gradients; those not wanted are empty tensors, which are never passed to a kernel.
struct Gradient {
  Tensor made;
  bool wanted;

  Gradient(bool wanted_, const TensorView& like)
      : made(new_like_if(wanted_, like)), wanted(wanted_) {}
  const TensorView* view() const { return wanted ? &made.view() : nullptr; }
};

// The gradient of an optional parameter; `other` gives an empty one its dtype and device.
Gradient of_parameter(bool wanted, const MaybeTensor& parameter, const Tensor& other) {
  return {wanted && parameter, parameter ? parameter->view() : other.view()};
}

void run(NormBackwardOptions options, NormBackwardArrays& arrays) {
  options.added = arrays.dresidual_out != nullptr;
  const TensorView& x = *arrays.x;
  const MaybeTensor workspace = new_workspace(x.device, norm_backward_workspace(options, arrays));
  arrays.workspace = view_of(workspace);
  run_norm_backward(options, arrays, current_stream(x));
}

std::array<Tensor, 2> of_rms_norm(const char* op, NormBackwardArrays arrays, const Tensor& dy,
                                  const MaybeTensor& weight, const RmsNormNumbers& numbers,
                                  const Wanted& wanted) {
  const RmsNormOptions forward = numbers.options(op);
  const TensorView& like = arrays.dresidual_out != nullptr ? dy.view() : *arrays.x;
  Gradient dx(wanted.at(0), like), dweight = of_parameter(wanted.at(1), weight, dy);
  arrays.dy = &dy.view();
  arrays.weight = view_of(weight);
  arrays.dx = dx.view();
  arrays.dweight = dweight.view();
  run({{forward.weight_offset, forward.rounding}}, arrays);
  return {std::move(dx.made), std::move(dweight.made)};
}

std::array<Tensor, 2> rms_norm_backward(const Tensor& dy, const Tensor& x,
                                        const MaybeTensor& weight, const Tensor& rstd,
                                        const RmsNormNumbers& numbers, const Wanted& wanted) {
  return of_rms_norm("rms_norm_backward", {.x = &x.view(), .rstd = &rstd.view()}, dy, weight,
                     numbers, wanted);
}

std::array<Tensor, 2> add_rms_norm_backward(const Tensor& dy, const Tensor& dsum, const Tensor& sum,
                                            const MaybeTensor& weight, const Tensor& rstd,
                                            const RmsNormNumbers& numbers, const Wanted& wanted) {
  return of_rms_norm("add_rms_norm_backward",
                     {.dresidual_out = &dsum.view(), .x = &sum.view(), .rstd = &rstd.view()}, dy,
                     weight, numbers, wanted);
}

std::array<Tensor, 3> rms_norm_gated_backward(const Tensor& dy, const Tensor& x, const Tensor& z,
                                              const MaybeTensor& weight, const Tensor& rstd,
                                              const bool& norm_before_gate,
                                              const RmsNormNumbers& numbers, const Wanted& wanted) {
  const RmsNormOptions forward = numbers.options("rms_norm_gated_backward");
  Gradient dx(wanted.at(0), x.view()), dz(wanted.at(1), z.view());
  Gradient dweight = of_parameter(wanted.at(2), weight, dy);
  NormBackwardArrays arrays{.dy = &dy.view(),
                            .x = &x.view(),
                            .z = &z.view(),
                            .weight = view_of(weight),
                            .rstd = &rstd.view(),
                            .dx = dx.view(),
                            .dz = dz.view(),
                            .dweight = dweight.view()};
  run({{forward.weight_offset, forward.rounding}, norm_before_gate}, arrays);
  return {std::move(dx.made), std::move(dz.made), std::move(dweight.made)};
}

// The saved tensors of a layer_norm, with its options.
struct Centred {
  Tensor x;
  MaybeTensor weight, bias;
  Tensor mean, rstd;
  double eps, weight_offset;
  using Members = MembersOf<Tensor, MaybeTensor, MaybeTensor, Tensor, Tensor, double, double>;

  void load(const char* op) {
    for (Tensor* one : {&x, &mean, &rstd}) one->load(op);
    for (MaybeTensor* one : {&weight, &bias}) {
      if (*one) (*one)->load(op);
    }
  }
};

std::array<Tensor, 3> of_layer_norm(const Tensor& dy, const TensorView* dsum, const Centred& saved,
                                    const Wanted& wanted) {
  const TensorView& like = dsum != nullptr ? dy.view() : saved.x.view();
  Gradient dx(wanted.at(0), like), dweight = of_parameter(wanted.at(1), saved.weight, dy);
  Gradient dbias = of_parameter(wanted.at(2), saved.bias, dy);
  NormBackwardArrays arrays{.dy = &dy.view(),
                            .dresidual_out = dsum,
                            .x = &saved.x.view(),
                            .weight = view_of(saved.weight),
                            .mean = &saved.mean.view(),
                            .rstd = &saved.rstd.view(),
                            .dx = dx.view(),
                            .dweight = dweight.view(),
                            .dbias = dbias.view()};
  run({{saved.weight_offset}}, arrays);
  return {std::move(dx.made), std::move(dweight.made), std::move(dbias.made)};
}

std::array<Tensor, 3> layer_norm_backward(const Tensor& dy, const Centred& saved,
                                          const Wanted& wanted) {
  return of_layer_norm(dy, nullptr, saved, wanted);
}

std::array<Tensor, 3> add_layer_norm_backward(const Tensor& dy, const Tensor& dsum,
                                              const Centred& saved, const Wanted& wanted) {
  return of_layer_norm(dy, &dsum.view(), saved, wanted);
}

}  // namespace

void add_norm_backward_kernels(Kernels& all) {
  all.push_back(kernel<&rms_norm_backward>("rms_norm_backward"));
  all.push_back(kernel<&add_rms_norm_backward>("add_rms_norm_backward"));
  all.push_back(kernel<&rms_norm_gated_backward>("rms_norm_gated_backward"));
  all.push_back(kernel<&layer_norm_backward>("layer_norm_backward"));
  all.push_back(kernel<&add_layer_norm_backward>("add_layer_norm_backward"));
}

}  // namespace membound::python::torch
