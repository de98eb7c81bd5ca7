// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/token_integers.hpp"
#include "membound/dtype.hpp"
#include "membound/ops/embedding.hpp"

namespace membound {

// A table that tokens take rows from.
struct RowTable {
  const void* data;  // null: none
  std::int64_t rows, row_stride, col_stride;

  MEMBOUND_HOST_DEVICE bool has(std::int64_t row) const { return row >= 0 && row < rows; }
};

// What both back ends receive: checked, no tensors, no user errors.
struct EmbeddingProblem {
  TokenIntegers ids, position_ids;
  RowTable weight, position_weight;
  void* out;
  DType dtype, out_dtype;
  RowLayout out_rows;
  std::int64_t out_col_stride;
  std::int64_t tokens, dim;  // at least 1
  std::int64_t sequence;     // the length of the last axis of ids, if there are no position_ids
  std::int64_t vocab_start;
  double scale;

  bool copies() const {
    return scale == 1.0 && position_weight.data == nullptr && dtype == out_dtype;
  }
  // The row of weight for an id: may be out of range, never overflows.
  MEMBOUND_HOST_DEVICE std::int64_t row_of(std::int64_t id) const {
    return id < vocab_start ? -1 : id - vocab_start;
  }
};

// Checks that embedding and its gradient share. reference: an array on the required device.
void check_token_integers(const ConstTensorView& view, const ConstTensorView& reference,
                          const char* reference_name, const char* op, const char* argument);
// out is float64 exactly if in is; other floating dtypes may mix.
void check_row_dtype(const ConstTensorView& out, const char* argument, const ConstTensorView& in,
                     const char* in_name, const char* op);
void check_row_range(double scale, DType dtype, std::int64_t vocab_start, std::int64_t vocab,
                     const char* op);
void check_can_validate(const ConstTensorView& ids, const char* op);

namespace cpu {
void embedding(const EmbeddingProblem& problem);
}
namespace cuda {
void embedding(const EmbeddingProblem& problem, StreamView stream);
}

}  // namespace membound
