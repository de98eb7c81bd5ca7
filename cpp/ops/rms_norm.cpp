// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/rms_norm.hpp"

#include "core/memory.hpp"
#include "core/route.hpp"
#include "core/validate.hpp"
#include "membound/staging.hpp"
#include "ops/rms_norm_generic.hpp"

namespace membound {

namespace {

using Call = NormCall;

// An output may be the very array of an input that comes in rows, where in_place says so.
void check_apart(const TensorView& written, const char* name, const Call& call, bool in_place) {
  check_overlap(written, name, *call.x, "x", call.op, in_place);
  if (call.residual) check_overlap(written, name, *call.residual, "residual", call.op, in_place);
  if (call.gate) check_overlap(written, name, *call.gate, "z", call.op, in_place);
  if (call.weight) check_overlap(written, name, *call.weight, "weight", call.op, false);
  if (call.bias) check_overlap(written, name, *call.bias, "bias", call.op, false);
}

void check_result(const TensorView& written, const char* name, const Call& call) {
  check_shaped_like(written, name, *call.x, "x", call.op);
  check_writable(written, call.op, name);
  check_apart(written, name, call, /*in_place=*/true);
}

void check_statistic(const TensorView& written, const char* name, const Call& call) {
  check_statistic(written, name, accumulate_dtype(call), *call.x, "x", call.op);
  check_writable(written, call.op, name);
  check_apart(written, name, call, /*in_place=*/false);
  check_overlap(written, name, *call.out, "out", call.op, /*in_place=*/false);
  if (call.residual) {
    check_overlap(written, name, *call.residual_out, "residual_out", call.op, /*in_place=*/false);
  }
}

// What no kernel computes is refused: it would be left out without a word.
void check_form(const Call& call) {
  const char* op = call.op;
  MEMBOUND_CHECK(call.x && call.out, InvalidArgument, op, "must have 'x' and 'out', got null");
  MEMBOUND_CHECK(!call.residual == !call.residual_out, InvalidArgument, op,
                 "must have both of 'residual' and 'residual_out' or none, got one");
  MEMBOUND_CHECK(!call.gate || (!call.residual && !call.centred), InvalidArgument, op,
                 "must not have 'z' with a residual or centred");
  MEMBOUND_CHECK(call.centred || (!call.bias && !call.mean), InvalidArgument, op,
                 "must not have 'bias' or 'mean' unless centred");
  MEMBOUND_CHECK(!call.centred || call.options.rounding == Rounding::kOnce, InvalidArgument, op,
                 "must have Rounding::kOnce if centred");
}

void check(const Call& call) {
  const char* op = call.op;
  check_form(call);
  check_norm_inputs(call);
  check_result(*call.out, "out", call);
  if (call.residual) {
    check_result(*call.residual_out, "residual_out", call);
    check_overlap(*call.residual_out, "residual_out", *call.out, "out", op, /*in_place=*/false);
  }
  if (call.mean) check_statistic(*call.mean, "mean", call);
  if (call.rstd) check_statistic(*call.rstd, "rstd", call);
  if (call.mean && call.rstd) check_overlap(*call.rstd, "rstd", *call.mean, "mean", op, false);
}

void run_checked(const Call& call, StreamView stream) {
  route(
      call.x->device, call.op,
      [&] {
        const std::int64_t heads = heads_of(call);
        const cpu::AllocationCache memory(heads > 1);
        each_head(call, heads, kNormInputs, kNormOutputs, [](const Call& one) {
          is_generic(one) ? cpu::rms_norm_generic(rms_norm_problem(one))
                          : cpu::rms_norm(rms_norm_problem(one));
        });
      },
      [&] {
        is_generic(call) ? cuda::rms_norm_generic(rms_norm_problem(call), stream)
                         : cuda::rms_norm(rms_norm_problem(call), stream);
      });
}

}  // namespace

std::int64_t heads_of(const Call& call) {
  const ConstTensorView* columns = call.weight != nullptr ? call.weight : call.bias;
  return columns != nullptr && columns->rank == 2 ? columns->shape[0] : 1;
}

void check_norm_inputs(const Call& call) {
  const char* op = call.op;
  check_rows(*call.x, op, "x");
  check_floating(*call.x, op, "x");
  check_eps(call.options.eps, call.x->dtype, op);
  check_finite(call.options.weight_offset, call.x->dtype, op, "weight_offset");
  if (call.residual) check_shaped_like(*call.residual, "residual", *call.x, "x", op);
  if (call.gate) check_shaped_like(*call.gate, "z", *call.x, "x", op);
  if (call.weight) check_weight(*call.weight, "weight", *call.x, op, "x");
  if (call.bias) check_weight(*call.bias, "bias", *call.x, op, "x");
  if (call.weight && call.bias) {
    check_leading_shape(*call.bias, *call.weight, call.weight->rank, op, "bias");
  }
}

RmsNormProblem rms_norm_problem(const Call& call) {
  const char* op = call.op;
  const int axes = call.x->rank - 1;
  const std::int64_t cols = call.x->shape[axes];
  return {.x = rows_of(call.x, axes, op, "x"),
          .residual = rows_of(call.residual, axes, op, "residual"),
          .gate = rows_of(call.gate, axes, op, "z"),
          .weight = columns_of(call.weight, call.x->dtype),
          .bias = columns_of(call.bias, call.x->dtype),
          .out = rows_of(call.out, axes, op, "out"),
          .residual_out = rows_of(call.residual_out, axes, op, "residual_out"),
          .mean = rows_of(call.mean, axes, op, "mean"),
          .rstd = rows_of(call.rstd, axes, op, "rstd"),
          .accumulate = accumulate_dtype(call),
          .rounding = call.options.rounding,
          .centred = call.centred,
          .norm_before_gate = call.norm_before_gate,
          .rows = call.x->size() / cols,
          .cols = cols,
          .heads = heads_of(call),
          .eps = call.options.eps,
          .weight_offset = call.options.weight_offset};
}

void norm(const Call& call, StreamView stream) {
  check(call);
  if (call.x->size() != 0) run_checked(call, stream);
}

void norm(const Call& call, Device staging_device) {
  check(call);
  check_staged(*call.x, staging_device, call.op, "x");
  if (call.x->size() == 0) return;
  const int axes =
      call.x->rank - (heads_of(call) == 1 ? 1 : 2);  // chunks have all heads of a token
  StagedCall staged{call.op, staging_device, {}, {}, {}};
  const auto add = [](auto& to, const auto* view, const char* name, int rows) {
    if (view != nullptr) to.push_back({*view, name, rows});
  };
  add(staged.inputs, call.x, "x", axes);
  add(staged.inputs, call.residual, "residual", axes);
  add(staged.inputs, call.gate, "z", axes);
  add(staged.constants, call.weight, "weight", 0);
  add(staged.constants, call.bias, "bias", 0);
  add(staged.outputs, call.out, "out", axes);
  add(staged.outputs, call.residual_out, "residual_out", axes);
  add(staged.outputs, call.mean, "mean", axes);
  add(staged.outputs, call.rstd, "rstd", axes);
  run_staged(staged, [&](const StagedChunk& chunk) {
    NormCall part = call;
    const auto next = [](const auto*& view, const auto*& from) {
      if (view != nullptr) view = from++;
    };
    const ConstTensorView *input = chunk.inputs.data(), *constant = chunk.constants.data();
    const TensorView* output = chunk.outputs.data();
    for (auto* view : {&part.x, &part.residual, &part.gate}) next(*view, input);
    for (auto* view : {&part.weight, &part.bias}) next(*view, constant);
    for (auto* view : {&part.out, &part.residual_out, &part.mean, &part.rstd}) next(*view, output);
    run_checked(part, chunk.stream);
  });
}

void rms_norm(const ConstTensorView& x, const ConstTensorView* weight,
              const RmsNormOptions& options, const TensorView& out, const TensorView* rstd,
              StreamView stream) {
  norm({.op = "rms_norm", .x = &x, .weight = weight, .options = options, .out = &out, .rstd = rstd},
       stream);
}

void rms_norm(const ConstTensorView& x, const ConstTensorView* weight,
              const RmsNormOptions& options, const TensorView& out, const TensorView* rstd,
              Device staging_device) {
  norm({.op = "rms_norm", .x = &x, .weight = weight, .options = options, .out = &out, .rstd = rstd},
       staging_device);
}

}  // namespace membound
