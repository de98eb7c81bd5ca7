// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of cross_entropy; rows are split into parts as in softmax.
#include "cuda/softmax/softmax_config.hpp"

namespace membound::cuda::tuning {

// Up to this many blocks, rows are loaded before their labels are known, which saves the latency of
// one load. All blocks are then resident at once, so that loading an ignored row in vain delays
// nothing.
inline constexpr std::int64_t kCrossEntropyEarlyBlocks = 1024;

// Widest 16-bit row, in vectors, that uses kFewVectors per thread: the row still fits in one block.
// Wider bfloat16 rows lose with it (8192 x 32000: 290.8 us, 277.2 us with kManyVectors).
inline constexpr std::int64_t kCrossEntropyFew = 2048;

inline SoftmaxConfig cross_entropy_config(std::int64_t rows, std::int64_t cols, int dtype_size,
                                          int max_cluster) {
  return register_rows_config(rows, cols, dtype_size, max_cluster, kCrossEntropyFew);
}

}  // namespace membound::cuda::tuning
