// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of cross_entropy: parts of rows as in softmax.
#include "cuda/softmax/softmax_config.hpp"

namespace membound::cuda::tuning {

// Up to so many blocks, all of which a GPU has at once, rows are read before their labels are
// known: the latency of one load less, and nothing else waits for what is read in vain.
inline constexpr std::int64_t kCrossEntropyEarlyBlocks = 1024;

// The widest row, in vectors, of which a thread holds few where elements are of 16 bits: what one
// block then holds. H200, bfloat16 with a gradient, us with few and many: 16384 x 4096 78.2 and
// 81.5, 8192 x 16384 143.9 and 145.7, 8192 x 32000 290.8 and 277.2, 2048 x 131072 316 and 287.
inline constexpr std::int64_t kCrossEntropyFew = 2048;

inline SoftmaxConfig cross_entropy_config(std::int64_t rows, std::int64_t cols, int dtype_size,
                                          int max_cluster) {
  return held_rows_config(rows, cols, dtype_size, max_cluster, kCrossEntropyFew);
}

}  // namespace membound::cuda::tuning
