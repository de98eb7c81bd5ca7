// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/rms_norm.hpp"

#include "core/memory.hpp"
#include "core/route.hpp"
#include "core/validate.hpp"
#include "membound/staging.hpp"

namespace membound {

namespace {

using Call = RmsNormCall;

// Outputs must not overlap inputs, but with in_place may be exactly x, residual or gate.
void check_disjoint(const TensorView& written, const char* name, const Call& call, bool in_place) {
  check_overlap(written, name, call.x, "x", call.op, in_place);
  if (call.residual) check_overlap(written, name, *call.residual, "residual", call.op, in_place);
  if (call.gate) check_overlap(written, name, *call.gate, "z", call.op, in_place);
  if (call.weight) check_overlap(written, name, *call.weight, "weight", call.op, false);
  if (call.bias) check_overlap(written, name, *call.bias, "bias", call.op, false);
}

void check_result(const TensorView& written, const char* name, const Call& call) {
  check_shaped_like(written, name, call.x, "x", call.op);
  check_writable(written, call.op, name);
  check_disjoint(written, name, call, /*in_place=*/true);
}

void check_statistic(const TensorView& written, const char* name, const Call& call) {
  check_statistic(written, name, call.accumulate(), call.x, "x", call.op);
  check_writable(written, call.op, name);
  check_disjoint(written, name, call, /*in_place=*/false);
  check_overlap(written, name, call.out, "out", call.op, /*in_place=*/false);
  if (call.residual) {
    check_overlap(written, name, *call.residual_out, "residual_out", call.op, /*in_place=*/false);
  }
}

void check(const Call& call) {
  const char* op = call.op;
  check_norm_inputs(call);
  check_result(call.out, "out", call);
  if (call.residual) {
    check_result(*call.residual_out, "residual_out", call);
    check_overlap(*call.residual_out, "residual_out", call.out, "out", op, /*in_place=*/false);
  }
  if (call.mean) check_statistic(*call.mean, "mean", call);
  if (call.rstd) check_statistic(*call.rstd, "rstd", call);
  if (call.mean && call.rstd) check_overlap(*call.rstd, "rstd", *call.mean, "mean", op, false);
}

void run_checked(const Call& call, StreamView stream) {
  route(
      call.x.device, call.op,
      [&] {
        const cpu::AllocationCache memory(call.heads() > 1);
        each_head(call, [](const Call& one) {
          one.is_generic() ? cpu::rms_norm_generic(generic_norm_problem(one))
                           : cpu::rms_norm(rms_norm_problem(one));
        });
      },
      [&] {
        call.is_generic() ? cuda::rms_norm_generic(generic_norm_problem(call), stream)
                          : cuda::rms_norm(rms_norm_problem(call), stream);
      });
}

}  // namespace

std::int64_t RmsNormCall::heads() const {
  const ConstTensorView* columns = weight != nullptr ? weight : bias;
  return columns != nullptr && columns->rank == 2 ? columns->shape[0] : 1;
}

void check_norm_inputs(const Call& call) {
  const char* op = call.op;
  check_rows(call.x, op, "x");
  check_floating(call.x, op, "x");
  check_eps(call.options.eps, call.x.dtype, op);
  check_finite(call.options.weight_offset, call.x.dtype, op, "weight_offset");
  if (call.residual) check_shaped_like(*call.residual, "residual", call.x, "x", op);
  if (call.gate) check_shaped_like(*call.gate, "z", call.x, "x", op);
  if (call.weight) check_weight(*call.weight, "weight", call.x, op, "x");
  if (call.bias) check_weight(*call.bias, "bias", call.x, op, "x");
  if (call.weight && call.bias) {
    check_leading_shape(*call.bias, *call.weight, call.weight->rank, op, "bias");
  }
}

RmsNormProblem rms_norm_problem(const Call& call) {
  const int axes = call.x.rank - 1;
  RmsNormProblem problem;
  problem.x = call.x.data;
  problem.weight = call.weight ? call.weight->data : nullptr;
  problem.bias = call.bias ? call.bias->data : nullptr;
  problem.out = call.out.data;
  problem.mean = call.mean ? call.mean->data : nullptr;
  problem.rstd = call.rstd ? call.rstd->data : nullptr;
  problem.dtype = call.x.dtype;
  problem.weight_dtype = call.weight ? call.weight->dtype : call.x.dtype;
  problem.bias_dtype = call.bias ? call.bias->dtype : call.x.dtype;
  problem.rounding = call.options.rounding;
  problem.centred = call.centred;
  problem.norm_before_gate = call.norm_before_gate;
  problem.cols = call.x.shape[axes];
  problem.rows = call.x.size() / problem.cols;
  problem.x_rows = row_layout(call.x, axes, call.op, "x");
  problem.out_rows = row_layout(call.out, axes, call.op, "out");
  if (call.mean) problem.mean_rows = row_layout(*call.mean, axes, call.op, "mean");
  if (call.rstd) problem.rstd_rows = row_layout(*call.rstd, axes, call.op, "rstd");
  problem.x_col_stride = column_stride(call.x);
  problem.out_col_stride = column_stride(call.out);
  problem.weight_stride = call.weight ? column_stride(*call.weight) : 1;
  problem.bias_stride = call.bias ? column_stride(*call.bias) : 1;
  problem.heads = call.heads();
  problem.weight_head_stride = call.weight ? head_stride(*call.weight) : 0;
  problem.bias_head_stride = call.bias ? head_stride(*call.bias) : 0;
  problem.eps = call.options.eps;
  problem.weight_offset = call.options.weight_offset;
  problem.gate = call.gate ? call.gate->data : nullptr;
  if (call.gate) {
    problem.gate_rows = row_layout(*call.gate, axes, call.op, "z");
    problem.gate_col_stride = column_stride(*call.gate);
  }
  problem.residual = nullptr;
  problem.residual_out = nullptr;
  if (call.residual == nullptr) return problem;
  problem.residual = call.residual->data;
  problem.residual_out = call.residual_out->data;
  problem.residual_rows = row_layout(*call.residual, axes, call.op, "residual");
  problem.residual_out_rows = row_layout(*call.residual_out, axes, call.op, "residual_out");
  problem.residual_col_stride = column_stride(*call.residual);
  problem.residual_out_col_stride = column_stride(*call.residual_out);
  return problem;
}

void run_rms_norm(const Call& call, StreamView stream) {
  check(call);
  if (call.x.size() != 0) run_checked(call, stream);
}

void run_rms_norm(const Call& call, Device staging_device) {
  check(call);
  check_staged(call.x, staging_device, call.op, "x");
  if (call.x.size() == 0) return;
  // a chunk has all heads of its tokens
  const int axes = call.x.rank - (call.heads() == 1 ? 1 : 2);
  StagedCall staged{call.op, staging_device, {{call.x, "x", axes}}, {{call.out, "out", axes}}, {}};
  if (call.residual) {
    staged.inputs.push_back({*call.residual, "residual", axes});
    staged.outputs.push_back({*call.residual_out, "residual_out", axes});
  }
  if (call.gate) staged.inputs.push_back({*call.gate, "z", axes});
  if (call.mean) staged.outputs.push_back({*call.mean, "mean", axes});
  if (call.rstd) staged.outputs.push_back({*call.rstd, "rstd", axes});
  if (call.weight) staged.constants.push_back({*call.weight, "weight", 0});
  if (call.bias) staged.constants.push_back({*call.bias, "bias", 0});
  run_staged(staged, [&](const StagedChunk& chunk) {
    std::size_t output = 1, constant = 0;
    const TensorView* residual_out = call.residual ? &chunk.outputs[output++] : nullptr;
    const TensorView* mean = call.mean ? &chunk.outputs[output++] : nullptr;
    const TensorView* rstd = call.rstd ? &chunk.outputs[output++] : nullptr;
    const ConstTensorView* weight = call.weight ? &chunk.constants[constant++] : nullptr;
    const ConstTensorView* bias = call.bias ? &chunk.constants[constant++] : nullptr;
    run_checked({.op = call.op,
                 .x = chunk.inputs[0],
                 .residual = call.residual ? &chunk.inputs[1] : nullptr,
                 .gate = call.gate ? &chunk.inputs[1] : nullptr,
                 .weight = weight,
                 .bias = bias,
                 .options = call.options,
                 .centred = call.centred,
                 .norm_before_gate = call.norm_before_gate,
                 .out = chunk.outputs[0],
                 .residual_out = residual_out,
                 .mean = mean,
                 .rstd = rstd},
                chunk.stream);
  });
}

void rms_norm(const ConstTensorView& x, const ConstTensorView* weight,
              const RmsNormOptions& options, const TensorView& out, const TensorView* rstd,
              StreamView stream) {
  run_rms_norm(
      {.op = "rms_norm", .x = x, .weight = weight, .options = options, .out = out, .rstd = rstd},
      stream);
}

void rms_norm(const ConstTensorView& x, const ConstTensorView* weight,
              const RmsNormOptions& options, const TensorView& out, const TensorView* rstd,
              Device staging_device) {
  run_rms_norm(
      {.op = "rms_norm", .x = x, .weight = weight, .options = options, .out = out, .rstd = rstd},
      staging_device);
}

}  // namespace membound
