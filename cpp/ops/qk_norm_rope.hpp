// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/ops/qk_norm_rope.hpp"
#include "ops/rope.hpp"

namespace membound {

// A weight of heads; data null: ones. A head_stride of 0: shared by all heads.
struct HeadWeight {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t head_stride = 0, stride = 0;
};

// One number per head and token, in the accumulate dtype; data null: none. strides.dim is unused.
struct HeadStatistic {
  void* data = nullptr;
  RopeStrides strides = {};
};

// The slot of each token in a block-structured cache.
struct CacheSlots {
  RopeIntegers ids;  // null: no cache
  std::int64_t batch_stride = 0, seq_stride = 0;
  std::int64_t slots = 0, block_size = 1;

  bool given() const { return ids.data != nullptr; }
  MEMBOUND_HOST_DEVICE std::int64_t of_token(std::int64_t b, std::int64_t s) const {
    return ids.at(b * batch_stride + s * seq_stride);
  }
  MEMBOUND_HOST_DEVICE bool holds(std::int64_t slot) const { return slot >= 0 && slot < slots; }
};

// What both back ends receive: checked, no tensors, no user errors.
struct QkNormRopeProblem {
  RopeProblem rope;  // what is normalised and rotated
  HeadWeight weights[2];
  HeadStatistic rstds[2];
  double eps, weight_offset;
  bool round_normed;    // round x * rstd to x's dtype
  bool round_weighted;  // round its product with the weight, too
  // With a cache, the outputs of k (then the last array) and of v are caches, whose blocks and
  // slots take the roles of batch and sequence.
  CacheSlots cache;
  RopeHeads values;  // v, which is copied; heads 0: none

  bool is_cached(int array) const { return cache.given() && array == rope.count - 1; }
};

// The arguments of the user's call.
struct QkNormRopeCall {
  const ConstTensorView& q;
  const ConstTensorView* k;
  const ConstTensorView* q_weight;
  const ConstTensorView* k_weight;
  const RopeAngles& angles;
  const QkNormRopeOptions& options;
  const TensorView& out;
  const TensorView* k_out;
  const TensorView* q_rstd;
  const TensorView* k_rstd;
  const KeyValueCache* cache = nullptr;  // instead of k_out
};
// Performs all checks of a call. The bindings use it too, before outputs are allocated.
MEMBOUND_API QkNormRopeProblem qk_norm_rope_problem(const QkNormRopeCall& call);

HeadStatistic head_statistic(const ConstTensorView& view, RopeLayout layout);
// A weight or its gradient: (head_dim,) or (heads, head_dim).
void check_head_weight(const ConstTensorView& weight, const char* name, const RopeProblem& problem,
                       int array, const ConstTensorView& x, const char* op);
HeadWeight head_weight(const ConstTensorView& weight);
// Checks eps, weight_offset and head_dim.
void check_qk_norm(const RopeProblem& problem, const QkNormRopeOptions& options,
                   const bool (&has_weight)[2], const char* op);

namespace cpu {
void qk_norm_rope(const QkNormRopeProblem& problem);
}
namespace cuda {
void qk_norm_rope(const QkNormRopeProblem& problem, StreamView stream);
}

}  // namespace membound
