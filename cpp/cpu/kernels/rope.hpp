// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/dtype.hpp"

// The interface between cpu/rope.cpp and the units per instruction set: plain data and function
// names only.
namespace membound::cpu {

// Some pairs of the heads of one array, for evenly spaced tokens. All strides count elements.
struct RopeRows {
  const void* x;    // the first head of the first token
  void* out;        // likewise; may be x
  const void* cos;  // arranged, in the accumulate dtype
  const void* sin;
  DType dtype;
  bool interleaved;
  bool bypass_cache;
  std::int64_t prefetch_distance;
  bool copy_rest;  // also copy the elements that are not rotated
  std::int64_t tokens, heads;
  std::int64_t x_token_stride, x_head_stride, x_dim_stride;
  std::int64_t out_token_stride, out_head_stride, out_dim_stride;
  std::int64_t table_stride;  // between tokens
  std::int64_t table_second;  // see RopeArrangement
  std::int64_t head_dim, rotary_dim, rotary_offset;
  std::int64_t first_pair, pairs;  // of the rotary_dim / 2, those to rotate in this call
};

// cos and sin of pairs first, first + step, ... below last of one token.
struct RopeAngleRun {
  const void* cos;  // a row of the table; null: freqs is used
  const void* sin;
  const void* freqs;
  DType table_dtype;  // of freqs too
  DType dtype;        // of x; results are in its accumulate dtype
  std::int64_t cos_col_stride, sin_col_stride, freqs_stride;
  double position, scaling;
  bool inverse;
  std::int64_t first, last, step;
  void* cos_out;  // of pair 0, even if `first` is another
  void* sin_out;
};

// Arranges cos and sin of consecutive pairs as RopeRows needs them.
struct RopeArrangement {
  DType dtype;
  bool interleaved;
  std::int64_t pairs;
  const void* cos[2];  // of the first and of the second elements; the same if shared
  const void* sin[2];
  void* cos_out;
  void* sin_out;
  std::int64_t second;  // elements between the results of the first and of the second; 0: shared
};

// One token's contribution to the gradient of the angles: for each pair, the sum over heads of x1 *
// dx2 - x2 * dx1.
struct RopeAngleGradient {
  const void* x;
  const void* dx;
  DType dtype;
  bool interleaved;
  std::int64_t heads;
  std::int64_t x_head_stride, x_dim_stride, dx_head_stride, dx_dim_stride;
  std::int64_t rotary_dim, rotary_offset;
  std::int64_t first_pair, pairs;
  double* sums;  // +=
};

// The most elements that the arranged cos of `pairs` pairs takes; likewise sin.
inline constexpr std::int64_t rope_width(std::int64_t pairs, bool interleaved) {
  constexpr std::int64_t kWhole = 64;  // elements: a multiple of every kernel's step
  return ((interleaved ? 2 * pairs : pairs) + kWhole - 1) / kWhole * kWhole;
}

}  // namespace membound::cpu
