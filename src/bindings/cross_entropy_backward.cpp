// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/cross_entropy_backward.hpp"

#include "cross_entropy.hpp"
#include "op_arguments.hpp"

namespace membound::python {

namespace {

constexpr const char* kName = "cross_entropy_backward";

nb::object call_jax(const ArrayCall& call, const CrossEntropyBackwardArguments& a) {
  call.check_jax_absent(a.dlogits, "dlogits", "which cannot be written");
  call.check_jax_absent(a.stream, "stream", "whose stream XLA picks");
  nb::dict keywords = cross_entropy_keywords(a);
  keywords["entropy"] = call.check_jax_input(a.entropy, "entropy");
  keywords["dentropy"] = call.check_jax_input(a.dentropy, "dentropy");
  return nb::module_::import_("membound.jax")
      .attr(kName)(nb::handle(a.dloss), nb::handle(a.logits),
                   call.check_jax_input(a.labels, "labels"), call.check_jax_input(a.lse, "lse"),
                   call.check_jax_input(a.weight, "weight"), **keywords);
}

}  // namespace

nb::object call_cross_entropy_backward(const CrossEntropyBackwardArguments& a) {
  MEMBOUND_CHECK(a.dloss != Py_None, TypeMismatch, kName,
                 "argument 'dloss' must be a number or an array, got None");
  const ArrayCall call(kName, a.logits, "logits", a.stream);
  if (call.is_jax()) return call_jax(call, a);
  CrossEntropyOptions options = cross_entropy_options(a, kName);
  LoadedArray logits, labels, lse, dlogits, scale;
  call.read_input(a.logits, "logits", logits);
  call.read_input(a.labels, "labels", labels);
  call.read_input(a.lse, "lse", lse);
  const OptionalInput weight(call, a.weight, "weight");
  const OptionalInput dloss = loss_gradient(call, a.dloss, options, kName);
  const OptionalInput entropy(call, a.entropy, "entropy");
  const OptionalInput dentropy(call, a.dentropy, "dentropy");
  const nb::object result = call.output(a.dlogits, a.logits, logits.view, "dlogits", dlogits);
  nb::object held;
  const bool wants_scale = options.reduction == Reduction::kMean && logits.view.device.is_cuda();
  if (wants_scale) {
    held = call.new_as(a.logits, like_loss(logits.view, Reduction::kMean), "scale", scale);
  }
  {
    const StreamView stream = call.stream(logits.view.device);
    const GilRelease released(is_long_on_cpu(logits.view));
    cross_entropy_backward(dloss, logits.view, labels.view, lse.view, weight, options, dlogits.view,
                           wants_scale ? &scale.view : nullptr, stream, {entropy, dentropy});
  }
  call.mark_written({a.dlogits});
  return result;
}

}  // namespace membound::python
