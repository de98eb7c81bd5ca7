// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace membound::cuda::tuning {

// Rows of partial sums of dweight: from rows, cols and the bytes of an element alone, so that the
// tree of the sum is the same on every GPU.
inline std::int64_t rms_norm_backward_partials(std::int64_t rows, std::int64_t, int) {
  return rows < 128 ? rows : 128;
}

}  // namespace membound::cuda::tuning
