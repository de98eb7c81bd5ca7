// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/rms_norm_quant.hpp"

#include "core/memory.hpp"
#include "core/route.hpp"
#include "core/validate.hpp"

namespace membound {

namespace {

using Call = NormQuantCall;

// The norm of the call. Its out are the codes, whose dtype the norm's own checks do not take.
NormCall norm_of(const Call& call) {
  return {.op = call.op,
          .x = call.x,
          .residual = call.residual,
          .weight = call.weight,
          .options = {call.options.eps, call.options.weight_offset, call.options.rounding},
          .out = call.out,
          .residual_out = call.residual_out};
}

QuantisedCall quantised_of(const Call& call) {
  return {.op = call.op,
          .values = *call.x,
          .values_name = "x",
          .out = *call.out,
          .static_scale = call.static_scale,
          .scale = call.scale,
          .group_size = call.options.group_size,
          .scale_upper_bound = call.options.scale_upper_bound};
}

// It may be x or residual itself: each element of both is read before the sum goes there.
void check_residual_out(const Call& call) {
  const char* op = call.op;
  const TensorView& sum = *call.residual_out;
  check_like(sum, "residual_out", *call.x, "x", op);
  check_writable(sum, op, "residual_out");
  check_overlap(sum, "residual_out", *call.x, "x", op, /*in_place=*/true);
  check_overlap(sum, "residual_out", *call.residual, "residual", op, /*in_place=*/true);
  if (call.weight) check_overlap(sum, "residual_out", *call.weight, "weight", op, false);
  if (call.static_scale) check_overlap(sum, "residual_out", *call.static_scale, "scale", op, false);
  check_overlap(sum, "residual_out", *call.out, "out", op, /*in_place=*/false);
  if (call.scale) check_overlap(*call.scale, "scale_out", sum, "residual_out", op, false);
}

void check(const Call& call) {
  MEMBOUND_CHECK(call.x && call.out && !call.residual == !call.residual_out, InvalidArgument,
                 call.op, "expected 'x', 'out' and 'residual' with 'residual_out'; got less");
  check_norm_inputs(norm_of(call));
  check_weight_offset(call.options.weight_offset, call.x->dtype, call.weight != nullptr, call.op);
  if (call.residual) check_like(*call.residual, "residual", *call.x, "x", call.op);
  check_quantised(quantised_of(call),
                  {{call.x, "x"}, {call.residual, "residual"}, {call.weight, "weight"}});
  if (call.residual != nullptr) check_residual_out(call);
}

RmsNormQuantProblem make_problem(const Call& call) {
  RmsNormQuantProblem problem{quantised_result(quantised_of(call)),
                              rms_norm_problem(norm_of(call))};
  problem.norm.out.data = nullptr;
  return problem;
}

}  // namespace

void norm_quant(const Call& call, StreamView stream) {
  check(call);
  if (call.x->size() == 0) return;
  route(
      call.x->device, call.op,
      [&] {
        const std::int64_t heads = heads_of(norm_of(call));
        const cpu::AllocationCache memory(heads > 1);
        each_head(call, heads, kNormQuantInputs, kNormQuantOutputs,
                  [](const Call& one) { cpu::rms_norm_quant(make_problem(one)); });
      },
      [&] { cuda::rms_norm_quant(make_problem(call), stream); });
}

void rms_norm_quant(const ConstTensorView& x, const ConstTensorView* weight,
                    const RmsNormQuantOptions& options, const TensorView& out,
                    const ConstTensorView* static_scale, const TensorView* scale,
                    StreamView stream) {
  norm_quant({.op = "rms_norm_quant",
              .x = &x,
              .weight = weight,
              .static_scale = static_scale,
              .options = options,
              .out = &out,
              .scale = scale},
             stream);
}

}  // namespace membound
