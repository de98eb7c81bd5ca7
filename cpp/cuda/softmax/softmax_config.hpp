// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of softmax: a pure function, unit-tested without a GPU. Parts and threads of
// a row, and with them the tree of its sum, come from width and dtype alone; what the GPU can do
// only says where the parts are worked on.
#include <algorithm>
#include <cstdint>

namespace membound::cuda::tuning {

inline constexpr int kSoftmaxWarpThreads = 128;  // of a block of several rows
inline constexpr int kSoftmaxThreads = 512;      // of a block, at most
inline constexpr int kSoftmaxGroup = 16;  // parts that are merged at once; the largest cluster

// Chunks of 16 bytes that a thread holds. Few: as numbers of 16 bits 32 registers, and three blocks
// on a multiprocessor. Many: what a thread does once, as long as three vectors take, for twice as
// much.
inline constexpr int kFewVectors = 4;
inline constexpr int kManyVectors = 8;

// The widest row, in vectors, of which a thread holds few where elements are of 16 bits. H200,
// bfloat16, us with few and many: 8192 x 16384 132.3 and 132.1, 4096 x 32768 130.2 and 132.5,
// 2048 x 65536 132.4 and 131.1, 512 x 262144 149.1 and 131.7.
inline constexpr std::int64_t kSoftmaxFew = 4096;

struct SoftmaxConfig {
  int vectors;         // that a thread holds of a part
  int lanes;           // threads of a part of a row
  int threads;         // of a block
  std::int64_t parts;  // of a row
  int blocks_per_row;  // a cluster, each block with one part; 1: one block with all of them
  std::int64_t blocks;

  std::int64_t rows_per_block() const { return threads / lanes; }
  bool streamed() const { return parts != blocks_per_row; }
};

// few: the widest row of 16 bits, in vectors, of which a thread holds few.
inline SoftmaxConfig held_rows_config(std::int64_t rows, std::int64_t cols, int dtype_size,
                                      int max_cluster, std::int64_t few) {
  const auto ceil_div = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  const std::int64_t vectors = ceil_div(cols, 16 / dtype_size);
  const int each = dtype_size == 2 && vectors <= few ? kFewVectors : kManyVectors;
  SoftmaxConfig config{each, 1, kSoftmaxWarpThreads, 1, 1, 0};
  if (vectors <= 32 * each) {
    while (config.lanes * each < vectors) config.lanes *= 2;
    config.blocks = ceil_div(rows, config.rows_per_block());
    return config;
  }
  // One block as long as it can; then blocks half as large, of which an SM has several, as long as
  // a cluster can be of so many.
  std::int64_t most = kSoftmaxThreads;
  if (vectors > most * each) {
    if (vectors <= kSoftmaxGroup * most / 2 * each) most /= 2;
    while (config.parts * most * each < vectors && config.parts < kSoftmaxGroup) config.parts *= 2;
    config.parts = std::max(config.parts, ceil_div(vectors, most * each));
  }
  config.threads = static_cast<int>(ceil_div(ceil_div(vectors, config.parts), 32 * each)) * 32;
  config.lanes = config.threads;
  if (config.parts <= max_cluster) config.blocks_per_row = static_cast<int>(config.parts);
  config.blocks = rows * config.blocks_per_row;
  return config;
}

// rows, cols >= 1; max_cluster: the largest cluster that the GPU takes, 1 for none.
inline SoftmaxConfig softmax_config(std::int64_t rows, std::int64_t cols, int dtype_size,
                                    int max_cluster) {
  return held_rows_config(rows, cols, dtype_size, max_cluster, kSoftmaxFew);
}

}  // namespace membound::cuda::tuning
