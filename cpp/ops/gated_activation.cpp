// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/gated_activation.hpp"

#include <cmath>

#include "core/route.hpp"
#include "core/validate.hpp"

namespace membound {

namespace {

void check_options(const GatedActivationOptions& options, DType dtype, bool gated, const char* op) {
  const bool scales = options.kind == Activation::kSilu || options.kind == Activation::kSigmoid ||
                      options.kind == Activation::kSitu;
  MEMBOUND_CHECK(options.kind <= Activation::kSitu, InvalidArgument, op,
                 "argument 'kind' must be one of Activation's, got ",
                 static_cast<int>(options.kind));
  MEMBOUND_CHECK(std::isfinite(options.alpha) && options.alpha > 0.0, InvalidArgument, op,
                 "argument 'alpha' must be finite and above 0, got ", options.alpha);
  check_finite(options.alpha, dtype, op, "alpha");
  check_limit(options.alpha, dtype, op, "alpha");
  MEMBOUND_CHECK(scales || options.alpha == 1.0, InvalidArgument, op,
                 "argument 'alpha' must be 1 but for silu, sigmoid and situ, got ", options.alpha);
  check_limit(options.limit, dtype, op, "limit");
  check_finite(options.up_offset, dtype, op, "up_offset");
  MEMBOUND_CHECK(gated || options.up_offset == 0.0, InvalidArgument, op,
                 "argument 'up_offset' must be 0 without 'up', got ", options.up_offset);
}

GatedActivationProblem make_problem(const ConstTensorView& gate, const ConstTensorView* up,
                                    const ConstTensorView* row_scale,
                                    const GatedActivationOptions& options, const TensorView& out,
                                    const char* op) {
  const ConstTensorView written = out;
  FlattenedRows flattened(gate, row_scale != nullptr, op);
  for (const ConstTensorView* matrix : {&gate, up, &written}) flattened.add(matrix);
  GatedActivationProblem problem{};
  problem.gate = gate.data;
  problem.out = out.data;
  problem.dtype = gate.dtype;
  problem.options = options;
  problem.rows = flattened.rows();
  problem.cols = flattened.cols();
  problem.gate_rows = flattened.layout(gate, "gate");
  problem.gate_col_stride = flattened.column_stride(gate);
  problem.out_rows = flattened.layout(out, "out");
  problem.out_col_stride = flattened.column_stride(out);
  if (up != nullptr) {
    problem.up = up->data;
    problem.up_rows = flattened.layout(*up, "up");
    problem.up_col_stride = flattened.column_stride(*up);
  }
  if (row_scale != nullptr) {
    problem.row_scale = row_scale->data;
    problem.row_scale_rows = row_layout(*row_scale, row_scale->rank, op, "row_scale");
  }
  return problem;
}

}  // namespace

void check_gate_and_up(const ConstTensorView& gate, const ConstTensorView* up,
                       const ConstTensorView* row_scale, const GatedActivationOptions& options,
                       const char* op) {
  check_rows(gate, op, "gate");
  check_floating(gate, op, "gate");
  if (up != nullptr) check_like(*up, "up", gate, "gate", op);
  if (row_scale != nullptr) check_row_statistic(*row_scale, "row_scale", gate, "gate", op);
  check_options(options, gate.dtype, up != nullptr, op);
}

void gated_activation(const ConstTensorView& gate, const ConstTensorView* up,
                      const ConstTensorView* row_scale, const GatedActivationOptions& options,
                      const TensorView& out, StreamView stream) {
  const char* op = options.op ? options.op : "gated_activation";
  check_gate_and_up(gate, up, row_scale, options, op);
  check_like(out, "out", gate, "gate", op);
  check_writable(out, op, "out");
  check_overlap(out, "out", gate, "gate", op, true);
  if (up != nullptr) check_overlap(out, "out", *up, "up", op, true);
  if (row_scale != nullptr) check_overlap(out, "out", *row_scale, "row_scale", op, false);
  if (gate.size() == 0) return;
  const GatedActivationProblem problem = make_problem(gate, up, row_scale, options, out, op);
  route(
      gate.device, op, [&] { cpu::gated_activation(problem); },
      [&] { cuda::gated_activation(problem, stream); });
}

}  // namespace membound
