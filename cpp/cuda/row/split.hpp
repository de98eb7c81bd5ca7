// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Division of row indices by the extent of an axis, as a multiplication.
#include <cstdint>

#include "core/layout.hpp"

namespace membound::cuda {

// How the rows of every array of a call are counted: as one axis, or as two, the inner of which has
// `extent` rows. Row indices are below 2^31 then, and the division is a multiplication (Granlund
// and Montgomery 1994).
struct RowSplit {
  std::uint32_t extent = 0;  // 0: one axis
  std::uint32_t magic = 0;
  int shift = 0;

  MEMBOUND_HOST_DEVICE std::int64_t outer(std::int64_t row) const {
    const auto low = static_cast<std::uint32_t>(row);
#if defined(__CUDA_ARCH__)
    return __umulhi(low, magic) >> shift;
#else
    return static_cast<std::uint32_t>(std::uint64_t{low} * magic >> 32) >> shift;
#endif
  }
};

inline constexpr std::int64_t kMaxSplitRows = std::int64_t{1} << 31;

// extent: 2 to kMaxSplitRows.
inline RowSplit split_rows(std::int64_t extent) {
  int bits = 1;
  while ((std::int64_t{1} << bits) < extent) ++bits;
  const std::uint64_t power = std::uint64_t{1} << (31 + bits);
  const auto divisor = static_cast<std::uint64_t>(extent);
  return {static_cast<std::uint32_t>(divisor),
          static_cast<std::uint32_t>((power + divisor - 1) / divisor), bits - 1};
}

}  // namespace membound::cuda
