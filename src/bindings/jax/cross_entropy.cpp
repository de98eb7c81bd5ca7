// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "jax_handlers.hpp"
#include "membound/ops/cross_entropy_backward.hpp"

namespace membound::python::jax {

namespace {

// Reductions are JAX's own.
template <class Given>
CrossEntropyOptions options_of(const Given& a) {
  CrossEntropyOptions options;
  options.ignore_index = a.ignore_index;
  options.label_smoothing = a.label_smoothing;
  options.z_loss = a.z_loss;
  options.softcap = a.softcap;
  options.validate = a.validate;
  return options;
}

}  // namespace

void run(const CrossEntropy& a, StreamView stream) {
  CrossEntropyResults also;
  also.lse = pointer(a.lse);
  also.z_loss = pointer(a.z_losses);
  also.predictions = pointer(a.predictions);
  also.entropy = pointer(a.entropy);
  cross_entropy(a.logits.value(), a.labels.value(), OptionalView(a.weight), nullptr, options_of(a),
                a.loss.value(), also, stream);
}

void run(const CrossEntropyBackward& a, StreamView stream) {
  cross_entropy_backward(OptionalView(a.dloss), a.logits.value(), a.labels.value(), a.lse.value(),
                         OptionalView(a.weight), options_of(a), a.dlogits.value(), nullptr, stream,
                         {OptionalView(a.entropy), OptionalView(a.dentropy)});
}

}  // namespace membound::python::jax
