// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of rms_norm_quant: a pure function, unit-tested without a GPU.
#include <cstdint>

#include "cuda/norm/rms_norm_config.hpp"

namespace membound::cuda::tuning {

// The tree of a row is rms_norm's, for the bits of its result. Only rows that are aligned are worth
// two virtual threads a thread; up to 512 vectors not with a residual (H200, bfloat16 to float8
// with scales of rows, us, coarsened and not: 1024 x 4096 11.3 and 10.1, 8192 x 2048 31.7 and 30.0,
// but 8192 x 8192 111 and 122), nor of 16 bits where rows are few (without a residual 1024 x
// 3072 6.0 and 5.0, 2048 x 4096 10.7 and 10.0, but 4096 x 4096 16.8 and 17.7).
inline RmsNormConfig rms_norm_quant_config(std::int64_t rows, std::int64_t cols, int dtype_size,
                                           bool aligned, bool residual, int max_cluster) {
  const RmsNormConfig config = rms_norm_config(rows, cols, dtype_size, max_cluster);
  if (!aligned) return one_item_per_thread(config);
  if (config.form != RowForm::kBlock || config.max_warps != 8) return coarsened(config, rows);
  if (residual) return one_item_per_thread(config);
  return by_warps(
      coarsened(config, rows, dtype_size == 2 ? 4 * kFewVirtualThreads : kFewVirtualThreads), rows,
      ceil_div(cols, kVector / dtype_size), dtype_size, false, false, true);
}

}  // namespace membound::cuda::tuning
