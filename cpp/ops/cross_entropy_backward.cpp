// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/cross_entropy_backward.hpp"

#include "core/route.hpp"
#include "core/validate.hpp"
#include "ops/cross_entropy.hpp"

namespace membound {

void cross_entropy_backward(const ConstTensorView* dloss, const ConstTensorView& logits,
                            const ConstTensorView& labels, const ConstTensorView& lse,
                            const CrossEntropyOptions& options, const TensorView& dlogits,
                            StreamView stream) {
  constexpr const char* kOp = "cross_entropy_backward";
  CrossEntropyProblem problem =
      cross_entropy_problem(logits, labels, dloss, options, &dlogits, kOp);
  check_row_statistic(lse, "lse", logits, "logits", kOp);
  check_overlap(dlogits, "dlogits", lse, "lse", kOp, false);
  if (problem.rows == 0) return;
  problem.lse = {lse.data, row_layout(lse, lse.rank, kOp, "lse")};
  route(
      logits.device, kOp, [&] { cpu::cross_entropy(problem); },
      [&] { cuda::cross_entropy(problem, stream); });
}

}  // namespace membound
