// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/export.hpp"
#include "membound/stream.hpp"
#include "membound/tensor_view.hpp"

namespace membound {

struct EmbeddingOptions {
  double scale = 1.0;            // multiplies the row of the token; finite
  std::int64_t vocab_start = 0;  // the id of the first row of weight; not negative
  bool validate = false;  // check ids and positions on the CPU, and throw if one is out of range
};

// The row of each token,
//
//   out[..., :] = weight[ids[...] - vocab_start, :] * scale + position_weight[position, :]
//
// ids              int32 or int64, of any shape and strides
// weight           (vocab, dim), vocab and dim at least 1; float16, bfloat16, float32 or float64,
//                  in any strides
// position_weight  (positions, dim) of weight's dtype, or nullptr: nothing is added
// position_ids     of ids' shape, int32 or int64; nullptr: a token's index along the last axis of
//                  ids. With position_weight alone
// out              (*ids.shape, dim); weight's dtype, or with 16 and 32 bits any of those; overlaps
//                  nothing
// stream           where arrays are on a GPU; see rms_norm
//
// With a scale of 1, no positions and one dtype the bytes of a row are copied. Otherwise product
// and sum are each rounded to float32 (float64), the result to its dtype.
//
// A token whose id is outside of [vocab_start, vocab_start + vocab) gets zeros, and no position
// either, so that the results of several ranges of rows add up to that of all rows. A position that
// the table does not have adds nothing. Nothing is read out of bounds. With validate the call
// throws instead, before it writes; the arrays must then be on the CPU.
//
// Throws InvalidArgument, TypeMismatch, CudaError.
MEMBOUND_API void embedding(const ConstTensorView& ids, const ConstTensorView& weight,
                            const ConstTensorView* position_ids,
                            const ConstTensorView* position_weight, const EmbeddingOptions& options,
                            const TensorView& out, StreamView stream);

}  // namespace membound
