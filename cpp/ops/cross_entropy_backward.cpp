// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/cross_entropy_backward.hpp"

#include <tuple>

#include "core/route.hpp"
#include "core/validate.hpp"
#include "membound/device_buffer.hpp"
#include "ops/cross_entropy.hpp"

namespace membound {

namespace {

constexpr const char* kOp = "cross_entropy_backward";

void check_scale(const TensorView& scale, const ConstTensorView& logits,
                 const TensorView& dlogits) {
  check_same_device(scale, logits, kOp, "scale", "logits");
  check_dtype(scale, accumulate_dtype(logits.dtype), kOp, "scale");
  check_floating(scale, kOp, "scale");
  check_leading_shape(scale, logits, 0, kOp, "scale");
  check_overlap(scale, "scale", logits, "logits", kOp, false);
  check_overlap(scale, "scale", dlogits, "dlogits", kOp, false);
}

void set_entropy(CrossEntropyProblem& problem, const EntropyGradient& given,
                 const ConstTensorView& logits, const TensorView& dlogits) {
  for (const auto& [view, name, to, other, other_name] :
       {std::tuple{given.entropy, "entropy", &problem.entropy, given.dentropy, "dentropy"},
        {given.dentropy, "dentropy", &problem.dentropy, given.entropy, "entropy"}}) {
    MEMBOUND_CHECK(view != nullptr || other == nullptr, InvalidArgument, kOp, "argument '", name,
                   "' must be given with '", other_name, "', got None");
    if (view == nullptr) continue;
    check_row_statistic(*view, name, logits, "logits", kOp);
    check_overlap(dlogits, "dlogits", *view, name, kOp, false);
    *to = row_numbers(*view, kOp, name);
  }
}

}  // namespace

void cross_entropy_backward(const ConstTensorView* dloss, const ConstTensorView& logits,
                            const ConstTensorView& labels, const ConstTensorView& lse,
                            const ConstTensorView* weight, const CrossEntropyOptions& options,
                            const TensorView& dlogits, const TensorView* scale, StreamView stream,
                            const EntropyGradient& of_entropy) {
  CrossEntropyProblem problem =
      cross_entropy_problem(logits, labels, weight, dloss, options, &dlogits, kOp);
  if (lse.rank == logits.rank) {
    check_lse(lse, logits, kOp);
    set_lse(problem, lse, kOp);
  } else {
    check_row_statistic(lse, "lse", logits, "logits", kOp);
    problem.lse = row_numbers(lse, kOp, "lse");
  }
  check_overlap(dlogits, "dlogits", lse, "lse", kOp, false);
  set_entropy(problem, of_entropy, logits, dlogits);
  if (scale != nullptr) check_scale(*scale, logits, dlogits);
  if (problem.rows == 0) return;
  problem.scale = scale == nullptr ? nullptr : scale->data;
  route(
      logits.device, kOp, [&] { cpu::cross_entropy(problem); },
      [&] {
        DeviceBuffer allocated;
        if (problem.is_mean() && problem.scale == nullptr) {
          allocated = DeviceBuffer(sizeof(double), logits.device, stream);
          problem.scale = allocated.data();
        }
        cuda::cross_entropy(problem, stream);
      });
}

}  // namespace membound
