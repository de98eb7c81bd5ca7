// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/rms_norm_generic.hpp"

#include <initializer_list>

#include "cuda/norm/rms_norm_generic_config.hpp"
#include "ops/rms_norm.hpp"
#include "ops/rms_norm_backward.hpp"

namespace membound {

namespace {

bool have_one_dtype(DType dtype, std::initializer_list<const ConstTensorView*> inputs,
                    std::initializer_list<const TensorView*> outputs) {
  for (const auto* view : inputs) {
    if (view != nullptr && view->dtype != dtype) return false;
  }
  for (const auto* view : outputs) {
    if (view != nullptr && view->dtype != dtype) return false;
  }
  return true;
}

DType accumulate_dtype_of(std::initializer_list<const ConstTensorView*> inputs) {
  for (const auto* view : inputs) {
    if (view != nullptr && view->dtype == DType::kFloat64) return DType::kFloat64;
  }
  return DType::kFloat32;
}

// The first `axes` axes of a view are its rows; a statistic may have one more axis of 1.
template <class Pointer>
void set_rows(BasicRows<Pointer>& rows, const BasicTensorView<Pointer>* view, int axes,
              const char* op, const char* argument) {
  if (view == nullptr) return;
  const int last = view->rank - 1;
  const bool has_columns = last >= axes && view->shape[last] != 1;
  rows = {view->data, view->dtype, row_layout(*view, axes, op, argument),
          has_columns ? view->strides[last] : 1};
}
template <class Pointer>
void set_columns(BasicColumns<Pointer>& columns, const BasicTensorView<Pointer>* view) {
  if (view == nullptr) return;
  const int last = view->rank - 1;
  columns = {view->data, view->dtype, view->shape[last] == 1 ? 1 : view->strides[last],
             last == 1 ? view->strides[0] : 0};
}

}  // namespace

DType RmsNormCall::accumulate() const { return accumulate_dtype_of({&x, residual, gate}); }

bool RmsNormCall::is_generic() const {
  return !have_one_dtype(x.dtype, {residual, gate}, {&out, residual_out}) ||
         (weight == nullptr && options.weight_offset != 0.0);
}

GenericNormProblem generic_norm_problem(const RmsNormCall& call) {
  const char* op = call.op;
  const int axes = call.x.rank - 1;
  GenericNormProblem problem;
  set_rows(problem.x, &call.x, axes, op, "x");
  set_rows(problem.residual, call.residual, axes, op, "residual");
  set_rows(problem.gate, call.gate, axes, op, "z");
  set_columns(problem.weight, call.weight);
  set_columns(problem.bias, call.bias);
  set_rows(problem.out, &call.out, axes, op, "out");
  set_rows(problem.residual_out, call.residual_out, axes, op, "residual_out");
  set_rows(problem.mean, call.mean, axes, op, "mean");
  set_rows(problem.rstd, call.rstd, axes, op, "rstd");
  problem.accumulate = call.accumulate();
  problem.rounding = call.options.rounding;
  problem.centred = call.centred;
  problem.norm_before_gate = call.norm_before_gate;
  problem.cols = call.x.shape[axes];
  problem.rows = call.x.size() / problem.cols;
  problem.heads = call.heads();
  problem.eps = call.options.eps;
  problem.weight_offset = call.options.weight_offset;
  return problem;
}

DType RmsNormBackwardCall::accumulate() const {
  return accumulate_dtype_of({&dy, &x, dsum, gate, mean, &rstd});
}

// Without rows, sums are zero whatever the dtypes.
bool RmsNormBackwardCall::is_generic() const {
  if (x.size() == 0) return false;
  const DType statistics = accumulate_dtype(x.dtype);
  return !have_one_dtype(x.dtype, {&dy, dsum, gate}, {dx, dgate}) || dresidual != nullptr ||
         !have_one_dtype(statistics, {mean, &rstd}, {}) ||
         (weight == nullptr && options.weight_offset != 0.0);
}

GenericNormBackwardProblem generic_norm_problem(const RmsNormBackwardCall& call) {
  const char* op = call.op;
  const int axes = call.x.rank - 1;
  GenericNormBackwardProblem problem;
  set_rows(problem.dy, &call.dy, axes, op, "dy");
  set_rows(problem.x, &call.x, axes, op, call.x_name);
  set_rows(problem.dsum, call.dsum, axes, op, "dresidual_out");
  set_rows(problem.gate, call.gate, axes, op, "z");
  set_rows(problem.mean, call.mean, axes, op, "mean");
  set_rows(problem.rstd, &call.rstd, axes, op, "rstd");
  set_columns(problem.weight, call.weight);
  set_rows(problem.dx, call.dx, axes, op, "dx");
  set_rows(problem.dresidual, call.dresidual, axes, op, "dresidual");
  set_rows(problem.dgate, call.dgate, axes, op, "dz");
  set_columns(problem.dweight, call.dweight);
  set_columns(problem.dbias, call.dbias);
  problem.workspace = call.workspace ? call.workspace->data : nullptr;
  problem.accumulate = call.accumulate();
  problem.rounded_to = call.is_added ? call.dy.dtype : call.x.dtype;
  problem.rounding = call.options.rounding;
  problem.accumulate_sums = call.options.accumulate;
  problem.norm_before_gate = call.norm_before_gate;
  problem.cols = call.x.shape[axes];
  problem.rows = call.x.size() / problem.cols;
  problem.heads = call.heads();
  problem.weight_offset = call.options.weight_offset;
  return problem;
}

std::int64_t generic_gradient_workspace(std::int64_t rows, std::int64_t cols, std::int64_t heads,
                                        bool centred) {
  const auto config = cuda::tuning::generic_backward_config(rows, cols, heads, /*sums=*/true);
  return std::int64_t{config.partial_rows} * heads * cols * (centred ? 2 : 1) *
         std::int64_t{sizeof(double)};
}

}  // namespace membound
