// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/embedding.hpp"

#include "jax_handlers.hpp"
#include "membound/ops/embedding_backward.hpp"

namespace membound::python::jax {

void run(const Embedding& a, StreamView stream) {
  embedding(a.ids.value(), a.weight.value(), OptionalView(a.position_ids),
            OptionalView(a.position_weight), {a.scale, a.vocab_start, a.validate}, a.out.value(),
            stream);
}

void run(const EmbeddingBackward& a, StreamView stream) {
  EmbeddingBackwardOptions options;
  options.scale = a.scale;
  options.vocab_start = a.vocab_start;
  options.padding_idx = a.padding_idx.value_or(-1);
  options.scale_grad_by_freq = a.scale_grad_by_freq;
  options.validate = a.validate;
  embedding_backward(a.dy.value(), a.ids.value(), options, a.out.value(), pointer(a.workspace),
                     stream);
}

}  // namespace membound::python::jax
