// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/add_rms_norm.hpp"

#include "core/validate.hpp"
#include "membound/staging.hpp"
#include "ops/rms_norm.hpp"

namespace membound {

namespace {

constexpr const char* kOp = "add_rms_norm";

void check(const ConstTensorView& x, const ConstTensorView& residual, const ConstTensorView* weight,
           const RmsNormOptions& options, const TensorView& out, const TensorView& residual_out,
           const TensorView* rstd) {
  check_rms_norm(kOp, x, weight, options, out, rstd);
  check_like(residual, "residual", x, "x", kOp);
  check_like(residual_out, "residual_out", x, "x", kOp);
  check_writable(residual_out, kOp, "residual_out");
  check_overlap(out, "out", residual, "residual", kOp, /*in_place=*/true);
  check_overlap(residual_out, "residual_out", x, "x", kOp, /*in_place=*/true);
  check_overlap(residual_out, "residual_out", residual, "residual", kOp, /*in_place=*/true);
  check_overlap(residual_out, "residual_out", out, "out", kOp, /*in_place=*/false);
  if (weight) check_overlap(residual_out, "residual_out", *weight, "weight", kOp, false);
  if (rstd) {
    check_overlap(*rstd, "rstd", residual, "residual", kOp, /*in_place=*/false);
    check_overlap(*rstd, "rstd", residual_out, "residual_out", kOp, /*in_place=*/false);
  }
}

}  // namespace

void add_rms_norm(const ConstTensorView& x, const ConstTensorView& residual,
                  const ConstTensorView* weight, const RmsNormOptions& options,
                  const TensorView& out, const TensorView& residual_out, const TensorView* rstd,
                  StreamView stream) {
  check(x, residual, weight, options, out, residual_out, rstd);
  if (x.size() == 0) return;
  RmsNormProblem problem = rms_norm_problem(kOp, x, weight, options, out, rstd);
  const int axes = x.rank - 1;
  problem.residual = residual.data;
  problem.residual_out = residual_out.data;
  problem.residual_rows = row_layout(residual, axes, kOp, "residual");
  problem.residual_out_rows = row_layout(residual_out, axes, kOp, "residual_out");
  problem.residual_col_stride = column_stride(residual);
  problem.residual_out_col_stride = column_stride(residual_out);
  run_rms_norm(kOp, problem, x.device, stream);
}

void add_rms_norm(const ConstTensorView& x, const ConstTensorView& residual,
                  const ConstTensorView* weight, const RmsNormOptions& options,
                  const TensorView& out, const TensorView& residual_out, const TensorView* rstd,
                  Device staging_device) {
  check(x, residual, weight, options, out, residual_out, rstd);
  check_staged(x, staging_device, kOp, "x");
  if (x.size() == 0) return;
  const int axes = x.rank - 1;
  StagedCall call{kOp,
                  staging_device,
                  {{x, "x", axes}, {residual, "residual", axes}},
                  {{out, "out", axes}, {residual_out, "residual_out", axes}},
                  {}};
  if (rstd) call.outputs.push_back({*rstd, "rstd", axes});
  if (weight) call.constants.push_back({*weight, "weight", 0});
  run_staged(call, [&](const StagedChunk& chunk) {
    add_rms_norm(chunk.inputs[0], chunk.inputs[1], weight ? &chunk.constants[0] : nullptr, options,
                 chunk.outputs[0], chunk.outputs[1], rstd ? &chunk.outputs[2] : nullptr,
                 chunk.stream);
  });
}

}  // namespace membound
