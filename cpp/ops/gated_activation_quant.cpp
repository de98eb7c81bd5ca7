// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/gated_activation_quant.hpp"

#include "core/route.hpp"
#include "core/validate.hpp"

namespace membound {

namespace {

GatedActivationProblem activation_of(const ConstTensorView& gate, const ConstTensorView* up,
                                     const ConstTensorView* row_scale,
                                     const GatedActivationOptions& options, const char* op) {
  GatedActivationProblem problem{};
  const int axes = gate.rank - 1;
  problem.gate = gate.data;
  problem.dtype = gate.dtype;
  problem.options = options;
  problem.cols = gate.shape[axes];
  problem.rows = gate.size() / problem.cols;
  problem.gate_rows = row_layout(gate, axes, op, "gate");
  problem.gate_col_stride = column_stride(gate);
  if (up != nullptr) {
    problem.up = up->data;
    problem.up_rows = row_layout(*up, axes, op, "up");
    problem.up_col_stride = column_stride(*up);
  }
  if (row_scale != nullptr) {
    problem.row_scale = row_scale->data;
    problem.row_scale_rows = row_layout(*row_scale, axes, op, "row_scale");
  }
  return problem;
}

}  // namespace

void gated_activation_quant(const ConstTensorView& gate, const ConstTensorView* up,
                            const ConstTensorView* row_scale,
                            const GatedActivationQuantOptions& options, const TensorView& out,
                            const ConstTensorView* static_scale, const TensorView* scale,
                            StreamView stream) {
  const char* op = options.activation.op ? options.activation.op : "gated_activation_quant";
  const QuantisedCall quantised{.op = op,
                                .values = gate,
                                .values_name = "gate",
                                .out = out,
                                .static_scale = static_scale,
                                .scale = scale,
                                .group_size = options.group_size,
                                .scale_upper_bound = options.scale_upper_bound};
  check_gate_and_up(gate, up, row_scale, options.activation, op);
  check_quantised(quantised, {{&gate, "gate"}, {up, "up"}, {row_scale, "row_scale"}});
  if (gate.size() == 0) return;
  const GatedActivationQuantProblem problem{
      quantised_result(quantised), activation_of(gate, up, row_scale, options.activation, op)};
  route(
      gate.device, op, [&] { cpu::gated_activation_quant(problem); },
      [&] { cuda::gated_activation_quant(problem, stream); });
}

}  // namespace membound
