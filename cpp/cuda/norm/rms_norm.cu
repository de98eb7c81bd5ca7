// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/dispatch.hpp"
#include "cuda/launch/device.hpp"
#include "cuda/launch/launch.hpp"
#include "cuda/norm/plan.hpp"
#include "cuda/row/array.hpp"
#include "ops/rms_norm.hpp"
#include "ops/rms_norm_quant.hpp"

namespace membound::cuda {

using tuning::NormFacts;
using tuning::NormPlan;
using tuning::NormUnit;

template <NormUnit kUnit>
void launch_norm(const NormPlan& plan, const RmsNormProblem& problem,
                 const RmsNormQuantProblem* quant, const RowSplit& split, int device,
                 StreamView stream);

namespace {

template <class T>
RowAccess<T> access_of(const RmsNormProblem& problem, const RmsNormQuantProblem* quant) {
  RowAccess<T> access(problem.rows, problem.cols);
  access.add_affine(problem.weight);
  access.add_affine(problem.bias);
  access.add_rows(problem.x);
  access.add_rows(problem.out);
  access.add_rows(problem.residual);
  access.add_rows(problem.residual_out);
  access.add_rows(problem.gate);
  access.add_statistic(problem.mean.data, problem.mean.layout);
  access.add_statistic(problem.rstd.data, problem.rstd.layout);
  if (quant != nullptr) {
    access.add_statistic(quant->scale, quant->scale_rows);
    access.add_bytes(quant->out, quant->out_rows, quant->out_col_stride);
  }
  return access;
}

template <class T>
NormFacts facts_of(const RmsNormProblem& problem, const RowAccess<T>& access, bool quantised) {
  NormFacts facts{.rows = problem.rows,
                  .cols = problem.cols,
                  .heads = problem.heads,
                  .dtype_size = sizeof(T),
                  .access = access.access(),
                  .two_axes = access.split().extent != 0,
                  .narrow_width = 8,
                  .fused_input = problem.gate.data != nullptr       ? FusedInput::kGate
                                 : problem.residual.data != nullptr ? FusedInput::kResidual
                                                                    : FusedInput::kNone,
                  .centred = problem.centred,
                  .quantised = quantised,
                  .common = problem.is_plain()};
  if (facts.access != Access::kUnaligned) return facts;
  facts.no_gaps = true;
  const auto look_at = [&](const auto& rows) {
    facts.narrow_width = std::min(facts.narrow_width, narrow_width<T>(rows, problem.cols));
    if (rows.data != nullptr && rows.layout.strides[0] != problem.cols) facts.no_gaps = false;
  };
  look_at(problem.x);
  look_at(problem.out);
  look_at(problem.gate);
  look_at(problem.residual);
  look_at(problem.residual_out);
  facts.same_alignment = same_alignment<T>(problem.out, problem.residual_out);
  return facts;
}

auto* launch_of(const NormPlan& plan) {
  switch (tuning::unit_of(plan.kernel, plan.variant)) {
    case NormUnit::kPlain: return &launch_norm<NormUnit::kPlain>;
    case NormUnit::kCentred: return &launch_norm<NormUnit::kCentred>;
    case NormUnit::kGated: return &launch_norm<NormUnit::kGated>;
    case NormUnit::kUnaligned: return &launch_norm<NormUnit::kUnaligned>;
    case NormUnit::kStrided: return &launch_norm<NormUnit::kStrided>;
    case NormUnit::kQuant: return &launch_norm<NormUnit::kQuant>;
    case NormUnit::kBulk: return &launch_norm<NormUnit::kBulk>;
    default: return &launch_norm<NormUnit::kPacked>;
  }
}

}  // namespace

void run_norm(const RmsNormProblem& problem, const RmsNormQuantProblem* quant, StreamView stream) {
  dispatch_floating(problem.x.dtype, "rms_norm", [&]<class T>() {
    const int device = current_device();
    RowAccess<T> access = access_of<T>(problem, quant);
    const NormPlan plan =
        tuning::norm_plan(facts_of(problem, access, quant != nullptr), limits_of(device));
    access.at_least(plan.variant.access);
    launch_of(plan)(plan, problem, quant, access.split(), device, stream);
  });
}

void rms_norm(const RmsNormProblem& problem, StreamView stream) {
  run_norm(problem, nullptr, stream);
}

}  // namespace membound::cuda
