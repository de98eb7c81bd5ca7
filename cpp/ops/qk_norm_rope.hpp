// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/ops/qk_norm_rope.hpp"
#include "ops/rope.hpp"

namespace membound {

// A weight of heads; data null: ones. A head_stride of 0: all heads share it.
struct HeadWeight {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t head_stride = 0, stride = 0;
};

// One number for each head of each token, in the dtype of sums; data null: none. `dim` says
// nothing.
struct HeadStatistic {
  void* data = nullptr;
  RopeStrides strides = {};
};

// The slot of each token in a cache of blocks.
struct CacheSlots {
  RopeIntegers ids;  // none: there is no cache
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
  RopeProblem rope;  // what is normalised and turned
  HeadWeight weights[2];
  HeadStatistic rstds[2];
  double eps, weight_offset;
  bool round_normed;    // x * rstd, to x's dtype
  bool round_weighted;  // and its product with the weight
  // With one, the outputs of k, which is the last array then, and of v are caches: blocks and the
  // slots of each are their axes of batch and sequence.
  CacheSlots cache;
  RopeHeads values;  // v, which is copied; no heads: none

  bool is_cached(int array) const { return cache.given() && array == rope.count - 1; }
};

// What the user's call brought.
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
  const KeyValueCache* cache = nullptr;  // in place of k_out
};
// Checks all of a call. For the bindings too, which check what is not there yet.
MEMBOUND_API QkNormRopeProblem qk_norm_rope_problem(const QkNormRopeCall& call);

HeadStatistic head_statistic(const ConstTensorView& view, RopeLayout layout);
// A weight, or a gradient of one: (head_dim,) or (heads, head_dim).
void check_head_weight(const ConstTensorView& weight, const char* name, const RopeProblem& problem,
                       int array, const ConstTensorView& x, const char* op);
HeadWeight head_weight(const ConstTensorView& weight);
// eps, weight_offset, head_dim.
void check_qk_norm(const RopeProblem& problem, const QkNormRopeOptions& options,
                   const bool (&has_weight)[2], const char* op);

namespace cpu {
void qk_norm_rope(const QkNormRopeProblem& problem);
}
namespace cuda {
void qk_norm_rope(const QkNormRopeProblem& problem, StreamView stream);
}

}  // namespace membound
