// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/gated_activation_backward.hpp"

#include "core/route.hpp"
#include "core/validate.hpp"

namespace membound {

namespace {

struct Matrix {
  const char* name;
  const ConstTensorView* view;  // null: absent
};

void check_gradient(const Matrix& gradient, const ConstTensorView& gate,
                    const std::initializer_list<Matrix>& read, const ConstTensorView* row_scale,
                    const char* op) {
  check_like(*gradient.view, gradient.name, gate, "gate", op);
  check_writable(*gradient.view, op, gradient.name);
  for (const Matrix& one : read) {
    if (one.view != nullptr)
      check_overlap(*gradient.view, gradient.name, *one.view, one.name, op, true);
  }
  if (row_scale != nullptr)
    check_overlap(*gradient.view, gradient.name, *row_scale, "row_scale", op, false);
}

}  // namespace

void gated_activation_backward(const ConstTensorView& dy, const ConstTensorView& gate,
                               const ConstTensorView* up, const ConstTensorView* row_scale,
                               const GatedActivationOptions& options, const TensorView* dgate,
                               const TensorView* dup, StreamView stream) {
  const char* op = options.op ? options.op : "gated_activation_backward";
  check_gate_and_up(gate, up, row_scale, options, op);
  check_like(dy, "dy", gate, "gate", op);
  MEMBOUND_CHECK(up != nullptr || dup == nullptr, InvalidArgument, op,
                 "argument 'dup' must not be given without 'up'");
  const ConstTensorView dgate_view = dgate ? ConstTensorView(*dgate) : ConstTensorView();
  const ConstTensorView dup_view = dup ? ConstTensorView(*dup) : ConstTensorView();
  const std::initializer_list<Matrix> read{{"dy", &dy}, {"gate", &gate}, {"up", up}};
  if (dgate) check_gradient({"dgate", &dgate_view}, gate, read, row_scale, op);
  if (dup) check_gradient({"dup", &dup_view}, gate, read, row_scale, op);
  if (dgate && dup) check_overlap(dgate_view, "dgate", dup_view, "dup", op, false);
  if (gate.size() == 0 || (!dgate && !dup)) return;

  FlattenedRows flattened(gate, row_scale != nullptr, op);
  const Matrix every[] = {{"dy", &dy},
                          {"gate", &gate},
                          {"up", up},
                          {"dgate", dgate ? &dgate_view : nullptr},
                          {"dup", dup ? &dup_view : nullptr}};
  for (const Matrix& one : every) flattened.add(one.view);
  GatedActivationBackwardProblem problem{};
  problem.dtype = gate.dtype;
  problem.options = options;
  problem.rows = flattened.rows();
  problem.cols = flattened.cols();
  problem.dgate = dgate ? dgate->data : nullptr;
  problem.dup = dup ? dup->data : nullptr;
  const auto set_layout = [&](const Matrix& one, RowLayout& rows, std::int64_t& col_stride) {
    if (one.view == nullptr) return;
    rows = flattened.layout(*one.view, one.name);
    col_stride = flattened.column_stride(*one.view);
  };
  problem.dy = dy.data;
  problem.gate = gate.data;
  problem.up = up ? up->data : nullptr;
  set_layout(every[0], problem.dy_rows, problem.dy_col_stride);
  set_layout(every[1], problem.gate_rows, problem.gate_col_stride);
  set_layout(every[2], problem.up_rows, problem.up_col_stride);
  set_layout(every[3], problem.dgate_rows, problem.dgate_col_stride);
  set_layout(every[4], problem.dup_rows, problem.dup_col_stride);
  if (row_scale != nullptr) {
    problem.row_scale = row_scale->data;
    problem.row_scale_rows = row_layout(*row_scale, row_scale->rank, op, "row_scale");
  }
  route(
      gate.device, op, [&] { cpu::gated_activation_backward(problem); },
      [&] { cuda::gated_activation_backward(problem, stream); });
}

}  // namespace membound
