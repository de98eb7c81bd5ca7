// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/cross_entropy.hpp"

#include <cmath>
#include <limits>

#include "core/route.hpp"
#include "core/validate.hpp"

namespace membound {

namespace {

void check_options(const CrossEntropyOptions& options, DType dtype, const char* op) {
  MEMBOUND_CHECK(options.label_smoothing >= 0.0 && options.label_smoothing <= 1.0, InvalidArgument,
                 op, "argument 'label_smoothing' must be from 0 to 1, got ",
                 options.label_smoothing);
  MEMBOUND_CHECK(std::isfinite(options.z_loss) && options.z_loss >= 0.0, InvalidArgument, op,
                 "argument 'z_loss' must be finite and not negative, got ", options.z_loss);
  check_finite(options.z_loss, dtype, op, "z_loss");
  MEMBOUND_CHECK(as_computed(options.softcap, dtype) > 0.0, InvalidArgument, op,
                 "argument 'softcap' must be above 0",
                 options.softcap > 0.0 ? " in float32, got " : ", got ", options.softcap);
  check_finite(options.dloss, dtype, op, "dloss");
}

// Every label, on the CPU.
void check_labels(const CrossEntropyProblem& p, const ConstTensorView& labels, const char* op) {
  MEMBOUND_CHECK(!labels.device.is_cuda(), InvalidArgument, op,
                 "argument 'validate' must be False for arrays on a GPU, which cannot be looked "
                 "at without waiting");
  for (std::int64_t row = 0; row < p.rows; ++row) {
    const std::int64_t label = p.labels.at(p.labels.tokens.offset(row));
    MEMBOUND_CHECK(label == p.options.ignore_index || p.column(label) >= 0, InvalidArgument, op,
                   "argument 'labels' must hold numbers from 0 to ", p.cols - 1,
                   ", or ignore_index, got ", label);
  }
}

RowNumbers numbers_of(const ConstTensorView& view, const char* op, const char* argument) {
  return {view.data, row_layout(view, view.rank, op, argument)};
}

}  // namespace

CrossEntropyProblem cross_entropy_problem(const ConstTensorView& logits,
                                          const ConstTensorView& labels,
                                          const ConstTensorView* dloss,
                                          const CrossEntropyOptions& options,
                                          const TensorView* dlogits, const char* op) {
  check_rows(logits, op, "logits");
  check_floating(logits, op, "logits");
  check_same_device(labels, logits, op, "labels", "logits");
  check_integers(labels, op, "labels");
  check_leading_shape(labels, logits, logits.rank - 1, op, "labels");
  if (dloss != nullptr) check_row_statistic(*dloss, "dloss", logits, "logits", op);
  check_options(options, logits.dtype, op);
  CrossEntropyProblem problem{};
  if (dlogits != nullptr) {
    check_like(*dlogits, "dlogits", logits, "logits", op);
    check_writable(*dlogits, op, "dlogits");
    check_overlap(*dlogits, "dlogits", logits, "logits", op, true);
    check_overlap(*dlogits, "dlogits", labels, "labels", op, false);
    if (dloss != nullptr) check_overlap(*dlogits, "dlogits", *dloss, "dloss", op, false);
    problem.dlogits = dlogits->data;
    problem.dlogits_rows = row_layout(*dlogits, dlogits->rank - 1, op, "dlogits");
    problem.dlogits_col_stride = column_stride(*dlogits);
  }
  problem.logits = logits.data;
  problem.dtype = logits.dtype;
  problem.options = options;
  if (std::isinf(as_computed(options.softcap, logits.dtype))) {
    problem.options.softcap = std::numeric_limits<double>::infinity();  // no logit is near it
  }
  problem.cols = logits.shape[logits.rank - 1];
  problem.rows = logits.size() / problem.cols;
  problem.logits_rows = row_layout(logits, logits.rank - 1, op, "logits");
  problem.logits_col_stride = column_stride(logits);
  problem.labels = token_integers(labels, op, "labels");
  if (dloss != nullptr) problem.dloss = numbers_of(*dloss, op, "dloss");
  if (options.validate) check_labels(problem, labels, op);
  return problem;
}

void cross_entropy(const ConstTensorView& logits, const ConstTensorView& labels,
                   const ConstTensorView* dloss, const CrossEntropyOptions& options,
                   const TensorView& loss, const TensorView* lse, const TensorView* dlogits,
                   StreamView stream) {
  constexpr const char* kOp = "cross_entropy";
  CrossEntropyProblem problem = cross_entropy_problem(logits, labels, dloss, options, dlogits, kOp);
  for (const auto& [view, argument] : {std::pair{&loss, "out"}, {lse, "lse"}}) {
    if (view == nullptr) continue;
    check_row_statistic(*view, argument, logits, "logits", kOp);
    check_writable(*view, kOp, argument);
    check_overlap(*view, argument, logits, "logits", kOp, false);
    check_overlap(*view, argument, labels, "labels", kOp, false);
    if (dloss != nullptr) check_overlap(*view, argument, *dloss, "dloss", kOp, false);
    if (dlogits != nullptr) check_overlap(*view, argument, *dlogits, "dlogits", kOp, false);
  }
  if (lse != nullptr) check_overlap(*lse, "lse", loss, "out", kOp, false);
  if (problem.rows == 0) return;
  problem.loss = numbers_of(loss, kOp, "out");
  if (lse != nullptr) problem.lse = numbers_of(*lse, kOp, "lse");
  route(
      logits.device, kOp, [&] { cpu::cross_entropy(problem); },
      [&] { cuda::cross_entropy(problem, stream); });
}

}  // namespace membound
