// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "jax/call.hpp"
#include "membound/ops/cross_entropy_backward.hpp"

namespace membound::python::jax {

namespace {

CrossEntropyOptions options_of(const Call& call) {
  CrossEntropyOptions options;
  options.ignore_index = call.attribute<std::int64_t>("ignore_index", xla::DataType::kS64);
  options.label_smoothing = call.number("label_smoothing");
  options.z_loss = call.number("z_loss");
  options.softcap = call.number("softcap");
  options.validate = call.flag("validate");
  return options;
}

}  // namespace

// Operands: logits and labels. Results: the loss and lse. Batch axes are rows like the others.
void cross_entropy_call(const Call& call) {
  const TensorView loss = call.result(0), lse = call.result(1);
  const Batch rows{loss.rank, loss.shape};
  cross_entropy(rows.whole(call.operand(0)), rows.whole(call.operand(1)), nullptr, options_of(call),
                loss, &lse, nullptr, call.stream);
}

// Operands: dloss, logits, labels and lse.
void cross_entropy_backward_call(const Call& call) {
  const TensorView dlogits = call.result(0);
  const Batch rows{dlogits.rank - 1, dlogits.shape};
  const ConstTensorView dloss = rows.whole(call.operand(0));
  cross_entropy_backward(&dloss, rows.whole(call.operand(1)), rows.whole(call.operand(2)),
                         rows.whole(call.operand(3)), options_of(call), dlogits, call.stream);
}

}  // namespace membound::python::jax
