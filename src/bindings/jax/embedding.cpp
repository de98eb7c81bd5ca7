// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/embedding.hpp"

#include "jax/call.hpp"
#include "membound/ops/embedding_backward.hpp"

namespace membound::python::jax {

namespace {

struct Arrays {
  TensorView ids, weight, out;
  MaybeArray position_ids, position_weight;
};

void run(const Call& call, const Arrays& a) {
  EmbeddingOptions options;
  options.scale = call.number("scale");
  options.vocab_start = call.attribute<std::int64_t>("vocab_start", xla::DataType::kS64);
  options.validate = call.flag("validate");
  ConstTensorView ids, weight;
  if (a.position_ids) ids = *a.position_ids;
  if (a.position_weight) weight = *a.position_weight;
  embedding(a.ids, a.weight, a.position_ids ? &ids : nullptr, a.position_weight ? &weight : nullptr,
            options, a.out, call.stream);
}

}  // namespace

// Operands: ids, weight, then position_ids and position_weight if given. Batch axes are further
// axes of ids, unless a table is mapped: then the batch is computed element by element.
void embedding_call(const Call& call) {
  Arrays all;
  std::int64_t next = 0;
  all.ids = call.operand(next++);
  all.weight = call.operand(next++);
  if (call.flag("position_ids")) all.position_ids = call.operand(next++);
  if (call.flag("position_weight")) all.position_weight = call.operand(next++);
  all.out = call.result(0);
  const int axes = all.out.rank - 1 - call.integer("rank");
  const Batch batch{axes, all.out.shape};
  if (is_common(all.weight, axes) && is_common(all.position_weight, axes)) {
    Arrays rows = all;
    rows.ids = batch.whole(all.ids);
    rows.weight = batch.element(all.weight, 0);
    if (all.position_ids) rows.position_ids = batch.whole(*all.position_ids);
    if (all.position_weight) rows.position_weight = batch.element(*all.position_weight, 0);
    return run(call, rows);
  }
  for (std::int64_t i = 0; i < batch.size(); ++i) {
    Arrays one;
    one.ids = batch.element(all.ids, i);
    one.weight = batch.element(all.weight, i);
    one.out = batch.element(all.out, i);
    if (all.position_ids) one.position_ids = batch.element(*all.position_ids, i);
    if (all.position_weight) one.position_weight = batch.element(*all.position_weight, i);
    run(call, one);
  }
}

// Operands: dy, ids. Results: the gradient, and the workspace if there are tokens. Each element of
// a batch has its own gradient.
void embedding_backward_call(const Call& call) {
  EmbeddingBackwardOptions options;
  options.scale = call.number("scale");
  options.vocab_start = call.attribute<std::int64_t>("vocab_start", xla::DataType::kS64);
  options.padding_idx = call.attribute<std::int64_t>("padding_idx", xla::DataType::kS64);
  options.scale_grad_by_freq = call.flag("scale_grad_by_freq");
  options.validate = call.flag("validate");
  const TensorView dy = call.operand(0), ids = call.operand(1), out = call.result(0);
  MaybeArray workspace;
  if (call.results() > 1) workspace = call.result(1);
  const Batch batch{out.rank - 2, out.shape};
  for (std::int64_t i = 0; i < batch.size(); ++i) {
    MaybeArray bytes;
    if (workspace) bytes = batch.element(*workspace, i);
    embedding_backward(batch.element(dy, i), batch.element(ids, i), options, batch.element(out, i),
                       pointer(bytes), call.stream);
  }
}

}  // namespace membound::python::jax
