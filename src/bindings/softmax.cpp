// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/softmax.hpp"

#include "call.hpp"
#include "op_arguments.hpp"

namespace membound::python {

namespace {

constexpr const char* kName = "softmax";

nb::object call_jax(const ArrayCall& call, const SoftmaxArguments& a) {
  call.check_jax_absent(a.out, "out", "which cannot be written");
  call.check_jax_absent(a.stream, "stream", "whose stream XLA picks");
  nb::dict keywords;
  if (a.scale != nullptr) keywords["scale"] = nb::handle(a.scale);
  if (a.causal_offset != nullptr) {
    keywords["causal_offset"] = nb::handle(a.causal_offset);
  }
  return nb::module_::import_("membound.jax")
      .attr(kName)(nb::handle(a.x), call.check_jax_input(a.mask, "mask"), **keywords);
}

SoftmaxOptions options_of(const SoftmaxArguments& a) {
  SoftmaxOptions options;
  options.scale = number_or(a.scale, 1.0, {kName, "scale"});
  if (given(a.causal_offset)) {
    options.causal_offset = integer_from_python(a.causal_offset, {kName, "causal_offset"});
  }
  return options;
}

}  // namespace

nb::object call_softmax(const SoftmaxArguments& a) {
  const ArrayCall call(kName, a.x, "x", a.stream);
  if (call.is_jax()) return call_jax(call, a);
  const SoftmaxOptions options = options_of(a);
  LoadedArray x, mask, out;
  call.read_input(a.x, "x", x);
  const bool masked = given(a.mask);
  ConstTensorView mask_view;
  if (masked) {
    call.read_input(a.mask, "mask", mask);
    mask_view = mask.view;
  }
  const nb::object result = call.output(a.out, a.x, x.view, "out", out);
  {
    const StreamView stream = call.stream(x.view.device);
    const GilRelease released(is_long_on_cpu(x.view));
    softmax(x.view, masked ? &mask_view : nullptr, options, out.view, stream);
  }
  call.mark_written({a.out});
  return result;
}

}  // namespace membound::python
