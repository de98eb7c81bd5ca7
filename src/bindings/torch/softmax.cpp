// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/softmax.hpp"

#include "torch/kernel.hpp"

namespace membound::python::torch {

namespace {

Tensor softmax_forward(const Tensor& x, const MaybeTensor& mask, const double& scale,
                       const std::optional<std::int64_t>& causal_offset) {
  Tensor out = new_like(x.view());
  softmax(x.input(), input_of(mask), {scale, causal_offset}, out.view(), current_stream(x.view()));
  return out;
}

}  // namespace

// The backward stays in Python, because torch sums the gradient of a mask.
void add_softmax_kernels(Kernels& all) {
  all.push_back(kernel<&softmax_forward>("softmax_forward"));
}

}  // namespace membound::python::torch
