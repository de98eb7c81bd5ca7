// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "membound/export.hpp"
#include "membound/stream.hpp"
#include "membound/tensor_view.hpp"

namespace membound {

struct SoftmaxOptions {
  double scale = 1.0;  // of x; finite
  // Row i of the last axis but one keeps columns j <= i + causal_offset. 0: queries and keys start
  // together; keys - queries: they end together.
  std::optional<std::int64_t> causal_offset;
};

// Over the last axis,
//
//   out = exp(l - max(l)) / sum(exp(l - max(l))),  l = scale * x + mask
//
// in float32 (float64 for float64), rounded once.
//
// x       (..., cols) with at least one axis and cols >= 1, two axes with causal_offset; float16,
//         bfloat16, float32 or float64; any strides
// mask    nullptr, or what broadcasts to x's shape: bool, where true keeps x and false makes l
//         -infinity whatever x is; or floating, which is added: float64 with float64, else any of
//         16 and 32 bits
// out     x's shape, dtype and device; may be x itself
// stream  where the work is queued; ignored on the CPU
//
// Columns that causal_offset drops are not read, and are 0. A row whose l are all -infinity is NaN,
// as is one with NaN or +infinity among them. A row of which causal_offset keeps nothing is 0.
//
// An array that is written must not overlap another in part. Zero rows: nothing happens. Throws
// InvalidArgument, TypeMismatch, CudaError.
MEMBOUND_API void softmax(const ConstTensorView& x, const ConstTensorView* mask,
                          const SoftmaxOptions& options, const TensorView& out, StreamView stream);

}  // namespace membound
