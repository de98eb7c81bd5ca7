// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of embedding_backward: pure functions, unit-tested without a GPU.
#include <algorithm>
#include <cstdint>

#include "core/gradient_tree.hpp"
#include "cuda/activation/gated_activation_config.hpp"

namespace membound::cuda::tuning {

// Tokens are sorted by row, digit by digit, the lowest first. A block ranks so many tokens at once.
inline constexpr int kSortThreads = 1024;
inline constexpr int kSortItems = 8;  // of a thread
inline constexpr std::int64_t kSortTurn = kSortThreads * kSortItems;
// Two digits name every row of a table of 2^18; their counts for 32 warps take 32 KB.
inline constexpr int kDigitBits = 9;
inline constexpr int kDigits = 1 << kDigitBits;
// Each block adds up the counts of all.
inline constexpr std::int64_t kMostTiles = 128;

struct SortConfig {
  int passes, digit_bits;
  int tiles;  // blocks; 1: one launch for each digit in the place of two
  std::int64_t tile_tokens;
};

inline SortConfig sort_config(std::int64_t tokens, std::int64_t vocab) {
  int bits = 1;  // of the number vocab, which stands for no row
  while (vocab >> bits) ++bits;
  SortConfig config{};
  config.passes = (bits + kDigitBits - 1) / kDigitBits;
  config.digit_bits = (bits + config.passes - 1) / config.passes;
  const std::int64_t turns = std::max<std::int64_t>(1, (tokens + kSortTurn - 1) / kSortTurn);
  const std::int64_t turns_of_tile = (turns + kMostTiles - 1) / kMostTiles;
  config.tile_tokens = turns_of_tile * kSortTurn;
  config.tiles = static_cast<int>((turns + turns_of_tile - 1) / turns_of_tile);
  return config;
}

// Rows of zeros that other blocks write while few sort, a part beside each digit, or while pieces
// are summed: memory has time for them. Estimates: a block sorts 1 token in a nanosecond, in which
// 4 KB are written, and more blocks take no longer; pieces are at most all of dy, which takes as
// long to read as its bytes to write. Rows that occur are written twice, so more would not pay.
inline constexpr std::int64_t kZeroBytesPerToken = 4096;
inline constexpr int kZeroBlocks = 128;

struct ZeroRows {
  std::int64_t beside_sort, beside_pieces;  // those first, then these
};
inline ZeroRows zero_rows(std::int64_t tokens, std::int64_t vocab, std::int64_t row_bytes,
                          std::int64_t dy_bytes) {
  const std::int64_t sort_bytes = std::min(tokens, kSortTurn) * kZeroBytesPerToken;
  const std::int64_t beside_sort = std::min(vocab, sort_bytes / row_bytes);
  const std::int64_t piece_bytes = tokens > kGradientPiece ? dy_bytes : 0;
  return {beside_sort, std::min(vocab - beside_sort, piece_bytes / row_bytes)};
}

// Where things lie in the workspace, in bytes. Offsets are multiples of 16.
struct GradientWorkspace {
  std::int64_t rows[2], tokens[2];  // sorted, and between two passes: one uint32 a token each
  std::int64_t first;               // vocab + 1 uint32: where the tokens of a row start
  std::int64_t counts;              // tiles x kDigits uint32
  std::int64_t sums;                // of pieces: two for each kGradientPiece tokens
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
  const std::int64_t windows = (tokens + kGradientPiece - 1) / kGradientPiece;
  layout.sums = take(tokens > kGradientPiece ? 2 * windows * layout.sum_stride * number_bytes : 0);
  return layout;
}

// Of a row that a thread adds up at once: vectors of 16 bytes, or elements.
inline constexpr int kGradientVectors = 2;
inline constexpr int kGradientElements = 2;
// Blocks of a multiprocessor at once, for which a thread has 64 registers.
inline constexpr int kGradientBlocks = 4;
// Rows that a block writes one after the other: it finds the next while it adds up one. Not where
// that would leave multiprocessors idle: a large GPU has 132 to 160.
inline constexpr int kRowsInTurn = 4;
inline constexpr std::int64_t kManyBlocks = 2048;
inline int rows_in_turn(std::int64_t rows, std::int64_t units, int per_thread) {
  const bool many = tile_config(rows, units, per_thread, kGateThreads).blocks >= kManyBlocks;
  return many ? kRowsInTurn : 1;
}

}  // namespace membound::cuda::tuning
