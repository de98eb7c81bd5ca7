// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/ops/qk_norm_rope_backward.hpp"
#include "ops/qk_norm_rope.hpp"

namespace membound {

// The gradient of a weight of heads; data null: not wanted.
struct HeadWeightGradient {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t head_stride = 0, stride = 0;
};

// What q or k brings to its gradient beside rope's arrays.
struct HeadGradient {
  const void* x;
  RopeStrides x_strides;
  HeadWeight weight;
  HeadStatistic rstd;  // data null: made again
  HeadWeightGradient dweight;
  std::int64_t groups;  // of heads that share a weight: 1, or every head alone
};

// What both back ends receive: checked, no tensors, no user errors. rope: from the gradients of
// the outputs to those of q and k, which turn the other way than the forward.
struct QkNormRopeBackwardProblem {
  RopeProblem rope;
  HeadGradient arrays[2];
  double eps, weight_offset;
  bool round_normed;  // x * rstd in dweight
  bool accumulate;
  void* workspace;  // CUDA with a dweight

  bool wants_dweight() const {
    return arrays[0].dweight.data != nullptr ||
           (rope.count == 2 && arrays[1].dweight.data != nullptr);
  }
};

// Checks all of a call but its workspace, which is not set. For the bindings too.
MEMBOUND_API QkNormRopeBackwardProblem qk_norm_rope_backward_problem(
    const QkNormRopeGradient& q, const QkNormRopeGradient* k, const RopeAngles& angles,
    const QkNormRopeOptions& options, bool accumulate);

// Rows that share a weight come in parts, whose sums are added in their order: the tree of dweight.
// On a GPU a part is a block's work: 1024 of them fill any, of 64 rows at least.
inline constexpr std::int64_t kQkNormParts = 1024;
inline constexpr std::int64_t kQkNormPartRows = 64;
MEMBOUND_HOST_DEVICE inline std::int64_t qk_norm_part_rows(std::int64_t rows) {
  const std::int64_t each = (rows + kQkNormParts - 1) / kQkNormParts;
  return each < kQkNormPartRows ? kQkNormPartRows : each;
}
MEMBOUND_HOST_DEVICE inline std::int64_t qk_norm_parts(std::int64_t rows) {
  const std::int64_t each = qk_norm_part_rows(rows);
  return (rows + each - 1) / each;
}

namespace cpu {
void qk_norm_rope_backward(const QkNormRopeBackwardProblem& problem);
}
namespace cuda {
void qk_norm_rope_backward(const QkNormRopeBackwardProblem& problem, StreamView stream);
}

}  // namespace membound
