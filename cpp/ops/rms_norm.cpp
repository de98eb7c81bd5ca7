// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/rms_norm.hpp"

#include <cmath>

#include "core/route.hpp"
#include "core/validate.hpp"
#include "membound/staging.hpp"

namespace membound {

namespace {

constexpr const char* kOp = "rms_norm";

void validate(const ConstTensorView& x, const ConstTensorView* weight,
              const RmsNormOptions& options, const TensorView& out, const TensorView* rstd) {
  check_rows(x, kOp, "x");
  check_floating(x, kOp, "x");
  check_eps(options.eps, kOp);
  MEMBOUND_CHECK(std::isfinite(options.weight_offset), InvalidArgument, kOp,
                 "argument 'weight_offset' must be finite, got ", options.weight_offset);

  check_dtype(out, x.dtype, kOp, "out");
  check_leading_shape(out, x, x.rank, kOp, "out");
  check_same_device(out, x, kOp, "out", "x");
  check_floating(out, kOp, "out");
  check_writable(out, kOp, "out");
  check_overlap(out, "out", x, "x", kOp, /*in_place=*/true);

  if (weight != nullptr) {
    check_floating(*weight, kOp, "weight");
    MEMBOUND_CHECK(weight->rank == 1 && weight->shape[0] == x.shape[x.rank - 1], InvalidArgument,
                   kOp, "argument 'weight' must have shape (", x.shape[x.rank - 1],
                   ",), the last axis of 'x', got ", shape_text(*weight));
    check_same_device(*weight, x, kOp, "weight", "x");
    check_overlap(out, "out", *weight, "weight", kOp, /*in_place=*/false);
  } else {
    MEMBOUND_CHECK(options.weight_offset == 0.0, InvalidArgument, kOp,
                   "argument 'weight_offset' must be 0 without a weight, got ",
                   options.weight_offset);
  }
  if (rstd != nullptr) {
    check_dtype(*rstd, accumulate_dtype(x.dtype), kOp, "rstd");
    check_leading_shape(*rstd, x, x.rank - 1, kOp, "rstd");
    check_same_device(*rstd, x, kOp, "rstd", "x");
    check_floating(*rstd, kOp, "rstd");
    check_writable(*rstd, kOp, "rstd");
    check_overlap(*rstd, "rstd", x, "x", kOp, /*in_place=*/false);
    check_overlap(*rstd, "rstd", out, "out", kOp, /*in_place=*/false);
    if (weight != nullptr) check_overlap(*rstd, "rstd", *weight, "weight", kOp, /*in_place=*/false);
  }
}

RmsNormProblem make_problem(const ConstTensorView& x, const ConstTensorView* weight,
                            const RmsNormOptions& options, const TensorView& out,
                            const TensorView* rstd) {
  const int axes = x.rank - 1;
  RmsNormProblem problem;
  problem.x = x.data;
  problem.weight = weight ? weight->data : nullptr;
  problem.out = out.data;
  problem.rstd = rstd ? rstd->data : nullptr;
  problem.dtype = x.dtype;
  problem.weight_dtype = weight ? weight->dtype : x.dtype;
  problem.rounding = options.rounding;
  problem.cols = x.shape[axes];
  problem.rows = x.size() / problem.cols;
  problem.x_rows = row_layout(x, axes, kOp, "x");
  problem.out_rows = row_layout(out, axes, kOp, "out");
  if (rstd) problem.rstd_rows = row_layout(*rstd, axes, kOp, "rstd");
  const bool one = problem.cols == 1;
  problem.x_col_stride = one ? 1 : x.strides[axes];
  problem.out_col_stride = one ? 1 : out.strides[axes];
  problem.weight_stride = one || !weight ? 1 : weight->strides[0];
  problem.eps = options.eps;
  problem.weight_offset = options.weight_offset;
  return problem;
}

}  // namespace

void rms_norm(const ConstTensorView& x, const ConstTensorView* weight,
              const RmsNormOptions& options, const TensorView& out, const TensorView* rstd,
              StreamView stream) {
  validate(x, weight, options, out, rstd);
  if (x.size() == 0) return;
  const RmsNormProblem problem = make_problem(x, weight, options, out, rstd);
  route(x.device, kOp, [&] { cpu::rms_norm(problem); }, [&] { cuda::rms_norm(problem, stream); });
}

void rms_norm(const ConstTensorView& x, const ConstTensorView* weight,
              const RmsNormOptions& options, const TensorView& out, const TensorView* rstd,
              Device staging_device) {
  validate(x, weight, options, out, rstd);
  MEMBOUND_CHECK(!x.device.is_cuda(), InvalidArgument, kOp,
                 "argument 'x' must be on the CPU to be ", "carried to ",
                 device_name(staging_device), " and back, got ", device_name(x.device));
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
