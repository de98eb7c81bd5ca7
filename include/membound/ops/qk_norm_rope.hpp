// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/ops/rope.hpp"

namespace membound {

// Where 16-bit values are rounded in between. Wider dtypes give the same bits with all three.
enum class QkNormRounding : std::uint8_t {
  kOnce,            // all in float32, one rounding at the end
  kBeforeWeight,    // the bits of rms_norm with Rounding::kBeforeWeight, followed by rope
  kBeforeRotation,  // the bits of rms_norm with Rounding::kOnce, followed by rope
};

struct QkNormRopeOptions {
  RopeOptions rope;
  double eps = 1e-6;
  double weight_offset = 0.0;
  QkNormRounding rounding = QkNormRounding::kOnce;
};

// The most elements of a head.
inline constexpr std::int64_t kMaxQkNormHeadDim = 1024;

// RMSNorm of each head of q and k and rotary embedding of the result, in one pass (Qwen3, Gemma 3):
//
//   rstd = 1 / sqrt(mean(x * x) + eps),   out = rope(x * rstd * (weight + weight_offset))
//
// q, k, angles, out, k_out, stream   as in rope; head_dim at most kMaxQkNormHeadDim
// q_weight  (head_dim,), or (heads, head_dim) with one for each head, of any floating dtype; or
//           nullptr for none. k_weight likewise; weight_offset needs that of every array there is
// q_rstd    q's shape without its last axis, float32 (float64 for float64), or nullptr where it is
//           not wanted. k_rstd likewise
//
// Sums are those of rms_norm: a head's bits depend on its values, head_dim and dtype alone, and
// sums of squares that would overflow or underflow are recomputed with scaling. Elements that are
// not rotated are normalised too. Positions without a row give NaN, as in rope.
//
// Throws InvalidArgument, TypeMismatch, CudaError; then nothing was launched and nothing written.
MEMBOUND_API void qk_norm_rope(const ConstTensorView& q, const ConstTensorView* k,
                               const ConstTensorView* q_weight, const ConstTensorView* k_weight,
                               const RopeAngles& angles, const QkNormRopeOptions& options,
                               const TensorView& out, const TensorView* k_out,
                               const TensorView* q_rstd, const TensorView* k_rstd,
                               StreamView stream);

// The caches that k, and with it v, are written to in serving: one row per token.
struct KeyValueCache {
  // (slots, k's heads, head_dim), or pages: (blocks, block_size, k's heads, head_dim), where slot
  // is block * block_size + offset. Of k's dtype and device; any strides, so also pages of heads
  // first, transposed.
  const TensorView& key_cache;
  // (batch, seq) whatever the layout, or (batch * seq,); int32 or int64.
  const ConstTensorView& slot_mapping;
  // k's shape, dtype and device, and a cache of key_cache's; or nullptr, both.
  const ConstTensorView* v = nullptr;
  const TensorView* value_cache = nullptr;
};

// The same with k in a cache in place of k_out, and v copied to its own bit for bit, in the same
// launch. Nothing else of the caches is written; they must not overlap any other array, nor each
// other.
//
// A token whose slot is negative (padding) or beyond the cache appears in q's result alone: its k
// and v are not written. The slots of a call must differ; which of two tokens a shared slot holds
// is unspecified. With validate, a slot beyond the cache throws; negative ones are still padding.
MEMBOUND_API void qk_norm_rope(const ConstTensorView& q, const ConstTensorView& k,
                               const ConstTensorView* q_weight, const ConstTensorView* k_weight,
                               const RopeAngles& angles, const QkNormRopeOptions& options,
                               const TensorView& out, const KeyValueCache& cache,
                               StreamView stream);

}  // namespace membound
