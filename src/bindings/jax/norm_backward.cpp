// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "jax/call.hpp"
#include "norm_ops.hpp"

namespace membound::python::jax {

namespace {

// The arrays of a call, or of one element of its batch; absent ones are null.
struct Arrays {
  MaybeArray dy, dsum, x, z, weight, mean, rstd, dx, dresidual, dz, dweight, dbias, workspace;

  // A gradient with all rows, or one that is summed over rows.
  const MaybeArray& gradient() const {
    for (const MaybeArray* rows : {&dx, &dresidual, &dz}) {
      if (*rows) return *rows;
    }
    return dweight ? dweight : dbias;
  }
};

constexpr MaybeArray Arrays::* kEvery[] = {
    &Arrays::dy,      &Arrays::dsum,  &Arrays::x,         &Arrays::z,  &Arrays::dresidual,
    &Arrays::weight,  &Arrays::mean,  &Arrays::rstd,      &Arrays::dx, &Arrays::dz,
    &Arrays::dweight, &Arrays::dbias, &Arrays::workspace,
};

// The results in order, without those that are not wanted.
constexpr std::pair<const char*, MaybeArray Arrays::*> kResults[] = {
    {"dx", &Arrays::dx},           {"dresidual", &Arrays::dresidual}, {"dz", &Arrays::dz},
    {"dweight", &Arrays::dweight}, {"dbias", &Arrays::dbias},
};

struct Backward {
  NormBackwardOptions options;
  StreamView stream;

  void run(const Arrays& a) const {
    run_norm_backward(
        options,
        {pointer(a.dy), pointer(a.dsum), pointer(a.x), pointer(a.z), pointer(a.weight),
         pointer(a.mean), pointer(a.rstd), pointer(a.dx), pointer(a.dresidual), pointer(a.dz),
         pointer(a.dweight), pointer(a.dbias), pointer(a.workspace)},
        stream);
  }
};

Arrays arrays_of(const Call& call, Form form) {
  Arrays all;
  std::int64_t next = 0;
  all.dy = call.operand(next++);
  if (form.added && call.flag("dsum")) all.dsum = call.operand(next++);
  all.x = call.operand(next++);
  if (form.gated) all.z = call.operand(next++);
  if (form.centred) all.mean = call.operand(next++);
  all.rstd = call.operand(next++);
  if (call.operands() > next) all.weight = call.operand(next++);
  next = 0;
  for (const auto& [name, array] : kResults) {
    if (call.flag(name)) all.*array = call.result(next++);
  }
  if (call.results() > next) all.workspace = call.result(next++);
  return all;
}

void backward_call(const Call& call, Form form) {
  const Backward backward{{{call.number("weight_offset"), call.rounding(), /*accumulate=*/false},
                           form.gated ? call.flag("norm_before_gate") : true,
                           form.added},
                          call.stream};
  Arrays all = arrays_of(call, form);
  // As in the forward, except that each element of a batch has its own dweight and dbias.
  const int axes = batch_axes({&all.weight, &all.dbias}, call.flag("heads") ? 2 : 1);
  const bool sums = all.dweight || all.dbias, of_rows = all.dx || all.dresidual || all.dz;
  const TensorView& gradient = *all.gradient();
  const Batch batch{axes, gradient.shape};
  if (is_common(all.weight, axes) && (axes == 0 || !sums)) {
    const Batch rows{of_rows ? gradient.rank - 1 : 0, gradient.shape};
    for (const auto array :
         {&Arrays::dy, &Arrays::dsum, &Arrays::x, &Arrays::z, &Arrays::mean, &Arrays::rstd}) {
      if (all.*array) all.*array = rows.whole(*(all.*array));
    }
    if (axes > 0 && all.weight) all.weight = batch.element(*all.weight, 0);
    return backward.run(all);
  }
  const std::int64_t count = batch.size();
  for (std::int64_t i = 0; i < count; ++i) {
    Arrays one;
    for (const auto array : kEvery) {
      if (all.*array) one.*array = batch.element(*(all.*array), i);
    }
    backward.run(one);
  }
}

}  // namespace

// Operands: dy, dresidual_out in the added forms if dsum is set, x (residual_out in the added
// forms), z of the gated form, mean (of layer_norm), rstd, weight if any. Results: the wanted ones
// of dx, dresidual, dz, dweight and dbias, then the workspace if dweight or dbias is wanted.
void rms_norm_backward_call(const Call& call) { backward_call(call, {}); }
void add_rms_norm_backward_call(const Call& call) { backward_call(call, {.added = true}); }
void layer_norm_backward_call(const Call& call) { backward_call(call, {.centred = true}); }
void add_layer_norm_backward_call(const Call& call) {
  backward_call(call, {.centred = true, .added = true});
}
void rms_norm_gated_backward_call(const Call& call) { backward_call(call, {.gated = true}); }

}  // namespace membound::python::jax
