// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of softmax_backward: that of the forward.
#include "cuda/tuning/softmax.hpp"

namespace membound::cuda::tuning {

inline SoftmaxConfig softmax_backward_config(std::int64_t rows, std::int64_t cols, int dtype_size,
                                             int max_cluster) {
  return softmax_config(rows, cols, dtype_size, max_cluster);
}

}  // namespace membound::cuda::tuning
