// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/softmax.hpp"

#include "jax/call.hpp"

namespace membound::python::jax {

// Operands: x, and a mask with the same number of axes if any. Batch axes are merged into rows.
void softmax_call(const Call& call) {
  const TensorView out = call.result(0);
  const Batch rows{out.rank, out.shape};
  SoftmaxOptions options;
  options.scale = call.number("scale");
  if (call.flag("causal")) {
    options.causal_offset = call.attribute<std::int64_t>("causal_offset", xla::DataType::kS64);
  }
  ConstTensorView mask;
  const bool masked = call.operands() > 1;
  if (masked) mask = call.operand(1);
  softmax(rows.whole(call.operand(0)), masked ? &mask : nullptr, options, out, call.stream);
}

}  // namespace membound::python::jax
