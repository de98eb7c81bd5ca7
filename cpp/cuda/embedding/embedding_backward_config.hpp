// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of embedding_backward: pure functions, unit-tested without a GPU.
#include <algorithm>
#include <cstdint>

#include "core/gradient_tree.hpp"
#include "cuda/activation/gated_activation_config.hpp"

namespace membound::cuda::tuning {

// Tokens are radix-sorted by row, lowest digit first. A block ranks kSortRound tokens at once.
inline constexpr int kSortThreads = 1024;
inline constexpr int kSortItems = 8;  // per thread
inline constexpr std::int64_t kSortRound = kSortThreads * kSortItems;
// Two digits cover the rows of a table of 2^18. The counters of one digit for 32 warps take 32 KB.
inline constexpr int kDigitBits = 9;
inline constexpr int kDigits = 1 << kDigitBits;
// Bounded, because each block adds up the counts of all tiles.
inline constexpr std::int64_t kMaxTiles = 128;

struct SortConfig {
  int passes, digit_bits;
  int tiles;  // blocks; 1: one launch per digit instead of two
  std::int64_t tile_tokens;
};

inline SortConfig sort_config(std::int64_t tokens, std::int64_t vocab) {
  int bits = 1;  // of the value vocab, which marks a token without a row
  while (vocab >> bits) ++bits;
  SortConfig config{};
  config.passes = (bits + kDigitBits - 1) / kDigitBits;
  config.digit_bits = (bits + config.passes - 1) / config.passes;
  const std::int64_t rounds = std::max<std::int64_t>(1, (tokens + kSortRound - 1) / kSortRound);
  const std::int64_t rounds_per_tile = (rounds + kMaxTiles - 1) / kMaxTiles;
  config.tile_tokens = rounds_per_tile * kSortRound;
  config.tiles = static_cast<int>((rounds + rounds_per_tile - 1) / rounds_per_tile);
  return config;
}

// Rows that extra blocks zero while the sort, or the sum of pieces, leaves memory bandwidth idle.
// The sizes are estimates: a block sorts one token per nanosecond, in which 4 KB are written, and
// more blocks take no longer; pieces are at most all of dy, whose bytes take as long to read as to
// write. Zeroing more would not pay, because rows that occur are written twice.
inline constexpr std::int64_t kZeroBytesPerToken = 4096;
inline constexpr int kZeroBlocks = 128;

struct ZeroRows {
  std::int64_t during_sort, during_pieces;  // rows [0, during_sort), then the next ones
};
inline ZeroRows zero_rows(std::int64_t tokens, std::int64_t vocab, std::int64_t row_bytes,
                          std::int64_t dy_bytes) {
  const std::int64_t sort_bytes = std::min(tokens, kSortRound) * kZeroBytesPerToken;
  const std::int64_t during_sort = std::min(vocab, sort_bytes / row_bytes);
  const std::int64_t piece_bytes = tokens > kGradientBlock ? dy_bytes : 0;
  return {during_sort, std::min(vocab - during_sort, piece_bytes / row_bytes)};
}

// Offsets in the workspace, in bytes, all multiples of 16.
struct GradientWorkspace {
  std::int64_t rows[2], tokens[2];  // sorted, and ping-pong buffers: one uint32 per token each
  std::int64_t first;               // vocab + 1 uint32: start of each row's tokens
  std::int64_t counts;              // tiles x kDigits uint32
  std::int64_t sums;                // of pieces: two per kGradientPiece tokens
  std::int64_t sum_stride;          // in numbers
  std::int64_t bytes;
};

inline GradientWorkspace gradient_workspace(std::int64_t tokens, std::int64_t dim,
                                            std::int64_t vocab, int number_bytes) {
  GradientWorkspace layout{};
  const auto take = [&](std::int64_t bytes) {
    const std::int64_t at = layout.bytes;
    layout.bytes += (bytes + 15) / 16 * 16;
    return at;
  };
  const int pack = 16 / number_bytes;
  layout.sum_stride = (dim + pack - 1) / pack * pack;
  if (tokens == 0) return layout;
  for (std::int64_t* array :
       {&layout.rows[0], &layout.rows[1], &layout.tokens[0], &layout.tokens[1]}) {
    *array = take(tokens * 4);
  }
  layout.first = take((vocab + 1) * 4);
  const int tiles = sort_config(tokens, vocab).tiles;
  layout.counts = take(tiles > 1 ? std::int64_t{tiles} * kDigits * 4 : 0);
  const std::int64_t windows = (tokens + kGradientBlock - 1) / kGradientBlock;
  layout.sums = take(tokens > kGradientBlock ? 2 * windows * layout.sum_stride * number_bytes : 0);
  return layout;
}

// 16-byte vectors or elements of a row that a thread adds up at once.
inline constexpr int kGradientVectors = 2;
inline constexpr int kGradientElements = 2;
// Blocks per SM, which gives a thread 64 registers.
inline constexpr int kGradientBlocks = 4;
// Rows that a block writes sequentially, so that it looks up the next row while it sums one. Not if
// that would leave SMs idle: a large GPU has 132 to 160.
inline constexpr int kSequentialRows = 4;
inline constexpr std::int64_t kManyBlocks = 2048;
inline int sequential_rows(std::int64_t rows, std::int64_t units, int per_thread) {
  const bool many = tile_config(rows, units, per_thread, kGateThreads).blocks >= kManyBlocks;
  return many ? kSequentialRows : 1;
}

}  // namespace membound::cuda::tuning
