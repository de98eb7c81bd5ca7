// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of softmax_backward: parts as in the forward kernel, but always with
// kFewVectors for 16-bit elements, because threads hold two arrays.
#include <limits>

#include "cuda/softmax/softmax_config.hpp"

namespace membound::cuda::tuning {

inline SoftmaxConfig softmax_backward_config(std::int64_t rows, std::int64_t cols, int dtype_size,
                                             int max_cluster) {
  return register_rows_config(rows, cols, dtype_size, max_cluster,
                              std::numeric_limits<std::int64_t>::max());
}

}  // namespace membound::cuda::tuning
