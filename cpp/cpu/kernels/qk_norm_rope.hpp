// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/dtype.hpp"

// The interface between cpu/qk_norm_rope*.cpp and the units per instruction set: plain data and
// function names only.
namespace membound::cpu {

// The most elements of a head.
inline constexpr std::int64_t kQkNormColumns = 1024;

// The heads of one array for evenly spaced tokens, and how they are normalised. All strides count
// elements.
struct QkNormHeads {
  const void* x;    // the first head of the first token
  void* rstd;       // likewise, or null; the forward writes it, the backward reads it
  const void* cos;  // arranged (see kernels/rope.hpp), all pairs of each token
  const void* sin;
  const void* weight;  // null: none
  DType dtype, weight_dtype;
  bool interleaved;
  bool round_normed, round_weighted;
  std::int64_t tokens, heads;
  std::int64_t x_token_stride, x_head_stride, x_dim_stride;
  std::int64_t rstd_token_stride, rstd_head_stride;
  std::int64_t table_stride;  // between tokens
  std::int64_t table_second;
  std::int64_t weight_head_stride, weight_stride;
  std::int64_t head_dim, rotary_dim, rotary_offset;
  std::int64_t prefetch_distance;  // see prefetch_ahead
  double weight_offset, eps;
  // core/safe_scale.hpp, passed in because this unit must not compile its inline functions.
  double safe_low, safe_high;
  int (*safe_exponent)(double largest, double eps);
};

struct QkNormRopeRows {
  QkNormHeads heads;
  void* out;  // may be x
  std::int64_t out_token_stride, out_head_stride, out_dim_stride;
  bool bypass_cache;
  // offsets of tokens in out, kNoOffset to skip one; null: out_token_stride
  const std::int64_t* offsets;
};

inline constexpr std::int64_t kNoOffset = INT64_MIN;

struct QkNormRopeBackwardRows {
  QkNormHeads heads;  // cos and sin of the inverse rotation
  const void* dy;
  void* dx;  // may be dy or x
  std::int64_t dy_token_stride, dy_head_stride, dy_dim_stride;
  std::int64_t dx_token_stride, dx_head_stride, dx_dim_stride;
  bool bypass_cache;
  double* sums;                   // += the contribution to dweight, contiguous; null: not wanted
  std::int64_t sums_head_stride;  // 0: heads share the weight
};

}  // namespace membound::cpu
