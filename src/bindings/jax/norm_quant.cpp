// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "jax/call.hpp"
#include "norm_ops.hpp"

namespace membound::python::jax {

namespace {

// The arrays of a call, or of one element of its batch; absent ones are null.
struct Arrays {
  MaybeArray x, residual, weight, static_scale, out, residual_out, scale;
};

constexpr MaybeArray Arrays::* kEvery[] = {
    &Arrays::x,   &Arrays::residual,     &Arrays::weight, &Arrays::static_scale,
    &Arrays::out, &Arrays::residual_out, &Arrays::scale,
};

void run(const Call& call, const RmsNormQuantOptions& options, const Arrays& a) {
  run_norm_quant(options,
                 {pointer(a.x), pointer(a.residual), pointer(a.weight), pointer(a.static_scale),
                  pointer(a.out), pointer(a.residual_out), pointer(a.scale)},
                 call.stream);
}

Arrays arrays_of(const Call& call, bool added) {
  Arrays all;
  std::int64_t next = 0;
  const bool is_static = call.flag("static");
  all.x = call.operand(next++);
  if (added) all.residual = call.operand(next++);
  if (call.operands() > next + is_static) all.weight = call.operand(next++);
  if (is_static) all.static_scale = call.operand(next++);
  next = 0;
  all.out = call.result(next++);
  if (added) all.residual_out = call.result(next++);
  if (!is_static) all.scale = call.result(next++);
  return all;
}

RmsNormQuantOptions options_of(const Call& call) {
  RmsNormQuantOptions options;
  options.eps = call.number("eps");
  options.weight_offset = call.number("weight_offset");
  options.rounding = call.rounding();
  options.group_size = call.integer("group_size");
  options.scale_upper_bound = call.number("scale_upper_bound");
  return options;
}

void quantised_call(const Call& call, bool added) {
  const RmsNormQuantOptions options = options_of(call);
  Arrays all = arrays_of(call, added);
  const int axes = all.out->rank - call.integer("rank");
  const Batch batch{axes, all.out->shape};
  if (is_common(all.weight, axes) && is_common(all.static_scale, axes)) {
    // Weight and scale are the same for the whole batch: batch axes are merged into rows.
    all.x = batch.whole(*all.x);
    if (added) all.residual = batch.whole(*all.residual);
    if (all.weight) all.weight = batch.element(*all.weight, 0);
    if (all.static_scale) all.static_scale = batch.element(*all.static_scale, 0);
    return run(call, options, all);
  }
  for (std::int64_t i = 0; i < batch.size(); ++i) {
    Arrays one;
    for (const auto array : kEvery) {
      if (all.*array) one.*array = batch.element(*(all.*array), i);
    }
    run(call, options, one);
  }
}

}  // namespace

// Operands: x, residual in the added form, weight if any, static scale if any. Results: out,
// residual_out in the added form, and the scales unless the scale is static.
void rms_norm_quant_call(const Call& call) { quantised_call(call, false); }
void add_rms_norm_quant_call(const Call& call) { quantised_call(call, true); }

}  // namespace membound::python::jax
