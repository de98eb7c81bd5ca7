// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/host_device.hpp"

namespace membound::cuda::tuning {

inline constexpr int kStencilThreads = 256;
inline constexpr int kStencilRows = 8;   // results of a thread, one below the other
inline constexpr int kStencilGroup = 8;  // weights between two loads of a thread's window
inline constexpr int kStencilTile = kStencilThreads * kStencilRows;  // results of a block
inline constexpr int kStencilShared = 2 * kStencilTile;              // elements that it reads

// A block computes `lines` lines of `rows` results along the axis for `width` neighbours across it,
// all powers of two, from as many elements and those of `taps` weights beyond them.
struct StencilConfig {
  int width_bits, row_bits, line_bits;
  int taps;  // of a pass

  MEMBOUND_HOST_DEVICE constexpr int width() const { return 1 << width_bits; }
  MEMBOUND_HOST_DEVICE constexpr int rows() const { return 1 << row_bits; }
  MEMBOUND_HOST_DEVICE constexpr int lines() const { return 1 << line_bits; }
};

constexpr int bits_for(std::int64_t extent, int least, int most) {
  int bits = least;
  while (bits < most && (std::int64_t{1} << bits) < extent) ++bits;
  return bits;
}

constexpr StencilConfig stencil_config(std::int64_t result_length, std::int64_t inner) {
  constexpr int kTileBits = 11, kWarpBits = 5, kRowBits = 3;
  StencilConfig config = {};
  config.width_bits = bits_for(inner, 0, kWarpBits);
  config.row_bits = bits_for(result_length, kRowBits, kTileBits - config.width_bits);
  config.line_bits = kTileBits - config.width_bits - config.row_bits;
  // The shared elements are two tiles: as many rows more as there are results.
  config.taps = config.rows();
  return config;
}

// Tiles that a block adds up for the gradient of weights: at most so many totals of each weight.
constexpr std::int64_t stencil_tiles_of_block(std::int64_t tiles) {
  constexpr std::int64_t kTotals = 1024;
  return (tiles + kTotals - 1) / kTotals;
}

}  // namespace membound::cuda::tuning
