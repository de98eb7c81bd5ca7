// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/softmax_backward.hpp"

#include "call.hpp"
#include "op_arguments.hpp"

namespace membound::python {

namespace {

constexpr const char* kName = "softmax_backward";

nb::object call_jax(const ArrayCall& call, const SoftmaxBackwardArguments& a) {
  call.check_jax_absent(a.dx, "dx", "which cannot be written");
  call.check_jax_absent(a.stream, "stream", "whose stream XLA picks");
  nb::dict keywords;
  if (a.scale != nullptr) keywords["scale"] = nb::handle(a.scale);
  return nb::module_::import_("membound.jax")
      .attr(kName)(nb::handle(a.dy), call.check_jax_input(a.y, "y"), **keywords);
}

}  // namespace

nb::object call_softmax_backward(const SoftmaxBackwardArguments& a) {
  const ArrayCall call(kName, a.dy, "dy", a.stream);
  if (call.is_jax()) return call_jax(call, a);
  const double scale = number_or(a.scale, 1.0, {kName, "scale"});
  LoadedArray dy, y, dx;
  call.read_input(a.dy, "dy", dy);
  call.read_input(a.y, "y", y);
  const nb::object result = call.output(a.dx, a.y, y.view, "dx", dx);
  {
    const StreamView stream = call.stream(y.view.device);
    const GilRelease released(is_long_on_cpu(y.view));
    softmax_backward(dy.view, y.view, scale, dx.view, stream);
  }
  call.mark_written({a.dx});
  return result;
}

}  // namespace membound::python
