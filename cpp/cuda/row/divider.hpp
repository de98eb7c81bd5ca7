// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/row/split.hpp"

namespace membound::cuda {

// Division of numbers below 2^31 by one extent: GPUs have no divider, and 64 bits take them a
// hundred instructions.
struct RowDivider {
  RowSplit split;
  std::int64_t extent = 1;

  MEMBOUND_HOST_DEVICE std::int64_t quotient(std::int64_t number) const {
    return extent == 1 ? number : split.outer(number);
  }
};

inline RowDivider divider(std::int64_t extent) {
  const bool divides = extent > 1 && extent <= kMaxSplitRows;  // quotients by more are 0
  return {divides ? split_rows(extent) : RowSplit{}, extent};
}

}  // namespace membound::cuda
