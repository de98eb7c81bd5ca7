// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "jax/call.hpp"
#include "norm_ops.hpp"

namespace membound::python::jax {

namespace {

// The arrays of a call, or of one element of its batch; absent ones are null.
struct Arrays {
  MaybeArray x, residual, z, weight, bias, out, residual_out, mean, rstd;
};

constexpr MaybeArray Arrays::* kEvery[] = {
    &Arrays::x,   &Arrays::residual,     &Arrays::z,    &Arrays::weight, &Arrays::bias,
    &Arrays::out, &Arrays::residual_out, &Arrays::mean, &Arrays::rstd,
};

struct Forward {
  NormOptions options;
  StreamView stream;

  void run(const Arrays& a) const {
    run_norm(options,
             {pointer(a.x), pointer(a.residual), pointer(a.z), pointer(a.weight), pointer(a.bias),
              pointer(a.out), pointer(a.residual_out), pointer(a.mean), pointer(a.rstd)},
             stream);
  }
};

Arrays arrays_of(const Call& call, Form form) {
  Arrays all;
  std::int64_t next = 0;
  const bool biased = call.flag("bias");
  all.x = call.operand(next++);
  if (form.added) all.residual = call.operand(next++);
  if (form.gated) all.z = call.operand(next++);
  if (call.operands() > next + biased) all.weight = call.operand(next++);
  if (biased) all.bias = call.operand(next++);
  next = 0;
  all.out = call.result(next++);
  if (form.added) all.residual_out = call.result(next++);
  if (call.results() > next && form.centred) all.mean = call.result(next++);
  if (call.results() > next) all.rstd = call.result(next++);
  return all;
}

void forward_call(const Call& call, Form form) {
  const Forward forward{{{call.number("eps"), call.number("weight_offset"), call.rounding()},
                         form.centred,
                         form.gated ? call.flag("norm_before_gate") : true},
                        call.stream};
  Arrays all = arrays_of(call, form);
  // Every array has the same number of leading batch axes, so a parameter's rank gives their
  // number.
  const int axes = batch_axes({&all.weight, &all.bias}, call.flag("heads") ? 2 : 1);
  const Batch batch{axes, all.out->shape};
  if (is_common(all.weight, axes) && is_common(all.bias, axes)) {
    // The parameters are the same for the whole batch: batch axes are merged into rows.
    const Batch rows{form.added || form.gated ? all.out->rank - 1 : 0, all.out->shape};
    for (const auto array : {&Arrays::x, &Arrays::residual, &Arrays::z}) {
      if (all.*array) all.*array = rows.whole(*(all.*array));
    }
    if (axes > 0 && all.weight) all.weight = batch.element(*all.weight, 0);
    if (axes > 0 && all.bias) all.bias = batch.element(*all.bias, 0);
    return forward.run(all);
  }
  const std::int64_t count = batch.size();
  for (std::int64_t i = 0; i < count; ++i) {
    Arrays one;
    for (const auto array : kEvery) {
      if (all.*array) one.*array = batch.element(*(all.*array), i);
    }
    forward.run(one);
  }
}

}  // namespace

// Operands: x, residual in the added forms, z in the gated one, weight if any, bias if any.
// Results: out, residual_out in the added forms, and if wanted mean (of layer_norm) and rstd.
void rms_norm_call(const Call& call) { forward_call(call, {}); }
void add_rms_norm_call(const Call& call) { forward_call(call, {.added = true}); }
void layer_norm_call(const Call& call) { forward_call(call, {.centred = true}); }
void add_layer_norm_call(const Call& call) { forward_call(call, {.centred = true, .added = true}); }
void rms_norm_gated_call(const Call& call) { forward_call(call, {.gated = true}); }

}  // namespace membound::python::jax
