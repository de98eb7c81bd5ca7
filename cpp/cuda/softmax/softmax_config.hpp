// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of softmax: a pure function, unit-tested without a GPU. The split of a row
// into parts and threads, and so its reduction tree, depends on width and dtype alone: results do
// not depend on the GPU, which only decides whether the parts run in a cluster or one after
// another.
#include <algorithm>
#include <cstdint>

namespace membound::cuda::tuning {

inline constexpr int kSoftmaxWarpThreads = 128;  // of a block with several rows
inline constexpr int kSoftmaxThreads = 512;      // of a block, at most
inline constexpr int kSoftmaxGroup = 16;  // parts that are merged at once; the largest cluster

// 16-byte vectors that a thread holds. kFewVectors: 16-bit elements unpack to 32 registers, and
// three blocks fit on an SM. kManyVectors: the fixed work per thread, which takes as long as three
// vectors, is spread over twice as many.
inline constexpr int kFewVectors = 4;
inline constexpr int kManyVectors = 8;

// Widest 16-bit row, in vectors, that uses kFewVectors per thread. Only much wider rows gain from
// kManyVectors (bfloat16 512 x 262144: 149.1 -> 131.7 us).
inline constexpr std::int64_t kSoftmaxFew = 4096;

struct SoftmaxConfig {
  int vectors;         // per thread and part
  int lanes;           // threads per part of a row
  int threads;         // per block
  std::int64_t parts;  // per row
  int blocks_per_row;  // a cluster with one part per block; 1: one block has all parts
  std::int64_t blocks;

  std::int64_t rows_per_block() const { return threads / lanes; }
  bool streamed() const { return parts != blocks_per_row; }
};

// few: the widest 16-bit row, in vectors, that uses kFewVectors per thread.
inline SoftmaxConfig register_rows_config(std::int64_t rows, std::int64_t cols, int dtype_size,
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
  // One block as long as the row fits; then a cluster of blocks of half the size, of which an SM
  // has several, as long as kSoftmaxGroup of them suffice.
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

// rows, cols >= 1; max_cluster: the largest cluster that the GPU supports, 1 if it has none.
inline SoftmaxConfig softmax_config(std::int64_t rows, std::int64_t cols, int dtype_size,
                                    int max_cluster) {
  return register_rows_config(rows, cols, dtype_size, max_cluster, kSoftmaxFew);
}

}  // namespace membound::cuda::tuning
