// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/check.hpp"
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

// Whether there is one more operand, a weight, which must be the same for all elements of a batch.
const ConstTensorView* weight_of(const Call& call, std::int64_t at, ConstTensorView& weight) {
  if (call.operands() <= at) return nullptr;
  weight = call.operand(at);
  const int axes = weight.rank - 1;
  MEMBOUND_CHECK(is_common(call.operand(at), axes), InvalidArgument, "cross_entropy",
                 "argument 'weight' must be the same in all of a batch");
  weight.shape[0] = weight.shape[axes];
  weight.strides[0] = weight.strides[axes];
  weight.rank = 1;
  return &weight;
}

}  // namespace

// Operands: logits, labels and an optional weight. Results: the loss, lse, the z loss and the
// predictions. Batch axes are merged into rows.
void cross_entropy_call(const Call& call) {
  const TensorView loss = call.result(0), lse = call.result(1), z_loss = call.result(2),
                   predictions = call.result(3);
  const Batch rows{loss.rank, loss.shape};
  CrossEntropyResults also;
  also.lse = &lse;
  also.z_loss = &z_loss;
  if (call.flag("wants_predictions")) also.predictions = &predictions;
  ConstTensorView weight;
  cross_entropy(rows.whole(call.operand(0)), rows.whole(call.operand(1)),
                weight_of(call, 2, weight), nullptr, options_of(call), loss, also, call.stream);
}

// Operands: dloss, logits, labels, lse and an optional weight.
void cross_entropy_backward_call(const Call& call) {
  const TensorView dlogits = call.result(0);
  const Batch rows{dlogits.rank - 1, dlogits.shape};
  const ConstTensorView dloss = rows.whole(call.operand(0));
  ConstTensorView weight;
  cross_entropy_backward(&dloss, rows.whole(call.operand(1)), rows.whole(call.operand(2)),
                         rows.whole(call.operand(3)), weight_of(call, 4, weight), options_of(call),
                         dlogits, nullptr, call.stream);
}

}  // namespace membound::python::jax
