// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "jax_handlers.hpp"
#include "membound/ops/gated_activation_backward.hpp"
#include "membound/ops/gated_activation_quant.hpp"

namespace membound::python::jax {

namespace {

template <class Given>
GatedActivationOptions options_of(const Given& a) {
  GatedActivationOptions options;
  options.kind = static_cast<Activation>(a.kind);
  options.alpha = a.alpha;
  options.limit = a.limit;
  options.up_offset = a.up_offset;
  return options;
}

// The gate, and up if there is one: packed in halves, interleaved, or arrays of their own.
struct Parts {
  TensorView gate;
  MaybeArray up;

  template <class Given>
  Parts(const Given& a, const MaybeArray& first, const MaybeArray& second) : up(second) {
    const bool is_packed = !a.up && a.packing <= static_cast<int>(Packing::kInterleaved);
    if (is_packed) {
      const auto both = split_gate_up(first.value(), static_cast<Packing>(a.packing));
      gate = both.gate;
      up = both.up;
    } else if (first) {
      gate = *first;
    }
  }
};

}  // namespace

void run(const GatedActivation& a, StreamView stream) {
  const Parts in(a, a.gate.value(), a.up);
  gated_activation(in.gate, OptionalView(in.up), OptionalView(a.row_scale), options_of(a),
                   a.out.value(), stream);
}

void run(const GatedActivationBackward& a, StreamView stream) {
  const Parts in(a, a.gate.value(), a.up), out(a, a.dgate, a.dup);
  gated_activation_backward(a.dy.value(), in.gate, OptionalView(in.up), OptionalView(a.row_scale),
                            options_of(a), a.dgate ? &out.gate : nullptr, pointer(out.up), stream);
}

void run(const GatedActivationQuant& a, StreamView stream) {
  const Parts in(a, a.gate.value(), a.up);
  gated_activation_quant(in.gate, OptionalView(in.up), OptionalView(a.row_scale),
                         {options_of(a), a.group_size, a.scale_upper_bound}, a.out.value(),
                         OptionalView(a.scale), pointer(a.scale_out), stream);
}

}  // namespace membound::python::jax
