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

// Chunks of 16 bytes that a thread holds: as numbers, 32 registers of each array.
constexpr int softmax_chunks(int dtype_size) { return dtype_size == 2 ? 4 : 8; }

struct SoftmaxConfig {
  int lanes;           // threads of a part of a row
  int threads;         // of a block
  std::int64_t parts;  // of a row
  int blocks_per_row;  // a cluster, each block with one part; 1: one block with all of them
  std::int64_t blocks;

  std::int64_t rows_per_block() const { return threads / lanes; }
  bool streamed() const { return parts != blocks_per_row; }
};

// rows, cols >= 1; max_cluster: the largest cluster that the GPU takes, 1 for none.
inline SoftmaxConfig softmax_config(std::int64_t rows, std::int64_t cols, int dtype_size,
                                    int max_cluster) {
  const auto ceil_div = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  const int each = softmax_chunks(dtype_size);
  const std::int64_t chunks = ceil_div(cols, 16 / dtype_size);
  SoftmaxConfig config{1, kSoftmaxWarpThreads, 1, 1, 0};
  if (chunks <= 32 * each) {
    while (config.lanes * each < chunks) config.lanes *= 2;
    config.blocks = ceil_div(rows, config.rows_per_block());
    return config;
  }
  // One block as long as it can; then blocks half as large, of which an SM has several, as long as
  // a cluster can be of so many.
  std::int64_t most = kSoftmaxThreads;
  if (chunks > most * each) {
    if (chunks <= kSoftmaxGroup * most / 2 * each) most /= 2;
    while (config.parts * most * each < chunks && config.parts < kSoftmaxGroup) config.parts *= 2;
    config.parts = std::max(config.parts, ceil_div(chunks, most * each));
  }
  config.threads = static_cast<int>(ceil_div(ceil_div(chunks, config.parts), 32 * each)) * 32;
  config.lanes = config.threads;
  if (config.parts <= max_cluster) config.blocks_per_row = static_cast<int>(config.parts);
  config.blocks = rows * config.blocks_per_row;
  return config;
}

}  // namespace membound::cuda::tuning
