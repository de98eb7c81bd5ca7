// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of rms_norm_quant: a pure function, unit-tested without a GPU.
#include <cstdint>

#include "cuda/tuning/rms_norm.hpp"

namespace membound::cuda::tuning {

// The tree of a row is rms_norm's, for the bits of its result. Only rows that are aligned are worth
// two virtual threads a thread.
inline RmsNormConfig rms_norm_quant_config(std::int64_t rows, std::int64_t cols, int dtype_size,
                                           bool aligned, int max_cluster) {
  const RmsNormConfig config = rms_norm_config(rows, cols, dtype_size, max_cluster);
  return aligned ? folded(config, rows) : unfolded(config);
}

}  // namespace membound::cuda::tuning
