// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Parameters of shape (heads, cols): row r uses those of head r % heads.
#include <cstdint>

#include "cuda/row/split.hpp"

namespace membound::cuda {

struct Heads {
  std::int64_t count = 1;
  RowSplit split;  // of rows by heads; empty if there are too many rows

  __device__ std::int64_t of(std::int64_t row) const {
    if (count == 1) return 0;
    if (split.extent == 0) return row % count;
    return row - split.outer(row) * split.extent;
  }
};

inline Heads split_heads(std::int64_t heads, std::int64_t rows) {
  if (heads == 1) return {};
  return {heads, rows < kMaxSplitRows ? split_rows(heads) : RowSplit{}};
}

}  // namespace membound::cuda
