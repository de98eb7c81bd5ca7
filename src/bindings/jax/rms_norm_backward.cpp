// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/rms_norm_backward.hpp"

#include "jax/call.hpp"
#include "membound/ops/add_rms_norm_backward.hpp"

namespace membound::python::jax {

namespace {

// The arrays of a call, or of one element of its batch.
struct Arrays {
  TensorView dy, dsum, x, rstd, weight, dx, dweight, workspace;
};

struct Backward {
  bool has_dsum, has_weight, has_dx, has_dweight;
  RmsNormBackwardOptions options;
  StreamView stream;

  void run(const Arrays& arrays) const {
    const ConstTensorView weight_view = arrays.weight;
    const ConstTensorView* weight = has_weight ? &weight_view : nullptr;
    const TensorView* dx = has_dx ? &arrays.dx : nullptr;
    const TensorView* dweight = has_dweight ? &arrays.dweight : nullptr;
    const TensorView* workspace = has_dweight ? &arrays.workspace : nullptr;
    if (has_dsum) {
      add_rms_norm_backward(arrays.dy, arrays.dsum, arrays.x, weight, arrays.rstd, options, dx,
                            dweight, workspace, stream);
    } else {
      rms_norm_backward(arrays.dy, arrays.x, weight, arrays.rstd, options, dx, dweight, workspace,
                        stream);
    }
  }

  // Applies part(array) to every array of the call.
  template <class Part>
  Arrays each(const Arrays& all, Part&& part) const {
    Arrays one;
    one.dy = part(all.dy);
    one.x = part(all.x);
    one.rstd = part(all.rstd);
    if (has_dsum) one.dsum = part(all.dsum);
    if (has_weight) one.weight = part(all.weight);
    if (has_dx) one.dx = part(all.dx);
    if (has_dweight) one.dweight = part(all.dweight);
    if (has_dweight) one.workspace = part(all.workspace);
    return one;
  }
};

void backward_call(const Call& call, bool has_dsum) {
  const Backward backward{has_dsum,
                          call.operands() > 3 + has_dsum,
                          call.results() != 2,
                          call.results() > 1,
                          {call.number("weight_offset"), call.rounding(), /*accumulate=*/false},
                          call.stream};

  Arrays all;
  std::int64_t next = 0;
  all.dy = call.operand(next++);
  if (has_dsum) all.dsum = call.operand(next++);
  all.x = call.operand(next++);
  all.rstd = call.operand(next++);
  if (backward.has_weight) all.weight = call.operand(next++);
  next = 0;
  if (backward.has_dx) all.dx = call.result(next++);
  if (backward.has_dweight) all.dweight = call.result(next++);
  if (backward.has_dweight) all.workspace = call.result(next++);

  // As in the forward; but each element of a batch has a dweight of its own.
  const int axes = backward.has_weight && all.weight.rank > 0 ? all.weight.rank - 1 : 0;
  const Batch batch{axes, backward.has_dx ? all.dx.shape : all.dweight.shape};
  const bool one_weight = axes == 0 || all.weight.size() == all.weight.shape[axes];
  if (one_weight && !(backward.has_dweight && axes > 0)) {
    const Batch rows{backward.has_dx ? all.dx.rank - 1 : 0, batch.extents};
    all.dy = rows.whole(all.dy);
    all.x = rows.whole(all.x);
    all.rstd = rows.whole(all.rstd);
    if (has_dsum) all.dsum = rows.whole(all.dsum);
    if (axes > 0) all.weight = batch.element(all.weight, 0);
    return backward.run(all);
  }
  const std::int64_t count = batch.size();
  for (std::int64_t i = 0; i < count; ++i) {
    backward.run(
        backward.each(all, [&](const TensorView& array) { return batch.element(array, i); }));
  }
}

}  // namespace

// Operands: dy, x, rstd, the weight if there is one. Results: dx if wanted, then dweight and the
// workspace if wanted.
void rms_norm_backward_call(const Call& call) { backward_call(call, false); }

// The same with dresidual_out after dy, and residual_out for x.
void add_rms_norm_backward_call(const Call& call) { backward_call(call, true); }

}  // namespace membound::python::jax
