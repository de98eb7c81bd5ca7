// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/cross_entropy.hpp"

#include <cmath>
#include <iterator>
#include <tuple>
#include <utility>

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
  check_limit(options.softcap, dtype, op, "softcap");
  check_finite(options.dloss, dtype, op, "dloss");
}

// Checks every label, on the CPU.
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

void check_class_weights(const ConstTensorView& weight, const ConstTensorView& logits,
                         const char* op) {
  check_same_device(weight, logits, op, "weight", "logits");
  check_floating(weight, op, "weight");
  const std::int64_t cols = logits.shape[logits.rank - 1];
  MEMBOUND_CHECK(weight.rank == 1 && weight.shape[0] == cols, InvalidArgument, op,
                 "argument 'weight' must have shape (", cols, ",), one for each column, got ",
                 shape_text(weight));
}

// One number per row or, with a reduction, a single one.
void check_loss_like(const ConstTensorView& view, const char* argument,
                     const ConstTensorView& logits, const CrossEntropyOptions& options,
                     const char* op) {
  if (options.reduction == Reduction::kNone) {
    return check_row_statistic(view, argument, logits, "logits", op);
  }
  check_same_device(view, logits, op, argument, "logits");
  check_dtype(view, accumulate_dtype(logits.dtype), op, argument);
  check_floating(view, op, argument);
  check_leading_shape(view, logits, 0, op, argument);
}

// Nothing that the forward writes may overlap anything else; dlogits has been checked already.
void check_results(const ConstTensorView& logits, const ConstTensorView& labels,
                   const ConstTensorView* weight, const ConstTensorView* dloss,
                   const TensorView& loss, const CrossEntropyResults& also, const char* op) {
  const std::pair<const char*, const TensorView*> written[] = {{"out", &loss},
                                                               {"lse", also.lse},
                                                               {"z_loss", also.z_loss},
                                                               {"predictions", also.predictions},
                                                               {"row_losses", also.row_losses},
                                                               {"row_z_losses", also.row_z_losses},
                                                               {"entropy", also.entropy},
                                                               {"dlogits", also.dlogits}};
  const std::pair<const char*, const ConstTensorView*> read[] = {
      {"logits", &logits}, {"labels", &labels}, {"weight", weight}, {"dloss", dloss}};
  const auto* const dlogits = std::end(written) - 1;
  for (const auto* one = written; one != dlogits; ++one) {
    if (one->second == nullptr) continue;
    check_writable(*one->second, op, one->first);
    for (const auto& [name, view] : read) {
      if (view != nullptr) check_overlap(*one->second, one->first, *view, name, op, false);
    }
    for (const auto* other = one + 1; other <= dlogits; ++other) {
      if (other->second == nullptr) continue;
      check_overlap(*other->second, other->first, *one->second, one->first, op, false);
    }
  }
}

}  // namespace

RowNumbers row_numbers(const ConstTensorView& view, const char* op, const char* argument) {
  return {view.data, row_layout(view, view.rank, op, argument)};
}

CrossEntropyProblem cross_entropy_problem(const ConstTensorView& logits,
                                          const ConstTensorView& labels,
                                          const ConstTensorView* weight,
                                          const ConstTensorView* dloss,
                                          const CrossEntropyOptions& options,
                                          const TensorView* dlogits, const char* op) {
  check_rows(logits, op, "logits");
  check_floating(logits, op, "logits");
  check_same_device(labels, logits, op, "labels", "logits");
  check_integers(labels, op, "labels");
  check_leading_shape(labels, logits, logits.rank - 1, op, "labels");
  if (weight != nullptr) check_class_weights(*weight, logits, op);
  if (dloss != nullptr) check_loss_like(*dloss, "dloss", logits, options, op);
  check_options(options, logits.dtype, op);
  CrossEntropyProblem problem{};
  if (dlogits != nullptr) {
    check_like(*dlogits, "dlogits", logits, "logits", op);
    check_writable(*dlogits, op, "dlogits");
    check_overlap(*dlogits, "dlogits", logits, "logits", op, true);
    check_overlap(*dlogits, "dlogits", labels, "labels", op, false);
    if (weight != nullptr) check_overlap(*dlogits, "dlogits", *weight, "weight", op, false);
    if (dloss != nullptr) check_overlap(*dlogits, "dlogits", *dloss, "dloss", op, false);
    problem.dlogits = dlogits->data;
    problem.dlogits_rows = row_layout(*dlogits, dlogits->rank - 1, op, "dlogits");
    problem.dlogits_col_stride = column_stride(*dlogits);
  }
  problem.logits = logits.data;
  problem.dtype = logits.dtype;
  problem.options = options;
  problem.cols = logits.shape[logits.rank - 1];
  problem.rows = logits.size() / problem.cols;
  problem.logits_rows = row_layout(logits, logits.rank - 1, op, "logits");
  problem.logits_col_stride = column_stride(logits);
  problem.labels = token_integers(labels, op, "labels");
  if (weight != nullptr) problem.weight = {weight->data, weight->dtype, column_stride(*weight)};
  if (dloss != nullptr) problem.dloss = row_numbers(*dloss, op, "dloss");
  if (options.validate) check_labels(problem, labels, op);
  return problem;
}

void check_lse(const ConstTensorView& lse, const ConstTensorView& logits, const char* op) {
  ConstTensorView expected = logits;
  expected.shape[logits.rank - 1] = 2;
  check_same_device(lse, logits, op, "lse", "logits");
  check_dtype(lse, accumulate_dtype(logits.dtype), op, "lse");
  check_floating(lse, op, "lse");
  check_leading_shape(lse, expected, expected.rank, op, "lse");
}

void set_lse(CrossEntropyProblem& problem, const ConstTensorView& lse, const char* op) {
  const int axes = lse.rank - 1;
  problem.lse = {lse.data, row_layout(lse, axes, op, "lse")};
  problem.lse_low = problem.lse;
  const auto bytes = static_cast<std::int64_t>(dtype_size(lse.dtype));
  problem.lse_low.data = static_cast<const char*>(lse.data) + lse.strides[axes] * bytes;
}

void cross_entropy(const ConstTensorView& logits, const ConstTensorView& labels,
                   const ConstTensorView* weight, const ConstTensorView* dloss,
                   const CrossEntropyOptions& options, const TensorView& loss,
                   const CrossEntropyResults& also, StreamView stream) {
  constexpr const char* kOp = "cross_entropy";
  const bool reduces = options.reduction != Reduction::kNone;
  CrossEntropyProblem problem =
      cross_entropy_problem(logits, labels, weight, dloss, options, also.dlogits, kOp);
  check_loss_like(loss, "out", logits, options, kOp);
  if (also.lse != nullptr) check_lse(*also.lse, logits, kOp);
  if (also.z_loss != nullptr) check_loss_like(*also.z_loss, "z_loss", logits, options, kOp);
  if (also.entropy != nullptr) check_row_statistic(*also.entropy, "entropy", logits, "logits", kOp);
  if (also.predictions != nullptr) {
    check_same_device(*also.predictions, logits, kOp, "predictions", "logits");
    check_dtype(*also.predictions, labels.dtype, kOp, "predictions");
    check_integers(*also.predictions, kOp, "predictions");
    check_leading_shape(*also.predictions, logits, logits.rank - 1, kOp, "predictions");
  }
  for (const auto& [rows, wanted, argument] :
       {std::tuple{also.row_losses, reduces, "row_losses"},
        {also.row_z_losses, reduces && also.z_loss != nullptr, "row_z_losses"}}) {
    MEMBOUND_CHECK((rows != nullptr) == wanted, InvalidArgument, kOp, "argument '", argument,
                   wanted ? "' must be given with a reduction"
                          : "' must be None without a "
                            "reduction");
    if (rows != nullptr) check_row_statistic(*rows, argument, logits, "logits", kOp);
  }
  check_results(logits, labels, weight, dloss, loss, also, kOp);
  const TensorView& row_losses = reduces ? *also.row_losses : loss;
  const TensorView* row_z_losses = reduces ? also.row_z_losses : also.z_loss;
  problem.loss = row_numbers(row_losses, kOp, "out");
  if (row_z_losses != nullptr) {
    problem.z_loss = row_numbers(*row_z_losses, kOp, "z_loss");
  }
  if (also.lse != nullptr) set_lse(problem, *also.lse, kOp);
  if (also.entropy != nullptr) problem.entropy = row_numbers(*also.entropy, kOp, "entropy");
  if (also.predictions != nullptr) {
    problem.predictions = token_integers(*also.predictions, kOp, "predictions");
  }
  if (reduces) {
    problem.total = loss.data;
    problem.z_total = also.z_loss == nullptr ? nullptr : also.z_loss->data;
    problem.scale = loss.data;  // scratch until the total is written there
  }
  if (problem.rows == 0 && !reduces) return;
  route(
      logits.device, kOp, [&] { cpu::cross_entropy(problem); },
      [&] { cuda::cross_entropy(problem, stream); });
}

}  // namespace membound
