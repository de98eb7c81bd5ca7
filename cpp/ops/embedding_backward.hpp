// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/ops/embedding_backward.hpp"
#include "ops/embedding.hpp"

namespace membound {

// What both back ends receive: checked, no tensors, no user errors.
struct EmbeddingBackwardProblem {
  TokenIntegers ids;
  const void* dy;
  void* rows;                // the table's gradient; sparse: the rows that occur
  void* rows_ids;            // sparse only
  std::int64_t* rows_count;  // null: dense
  void* workspace;           // CUDA only
  DType dtype, out_dtype;
  bool wide_rows_ids, by_frequency, accumulate;
  RowLayout dy_rows;
  std::int64_t dy_col_stride, row_stride, col_stride, rows_ids_stride;
  std::int64_t tokens;  // may be 0
  std::int64_t dim, vocab, vocab_start, padding_idx;
  double scale;

  MEMBOUND_HOST_DEVICE bool sparse() const { return rows_count != nullptr; }
  // The row of an id; vocab if it has none.
  MEMBOUND_HOST_DEVICE std::uint32_t row_of(std::int64_t id) const {
    const bool outside = id < vocab_start || id - vocab_start >= vocab || id == padding_idx;
    return static_cast<std::uint32_t>(outside ? vocab : id - vocab_start);
  }
  // Writes a row's id to entry `output_row` of rows_ids.
  MEMBOUND_HOST_DEVICE void write_id(std::int64_t output_row, std::int64_t row) const {
    const std::int64_t id = vocab_start + row, at = output_row * rows_ids_stride;
    if (wide_rows_ids) {
      static_cast<std::int64_t*>(rows_ids)[at] = id;
    } else {
      static_cast<std::int32_t*>(rows_ids)[at] = static_cast<std::int32_t>(id);
    }
  }
};

namespace cpu {
void embedding_backward(const EmbeddingBackwardProblem& problem);
}
namespace cuda {
void embedding_backward(const EmbeddingBackwardProblem& problem, StreamView stream);
}

}  // namespace membound
