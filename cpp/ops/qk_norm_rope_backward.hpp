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

// The arrays of q or k that rope does not have.
struct HeadGradient {
  const void* x;
  RopeStrides x_strides;
  HeadWeight weight;
  HeadStatistic rstd;  // data null: recomputed
  HeadWeightGradient dweight;
  std::int64_t groups;  // heads that share a weight form a group: 1 group, or one per head
};

// What both back ends receive: checked, no tensors, no user errors. rope: takes the gradients of
// the outputs to those of q and k, by the inverse rotation.
struct QkNormRopeBackwardProblem {
  RopeProblem rope;
  HeadGradient arrays[2];
  double eps, weight_offset;
  bool round_normed;  // round x * rstd in dweight
  bool accumulate;
  void* workspace;  // CUDA with a dweight only

  bool wants_dweight() const {
    return arrays[0].dweight.data != nullptr ||
           (rope.count == 2 && arrays[1].dweight.data != nullptr);
  }
};

// Performs all checks of a call except that of its workspace, which is not set. The bindings use it
// too.
MEMBOUND_API QkNormRopeBackwardProblem qk_norm_rope_backward_problem(
    const QkNormRopeGradient& q, const QkNormRopeGradient* k, const RopeAngles& angles,
    const QkNormRopeOptions& options, bool accumulate);

// The rows that share a weight are split into parts, whose sums are added in order: the reduction
// tree of dweight. On a GPU one block computes a part: 1024 of them, of at least 64 rows, fill any
// GPU.
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
