// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "jax/call.hpp"
#include "membound/ops/gated_activation_backward.hpp"
#include "membound/ops/gated_activation_quant.hpp"

namespace membound::python::jax {

namespace {

// The attributes, as numbered in membound.jax._gated_activation.
enum Packed { kHalves, kInterleaved, kAlone, kApart };

GatedActivationOptions options_of(const Call& call) {
  GatedActivationOptions options;
  options.kind = static_cast<Activation>(call.integer("kind"));
  options.alpha = call.number("alpha");
  options.limit = call.number("limit");
  options.up_offset = call.number("up_offset");
  return options;
}

// The gate, and up if there is one.
struct Parts {
  TensorView gate;
  MaybeArray up;
};
Parts parts_of(const TensorView& packed, Packed form) {
  if (form == kAlone || form == kApart) return {packed, {}};
  const auto both =
      split_gate_up(packed, form == kHalves ? Packing::kHalves : Packing::kInterleaved);
  return {both.gate, both.up};
}

// Operands [next, end): the gate, up if it is separate, the scale of rows if any. Batch axes are
// merged into rows.
struct Inputs {
  Parts parts;
  MaybeArray row_scale;

  Inputs(const Call& call, std::int64_t next, std::int64_t end, const Batch& rows) {
    const Packed form = static_cast<Packed>(call.integer("form"));
    parts = parts_of(rows.whole(call.operand(next++)), form);
    if (form == kApart) parts.up = rows.whole(call.operand(next++));
    if (end > next) row_scale = rows.whole(call.operand(next));
  }
};

class Input {
 public:
  explicit Input(const MaybeArray& array) : given_(array.has_value()) {
    if (given_) view_ = *array;
  }
  operator const ConstTensorView*() const { return given_ ? &view_ : nullptr; }

 private:
  ConstTensorView view_;
  bool given_;
};

}  // namespace

void gated_activation_call(const Call& call) {
  const TensorView out = call.result(0);
  const Inputs inputs(call, 0, call.operands(), {out.rank - 1, out.shape});
  gated_activation(inputs.parts.gate, Input(inputs.parts.up), Input(inputs.row_scale),
                   options_of(call), out, call.stream);
}

// Operands: dy, then those of the forward. Results: the packed gradient, or the wanted ones of the
// gradients of gate and up.
void gated_activation_backward_call(const Call& call) {
  const TensorView first = call.result(0);
  const Batch rows{first.rank - 1, first.shape};
  const Inputs inputs(call, 1, call.operands(), rows);
  Parts written;
  MaybeArray dgate;
  if (static_cast<Packed>(call.integer("form")) == kApart) {
    std::int64_t next = 0;
    if (call.flag("dgate")) dgate = call.result(next++);
    if (call.flag("dup")) written.up = call.result(next++);
  } else {
    written = parts_of(first, static_cast<Packed>(call.integer("form")));
    dgate = written.gate;
  }
  gated_activation_backward(rows.whole(call.operand(0)), inputs.parts.gate, Input(inputs.parts.up),
                            Input(inputs.row_scale), options_of(call), pointer(dgate),
                            pointer(written.up), call.stream);
}

// Operands: those of the forward, then the static scale if any. Results: the codes, and the scales
// unless the scale is static.
void gated_activation_quant_call(const Call& call) {
  const TensorView out = call.result(0);
  const bool is_static = call.flag("static");
  const Inputs inputs(call, 0, call.operands() - is_static, {out.rank - 1, out.shape});
  const GatedActivationQuantOptions options{options_of(call), call.integer("group_size"),
                                            call.number("scale_upper_bound")};
  const auto run = [&](const TensorView& gate, const MaybeArray& up, const MaybeArray& row_scale,
                       const TensorView& codes, const MaybeArray& fixed, const MaybeArray& scale) {
    gated_activation_quant(gate, Input(up), Input(row_scale), options, codes, Input(fixed),
                           pointer(scale), call.stream);
  };
  const Parts& parts = inputs.parts;
  if (!is_static) return run(parts.gate, parts.up, inputs.row_scale, out, {}, call.result(1));
  const Batch batch{out.rank - call.integer("rank"), out.shape};
  const TensorView fixed = call.operand(call.operands() - 1);
  if (is_common(fixed, batch.axes))
    return run(parts.gate, parts.up, inputs.row_scale, out, batch.element(fixed, 0), {});
  const auto part = [&](const MaybeArray& array, std::int64_t i) -> MaybeArray {
    if (!array) return {};
    return batch.element(*array, i);
  };
  for (std::int64_t i = 0; i < batch.size(); ++i) {
    run(batch.element(parts.gate, i), part(parts.up, i), part(inputs.row_scale, i),
        batch.element(out, i), batch.element(fixed, i), {});
  }
}

}  // namespace membound::python::jax
