// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "jax/call.hpp"
#include "membound/ops/gated_activation_backward.hpp"

namespace membound::python::jax {

namespace {

// What the attributes say: the numbers of membound.jax._gated_activation.
enum Packed { kHalves, kInterleaved, kAlone, kApart };

GatedActivationOptions options_of(const Call& call) {
  GatedActivationOptions options;
  options.kind = static_cast<Activation>(call.integer("kind"));
  options.alpha = call.number("alpha");
  options.limit = call.number("limit");
  options.up_offset = call.number("up_offset");
  return options;
}

// The gate, and up where there is one.
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

// Operands from `next` on: the gate, up if it is apart, the scale of rows if there is one; batch
// axes are rows like the others.
struct Inputs {
  Parts parts;
  MaybeArray row_scale;

  Inputs(const Call& call, std::int64_t next, const Batch& rows) {
    const Packed form = static_cast<Packed>(call.integer("form"));
    parts = parts_of(rows.whole(call.operand(next++)), form);
    if (form == kApart) parts.up = rows.whole(call.operand(next++));
    if (call.operands() > next) row_scale = rows.whole(call.operand(next));
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
  const Inputs inputs(call, 0, {out.rank - 1, out.shape});
  gated_activation(inputs.parts.gate, Input(inputs.parts.up), Input(inputs.row_scale),
                   options_of(call), out, call.stream);
}

// Operands: dy, then those of the forward. Results: the packed gradient, or as far as they are
// wanted those of gate and up.
void gated_activation_backward_call(const Call& call) {
  const TensorView first = call.result(0);
  const Batch rows{first.rank - 1, first.shape};
  const Inputs inputs(call, 1, rows);
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

}  // namespace membound::python::jax
