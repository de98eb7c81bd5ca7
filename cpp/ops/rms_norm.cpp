// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/rms_norm.hpp"

#include "core/route.hpp"
#include "core/validate.hpp"
#include "membound/staging.hpp"

namespace membound {

void check_rms_norm(const char* op, const ConstTensorView& x, const ConstTensorView* weight,
                    const RmsNormOptions& options, const TensorView& out, const TensorView* rstd) {
  check_rows(x, op, "x");
  check_floating(x, op, "x");
  check_eps(options.eps, op);
  check_weight_offset(options.weight_offset, weight != nullptr, op);

  check_like(out, "out", x, "x", op);
  check_writable(out, op, "out");
  check_overlap(out, "out", x, "x", op, /*in_place=*/true);

  if (weight != nullptr) {
    check_weight(*weight, x, op, "x");
    check_overlap(out, "out", *weight, "weight", op, /*in_place=*/false);
  }
  if (rstd != nullptr) {
    check_row_statistic(*rstd, "rstd", x, "x", op);
    check_writable(*rstd, op, "rstd");
    check_overlap(*rstd, "rstd", x, "x", op, /*in_place=*/false);
    check_overlap(*rstd, "rstd", out, "out", op, /*in_place=*/false);
    if (weight != nullptr) check_overlap(*rstd, "rstd", *weight, "weight", op, /*in_place=*/false);
  }
}

RmsNormProblem rms_norm_problem(const char* op, const ConstTensorView& x,
                                const ConstTensorView* weight, const RmsNormOptions& options,
                                const TensorView& out, const TensorView* rstd) {
  const int axes = x.rank - 1;
  RmsNormProblem problem;
  problem.x = x.data;
  problem.residual = nullptr;
  problem.weight = weight ? weight->data : nullptr;
  problem.out = out.data;
  problem.residual_out = nullptr;
  problem.rstd = rstd ? rstd->data : nullptr;
  problem.dtype = x.dtype;
  problem.weight_dtype = weight ? weight->dtype : x.dtype;
  problem.rounding = options.rounding;
  problem.cols = x.shape[axes];
  problem.rows = x.size() / problem.cols;
  problem.x_rows = row_layout(x, axes, op, "x");
  problem.out_rows = row_layout(out, axes, op, "out");
  if (rstd) problem.rstd_rows = row_layout(*rstd, axes, op, "rstd");
  problem.x_col_stride = column_stride(x);
  problem.out_col_stride = column_stride(out);
  problem.weight_stride = weight ? column_stride(*weight) : 1;
  problem.eps = options.eps;
  problem.weight_offset = options.weight_offset;
  return problem;
}

void run_rms_norm(const char* op, const RmsNormProblem& problem, Device device, StreamView stream) {
  route(device, op, [&] { cpu::rms_norm(problem); }, [&] { cuda::rms_norm(problem, stream); });
}

namespace {
constexpr const char* kOp = "rms_norm";
}  // namespace

void rms_norm(const ConstTensorView& x, const ConstTensorView* weight,
              const RmsNormOptions& options, const TensorView& out, const TensorView* rstd,
              StreamView stream) {
  check_rms_norm(kOp, x, weight, options, out, rstd);
  if (x.size() == 0) return;
  run_rms_norm(kOp, rms_norm_problem(kOp, x, weight, options, out, rstd), x.device, stream);
}

void rms_norm(const ConstTensorView& x, const ConstTensorView* weight,
              const RmsNormOptions& options, const TensorView& out, const TensorView* rstd,
              Device staging_device) {
  check_rms_norm(kOp, x, weight, options, out, rstd);
  check_staged(x, staging_device, kOp, "x");
  if (x.size() == 0) return;
  const int axes = x.rank - 1;
  StagedCall call{kOp, staging_device, {{x, "x", axes}}, {{out, "out", axes}}, {}};
  if (rstd) call.outputs.push_back({*rstd, "rstd", axes});
  if (weight) call.constants.push_back({*weight, "weight", 0});
  run_staged(call, [&](const StagedChunk& chunk) {
    rms_norm(chunk.inputs[0], weight ? &chunk.constants[0] : nullptr, options, chunk.outputs[0],
             rstd ? &chunk.outputs[1] : nullptr, chunk.stream);
  });
}

}  // namespace membound
