// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/dtype.hpp"

// The seam between cpu/qk_norm_rope*.cpp and the units per instruction set: plain data and function
// names.
namespace membound::cpu {

// The most elements of a head.
inline constexpr std::int64_t kQkNormColumns = 1024;

// The heads of one array for evenly spaced tokens, and what is done with each. All strides count
// elements.
struct QkNormHeads {
  const void* x;    // the first head of the first token
  void* rstd;       // likewise; null: none. The forward writes, the backward reads it
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
  std::int64_t ask_distance;  // see ask_ahead
  double weight_offset, eps;
  // core/safe_scale.hpp, handed over because this unit may not compile its inline functions.
  double safe_low, safe_high;
  int (*safe_exponent)(double largest, double eps);
};

struct QkNormRopeRows {
  QkNormHeads heads;
  void* out;  // may be x
  std::int64_t out_token_stride, out_head_stride, out_dim_stride;
  bool bypass_cache;
  const std::int64_t* places;  // of tokens in out, kNoPlace for none; null: by out_token_stride
};

inline constexpr std::int64_t kNoPlace = INT64_MIN;

struct QkNormRopeBackwardRows {
  QkNormHeads heads;  // cos and sin turn the other way
  const void* dy;
  void* dx;  // may be dy or x
  std::int64_t dy_token_stride, dy_head_stride, dy_dim_stride;
  std::int64_t dx_token_stride, dx_head_stride, dx_dim_stride;
  bool bypass_cache;
  double* sums;  // += what these rows give of dweight, contiguous; null: not wanted
  std::int64_t sums_head_stride;  // 0: heads share the weight
};

#define MEMBOUND_DECLARE_QK_NORM_ROPE(isa)                        \
  namespace isa {                                                 \
  void qk_norm_rope(const QkNormRopeRows& rows);                  \
  void qk_norm_rope_backward(const QkNormRopeBackwardRows& rows); \
  }
MEMBOUND_DECLARE_QK_NORM_ROPE(baseline)
MEMBOUND_DECLARE_QK_NORM_ROPE(avx2)
MEMBOUND_DECLARE_QK_NORM_ROPE(avx512)
MEMBOUND_DECLARE_QK_NORM_ROPE(neon)
#undef MEMBOUND_DECLARE_QK_NORM_ROPE

}  // namespace membound::cpu
