// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of cross_entropy: that of softmax, whose parts of rows these are.
#include "cuda/tuning/softmax.hpp"

namespace membound::cuda::tuning {

inline SoftmaxConfig cross_entropy_config(std::int64_t rows, std::int64_t cols, int dtype_size,
                                          int max_cluster) {
  return softmax_config(rows, cols, dtype_size, max_cluster);
}

}  // namespace membound::cuda::tuning
