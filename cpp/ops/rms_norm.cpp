// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/rms_norm.hpp"

#include "core/route.hpp"
#include "core/validate.hpp"
#include "membound/staging.hpp"

namespace membound {

namespace {

using Call = RmsNormCall;

// An output beside the inputs that every call may have, none of which it may touch.
void check_apart_from_parameters(const TensorView& written, const char* name, const Call& call) {
  if (call.weight) check_overlap(written, name, *call.weight, "weight", call.op, false);
  if (call.bias) check_overlap(written, name, *call.bias, "bias", call.op, false);
}

void check_result(const TensorView& written, const char* name, const Call& call) {
  check_like(written, name, call.x, "x", call.op);
  check_writable(written, call.op, name);
  check_overlap(written, name, call.x, "x", call.op, /*in_place=*/true);
  if (call.residual) {
    check_overlap(written, name, *call.residual, "residual", call.op, /*in_place=*/true);
  }
  check_apart_from_parameters(written, name, call);
}

void check_statistic(const TensorView& written, const char* name, const Call& call) {
  check_row_statistic(written, name, call.x, "x", call.op);
  check_writable(written, call.op, name);
  check_overlap(written, name, call.x, "x", call.op, /*in_place=*/false);
  check_overlap(written, name, call.out, "out", call.op, /*in_place=*/false);
  if (call.residual) {
    check_overlap(written, name, *call.residual, "residual", call.op, /*in_place=*/false);
    check_overlap(written, name, *call.residual_out, "residual_out", call.op, /*in_place=*/false);
  }
  check_apart_from_parameters(written, name, call);
}

void check(const Call& call) {
  const char* op = call.op;
  check_rows(call.x, op, "x");
  check_floating(call.x, op, "x");
  check_eps(call.options.eps, op);
  check_weight_offset(call.options.weight_offset, call.weight != nullptr, op);
  if (call.residual) check_like(*call.residual, "residual", call.x, "x", op);
  if (call.weight) check_weight(*call.weight, "weight", call.x, op, "x");
  if (call.bias) check_weight(*call.bias, "bias", call.x, op, "x");

  check_result(call.out, "out", call);
  if (call.residual) {
    check_result(*call.residual_out, "residual_out", call);
    check_overlap(*call.residual_out, "residual_out", call.out, "out", op, /*in_place=*/false);
  }
  if (call.mean) check_statistic(*call.mean, "mean", call);
  if (call.rstd) check_statistic(*call.rstd, "rstd", call);
  if (call.mean && call.rstd) check_overlap(*call.rstd, "rstd", *call.mean, "mean", op, false);
}

RmsNormProblem make_problem(const Call& call) {
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
  problem.eps = call.options.eps;
  problem.weight_offset = call.options.weight_offset;
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

void run_checked(const Call& call, StreamView stream) {
  const RmsNormProblem problem = make_problem(call);
  route(
      call.x.device, call.op, [&] { cpu::rms_norm(problem); },
      [&] { cuda::rms_norm(problem, stream); });
}

}  // namespace

void run_rms_norm(const Call& call, StreamView stream) {
  check(call);
  if (call.x.size() != 0) run_checked(call, stream);
}

void run_rms_norm(const Call& call, Device staging_device) {
  check(call);
  check_staged(call.x, staging_device, call.op, "x");
  if (call.x.size() == 0) return;
  const int axes = call.x.rank - 1;
  StagedCall staged{call.op, staging_device, {{call.x, "x", axes}}, {{call.out, "out", axes}}, {}};
  if (call.residual) {
    staged.inputs.push_back({*call.residual, "residual", axes});
    staged.outputs.push_back({*call.residual_out, "residual_out", axes});
  }
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
    run_checked({call.op, chunk.inputs[0], call.residual ? &chunk.inputs[1] : nullptr, weight, bias,
                 call.options, call.centred, chunk.outputs[0], residual_out, mean, rstd},
                chunk.stream);
  });
}

void rms_norm(const ConstTensorView& x, const ConstTensorView* weight,
              const RmsNormOptions& options, const TensorView& out, const TensorView* rstd,
              StreamView stream) {
  run_rms_norm(
      {"rms_norm", x, nullptr, weight, nullptr, options, false, out, nullptr, nullptr, rstd},
      stream);
}

void rms_norm(const ConstTensorView& x, const ConstTensorView* weight,
              const RmsNormOptions& options, const TensorView& out, const TensorView* rstd,
              Device staging_device) {
  run_rms_norm(
      {"rms_norm", x, nullptr, weight, nullptr, options, false, out, nullptr, nullptr, rstd},
      staging_device);
}

}  // namespace membound
