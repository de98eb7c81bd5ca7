// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of cross_entropy: that of softmax, whose parts of rows these are.
#include "cuda/tuning/softmax.hpp"

namespace membound::cuda::tuning {

// Up to so many blocks, all of which a GPU has at once, rows are read before their labels are
// known: the latency of one load less, and nothing else waits for what is read in vain.
inline constexpr std::int64_t kCrossEntropyEarlyBlocks = 1024;

inline SoftmaxConfig cross_entropy_config(std::int64_t rows, std::int64_t cols, int dtype_size,
                                          int max_cluster) {
  return softmax_config(rows, cols, dtype_size, max_cluster);
}

}  // namespace membound::cuda::tuning
