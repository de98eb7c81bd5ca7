// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/rms_norm_quant.hpp"

#include "core/memory.hpp"
#include "core/route.hpp"
#include "core/validate.hpp"

namespace membound {

namespace {

using Call = RmsNormQuantCall;

// The norm of the call. Its out holds the codes, whose dtype the norm's own checks would refuse.
RmsNormCall norm_of(const Call& call) {
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
          .values = call.x,
          .values_name = "x",
          .out = call.out,
          .static_scale = call.static_scale,
          .scale = call.scale,
          .group_size = call.options.group_size,
          .scale_upper_bound = call.options.scale_upper_bound};
}

// It may be x or residual itself: each element of both is read before the sum is written.
void check_residual_out(const Call& call) {
  const char* op = call.op;
  const TensorView& sum = *call.residual_out;
  check_like(sum, "residual_out", call.x, "x", op);
  check_writable(sum, op, "residual_out");
  check_overlap(sum, "residual_out", call.x, "x", op, /*in_place=*/true);
  check_overlap(sum, "residual_out", *call.residual, "residual", op, /*in_place=*/true);
  if (call.weight) check_overlap(sum, "residual_out", *call.weight, "weight", op, false);
  if (call.static_scale) check_overlap(sum, "residual_out", *call.static_scale, "scale", op, false);
  check_overlap(sum, "residual_out", call.out, "out", op, /*in_place=*/false);
  if (call.scale) check_overlap(*call.scale, "scale_out", sum, "residual_out", op, false);
}

void check(const Call& call) {
  check_norm_inputs(norm_of(call));
  check_weight_offset(call.options.weight_offset, call.x.dtype, call.weight != nullptr, call.op);
  if (call.residual) check_like(*call.residual, "residual", call.x, "x", call.op);
  check_quantised(quantised_of(call),
                  {{&call.x, "x"}, {call.residual, "residual"}, {call.weight, "weight"}});
  if (call.residual != nullptr) check_residual_out(call);
}

RmsNormQuantProblem make_problem(const Call& call) {
  RmsNormQuantProblem problem{quantised_result(quantised_of(call)),
                              rms_norm_problem(norm_of(call))};
  problem.norm.out = nullptr;
  return problem;
}

// Like each_head of the norm: one head at a time, with a weight of (cols,).
template <class Body>
void each_head(const Call& call, Body body) {
  const std::int64_t heads = norm_of(call).heads();
  if (heads == 1) return body(call);
  const int scale_axis = call.options.group_size == 0 ? -1 : -2;
  for (std::int64_t head = 0; head < heads; ++head) {
    const auto residual = one_head(call.residual, -2, head),
               weight = one_head(call.weight, -2, head);
    const auto residual_out = one_head(call.residual_out, -2, head);
    const auto scale = one_head(call.scale, scale_axis, head);
    body({.op = call.op,
          .x = select(call.x, -2, head),
          .residual = residual,
          .weight = weight,
          .options = call.options,
          .out = select(call.out, -2, head),
          .residual_out = residual_out,
          .static_scale = call.static_scale,
          .scale = scale});
  }
}

}  // namespace

void run_rms_norm_quant(const Call& call, StreamView stream) {
  check(call);
  if (call.x.size() == 0) return;
  route(
      call.x.device, call.op,
      [&] {
        const cpu::AllocationCache memory(norm_of(call).heads() > 1);
        each_head(call, [](const Call& one) { cpu::rms_norm_quant(make_problem(one)); });
      },
      [&] { cuda::rms_norm_quant(make_problem(call), stream); });
}

void rms_norm_quant(const ConstTensorView& x, const ConstTensorView* weight,
                    const RmsNormQuantOptions& options, const TensorView& out,
                    const ConstTensorView* static_scale, const TensorView* scale,
                    StreamView stream) {
  run_rms_norm_quant({.op = "rms_norm_quant",
                      .x = x,
                      .weight = weight,
                      .options = options,
                      .out = out,
                      .static_scale = static_scale,
                      .scale = scale},
                     stream);
}

}  // namespace membound
