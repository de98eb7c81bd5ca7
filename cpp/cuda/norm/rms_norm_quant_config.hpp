// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/norm/rms_norm_config.hpp"

namespace membound::cuda::tuning {

// Launch configuration of rms_norm_quant: a pure function, unit-tested without a GPU. The reduction
// tree of a row is rms_norm's, so that the norm has the same bits before quantisation. Only aligned
// rows gain from two items per thread; with a residual not up to 512 vectors (1024 x 4096 bfloat16
// to float8 on H200: 11.3 -> 10.1 us uncoarsened), and 16-bit rows only where rows are many.
inline RmsNormConfig rms_norm_quant_config(std::int64_t rows, std::int64_t cols, int dtype_size,
                                           bool aligned, bool residual, int max_cluster) {
  const RmsNormConfig config = rms_norm_config(rows, cols, dtype_size, max_cluster);
  if (!aligned) return one_item_per_thread(config);
  if (!is_half_block(config)) return coarsened(config, rows);
  if (residual) return one_item_per_thread(config);
  return one_warp_per_row(
      coarsened(config, rows, dtype_size == 2 ? 4 * kFewVirtualThreads : kFewVirtualThreads), rows,
      ceil_div(cols, kVector / dtype_size), dtype_size, false, false, true);
}

}  // namespace membound::cuda::tuning
