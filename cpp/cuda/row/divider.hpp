// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Integer division by an extent that is known at launch.
#include "cuda/row/split.hpp"

namespace membound::cuda {

// Divides numbers below 2^31 by one extent with a multiplication. GPUs have no integer divider, and
// a 64-bit division takes them a hundred instructions.
struct RowDivider {
  RowSplit split;
  std::int64_t extent = 1;

  MEMBOUND_HOST_DEVICE std::int64_t quotient(std::int64_t number) const {
    return extent == 1 ? number : split.outer(number);
  }
};

inline RowDivider divider(std::int64_t extent) {
  const bool divides = extent > 1 && extent <= kMaxSplitRows;  // larger extents have quotients of 0
  return {divides ? split_rows(extent) : RowSplit{}, extent};
}

}  // namespace membound::cuda
