// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/export.hpp"
#include "membound/stream.hpp"
#include "membound/tensor_view.hpp"

namespace membound {

struct EmbeddingBackwardOptions {
  double scale = 1.0;               // the forward's
  std::int64_t vocab_start = 0;     // the forward's
  std::int64_t padding_idx = -1;    // the id whose row gets no gradient; negative: none
  bool scale_grad_by_freq = false;  // divide the sum of an id by the number of its tokens
  bool accumulate = false;          // out += instead of =: rows of ids that do not occur are kept
  bool validate = false;            // check ids on the CPU, and throw if one is out of range
};

// The gradient of embedding's weight: row r is the sum of dy over the tokens of the id
// vocab_start + r, times scale.
//
// dy         (*ids.shape, dim), dim at least 1, any strides; float16, bfloat16, float32 or float64
// ids        int32 or int64, of any shape and strides, fewer than 2^31 - 1
// out        (vocab, dim), vocab at least 1 and at most 2^31 - 2; dy's dtype, or with 16 and 32
//            bits any of those; overlaps nothing
// workspace  on a GPU at least embedding_backward_workspace(dy, vocab) bytes on dy's device,
//            aligned to 16, uint8; nullptr: allocated on the stream. The CPU needs none.
// stream     as in embedding
//
// Sums are float32 (float64) in a tree that depends on the number of an id's tokens alone: blocks
// of 32 in the order of the tokens, dealt round-robin to 16 partial sums, which are added in order.
// So the bits of a row depend on its own tokens alone. Tokens outside of the rows and those of
// padding_idx add nothing.
//
// Throws InvalidArgument, TypeMismatch, OutOfMemory, CudaError.
MEMBOUND_API void embedding_backward(const ConstTensorView& dy, const ConstTensorView& ids,
                                     const EmbeddingBackwardOptions& options, const TensorView& out,
                                     const TensorView* workspace, StreamView stream);

// The sparse form: only the rows that occur, at most as many as there are tokens.
//
// rows_ids   (tokens,) of ids' dtype: the ids that occur, ascending; then the last id of the
//            table, vocab_start + vocab - 1
// rows       (tokens, dim) in a dtype as of out: their gradients, then zeros. So all of it can be
//            added to a table, whatever the count
// count      one int64 without an axis: how many ids occur
//
// The call does not wait for the count. options.accumulate must be false; the rest is as above.
MEMBOUND_API void embedding_backward_sparse(const ConstTensorView& dy, const ConstTensorView& ids,
                                            std::int64_t vocab,
                                            const EmbeddingBackwardOptions& options,
                                            const TensorView& rows_ids, const TensorView& rows,
                                            const TensorView& count, const TensorView* workspace,
                                            StreamView stream);

// Bytes of workspace for a dy of this shape, dtype and device: for each token 16, for each row of
// the table 4, and, with more than 32 tokens, two rows of sums for every 32 tokens.
MEMBOUND_API std::int64_t embedding_backward_workspace(const ConstTensorView& dy,
                                                       std::int64_t vocab);

}  // namespace membound
