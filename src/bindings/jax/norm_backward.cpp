// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "jax/call.hpp"
#include "norm_ops.hpp"

namespace membound::python::jax {

namespace {

// The arrays of a call, or of one element of its batch, as far as there are any.
struct Arrays {
  MaybeArray dy, dsum, x, weight, mean, rstd, dx, dweight, dbias, workspace;
};

constexpr MaybeArray Arrays::* kEvery[] = {
    &Arrays::dy,   &Arrays::dsum, &Arrays::x,       &Arrays::weight, &Arrays::mean,
    &Arrays::rstd, &Arrays::dx,   &Arrays::dweight, &Arrays::dbias,  &Arrays::workspace,
};

struct Backward {
  RmsNormBackwardOptions options;
  StreamView stream;

  void run(const Arrays& a) const {
    run_norm_backward(options,
                      {pointer(a.dy), pointer(a.dsum), pointer(a.x), pointer(a.weight),
                       pointer(a.mean), pointer(a.rstd), pointer(a.dx), pointer(a.dweight),
                       pointer(a.dbias), pointer(a.workspace)},
                      stream);
  }
};

Arrays arrays_of(const Call& call, bool centred, bool added) {
  Arrays all;
  std::int64_t next = 0;
  all.dy = call.operand(next++);
  if (added) all.dsum = call.operand(next++);
  all.x = call.operand(next++);
  if (centred) all.mean = call.operand(next++);
  all.rstd = call.operand(next++);
  if (call.operands() > next) all.weight = call.operand(next++);
  next = 0;
  const bool has_dweight = call.flag("dweight"), has_dbias = call.flag("dbias");
  const bool sums = has_dweight || has_dbias;
  if (call.results() > has_dweight + has_dbias + sums) all.dx = call.result(next++);
  if (has_dweight) all.dweight = call.result(next++);
  if (has_dbias) all.dbias = call.result(next++);
  if (sums) all.workspace = call.result(next++);
  return all;
}

void backward_call(const Call& call, bool centred, bool added) {
  const Backward backward{{call.number("weight_offset"), call.rounding(), /*accumulate=*/false},
                          call.stream};
  Arrays all = arrays_of(call, centred, added);
  // As in the forward; but each element of a batch has a dweight and a dbias of its own.
  const int axes = batch_axes({&all.weight, &all.dbias});
  const MaybeArray& sums = all.dweight ? all.dweight : all.dbias;
  const Batch batch{axes, all.dx ? all.dx->shape : sums->shape};
  if (is_one_row(all.weight, axes) && (axes == 0 || !sums)) {
    const Batch rows{all.dx ? all.dx->rank - 1 : 0, batch.extents};
    for (const auto array :
         {&Arrays::dy, &Arrays::dsum, &Arrays::x, &Arrays::mean, &Arrays::rstd}) {
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

// Operands: dy, dresidual_out in the added forms, x (residual_out in the added forms), mean (of
// layer_norm), rstd, the weight if there is one. Results: dx if wanted, dweight if wanted, dbias if
// wanted, and after any of these two the workspace.
void rms_norm_backward_call(const Call& call) { backward_call(call, false, false); }
void add_rms_norm_backward_call(const Call& call) { backward_call(call, false, true); }
void layer_norm_backward_call(const Call& call) { backward_call(call, true, false); }
void add_layer_norm_backward_call(const Call& call) { backward_call(call, true, true); }

}  // namespace membound::python::jax
