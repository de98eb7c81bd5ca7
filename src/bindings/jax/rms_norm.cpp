// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/rms_norm.hpp"

#include "jax/call.hpp"
#include "membound/ops/add_rms_norm.hpp"

namespace membound::python::jax {

namespace {

// The arrays of a call, or of one element of its batch. residual comes with residual_out.
struct Arrays {
  TensorView x, residual, weight, out, residual_out, rstd;
};

struct Forward {
  bool has_residual, has_weight, has_rstd;
  RmsNormOptions options;
  StreamView stream;

  void run(const Arrays& arrays) const {
    const ConstTensorView weight_view = arrays.weight;
    const ConstTensorView* weight = has_weight ? &weight_view : nullptr;
    const TensorView* rstd = has_rstd ? &arrays.rstd : nullptr;
    if (has_residual) {
      membound::add_rms_norm(arrays.x, arrays.residual, weight, options, arrays.out,
                             arrays.residual_out, rstd, stream);
    } else {
      membound::rms_norm(arrays.x, weight, options, arrays.out, rstd, stream);
    }
  }

  // Applies part(array) to every array of the call.
  template <class Part>
  Arrays each(const Arrays& all, Part&& part) const {
    Arrays one;
    one.x = part(all.x);
    one.out = part(all.out);
    if (has_residual) one.residual = part(all.residual);
    if (has_residual) one.residual_out = part(all.residual_out);
    if (has_weight) one.weight = part(all.weight);
    if (has_rstd) one.rstd = part(all.rstd);
    return one;
  }
};

void forward_call(const Call& call, bool has_residual) {
  const Forward forward{has_residual,
                        call.operands() > 1 + has_residual,
                        call.results() > 1 + has_residual,
                        {call.number("eps"), call.number("weight_offset"), call.rounding()},
                        call.stream};

  Arrays all;
  all.x = call.operand(0);
  all.out = call.result(0);
  if (has_residual) all.residual = call.operand(1);
  if (has_residual) all.residual_out = call.result(1);
  if (forward.has_weight) all.weight = call.operand(1 + has_residual);
  if (forward.has_rstd) all.rstd = call.result(1 + has_residual);

  // Every array has the same number of batch axes in front, so a weight's rank tells it.
  const int axes = forward.has_weight && all.weight.rank > 0 ? all.weight.rank - 1 : 0;
  const Batch batch{axes, all.out.shape};
  if (axes == 0 || all.weight.size() == all.weight.shape[axes]) {
    // The same weight everywhere: batch axes are rows like the others.
    const Batch rows{has_residual ? all.out.rank - 1 : 0, all.out.shape};
    all.x = rows.whole(all.x);
    if (has_residual) all.residual = rows.whole(all.residual);
    if (axes > 0) all.weight = batch.element(all.weight, 0);
    return forward.run(all);
  }
  const std::int64_t count = batch.size();
  for (std::int64_t i = 0; i < count; ++i) {
    forward.run(
        forward.each(all, [&](const TensorView& array) { return batch.element(array, i); }));
  }
}

}  // namespace

// Operands: x, the weight if there is one. Results: out, rstd if wanted.
void rms_norm_call(const Call& call) { forward_call(call, false); }

// Operands: x, residual, the weight if there is one. Results: out, residual_out, rstd if wanted.
void add_rms_norm_call(const Call& call) { forward_call(call, true); }

}  // namespace membound::python::jax
