// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace membound::cuda::tuning {

inline constexpr int kTile = 32;  // words along each side

// Elements of a word. Everything is a multiple of `fitting` elements, a power of two. Words have 8
// bytes, but 4 where tiles of 8 would be half empty, or of bytes, whose tiles are rarely full.
constexpr std::int64_t transpose_pack(std::int64_t item_bytes, std::int64_t fitting,
                                      std::int64_t rows, std::int64_t cols) {
  const std::int64_t wide = std::min(fitting, 8 / item_bytes);
  if (item_bytes == 1) return wide >= 4 ? 4 : 1;
  const bool is_narrow = std::min(rows, cols) <= kTile * wide / 2;
  return wide > 1 && wide * item_bytes == 8 && is_narrow ? wide / 2 : wide;
}

}  // namespace membound::cuda::tuning
