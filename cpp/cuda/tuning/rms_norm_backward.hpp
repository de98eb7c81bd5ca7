// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of rms_norm_backward: a pure function, unit-tested without a GPU. All that
// fixes the tree of dweight (the form, partial_rows, threads) comes from rows, cols and dtype.
#include <algorithm>
#include <cstdint>

#include "cuda/tuning/rms_norm.hpp"

namespace membound::cuda::tuning {

enum class GradientForm {
  kRoles,       // blocks of columns beside blocks of rows; no partial sums
  kPersistent,  // dx and dweight from one read, partial sums added up by a second kernel
};

struct RmsNormBackwardConfig {
  GradientForm form;
  int threads;         // per block
  int lanes;           // per row, or per block's part of it
  int vecs;            // 16-byte chunks of a thread
  int blocks_per_row;  // the cluster
  int partial_rows;    // kPersistent: blocks or clusters
  RmsNormConfig rows;  // kRoles, and dx alone: the blocks of rows
  std::int64_t column_blocks;

  bool operator==(const RmsNormBackwardConfig&) const = default;
};

inline constexpr int kColumnSegment = 4;  // chunks: 64 bytes of each row
inline constexpr int kPersistentBlock = 512;
inline constexpr int kSmallBlock = 384;  // three to a multiprocessor instead of two
inline constexpr int kSmallPairs = 320;  // with two chunks per thread: two instead of one

// One launch of two roles where the rows are few: what it saves is the second launch, what it costs
// the second read and long sums (research: cross-over near 4 M elements).
inline constexpr std::int64_t kRolesElements = 4 << 20;
inline constexpr std::int64_t kRolesRows = 1024;

// Widths beyond 16 blocks of 512 threads with two chunks have no persistent form.
inline bool gradient_in_roles(std::int64_t rows, std::int64_t cols, int dtype_size) {
  const std::int64_t chunks = ceil_div(cols, kChunk / dtype_size);
  if (chunks > kMaxGroups * 2 * kPersistentBlock) return true;
  return rows <= kRolesRows && rows * cols <= kRolesElements;
}

inline RmsNormBackwardConfig persistent_config(std::int64_t rows, std::int64_t chunks) {
  RmsNormBackwardConfig config{};
  config.form = GradientForm::kPersistent;
  config.blocks_per_row = 1;
  config.vecs = chunks <= kPersistentBlock ? 1 : 2;
  const std::int64_t threads_of_row = ceil_div(chunks, config.vecs);
  while (config.blocks_per_row * kPersistentBlock < threads_of_row) config.blocks_per_row *= 2;
  config.lanes = 1;
  if (chunks <= 32) {
    while (config.lanes < chunks) config.lanes *= 2;
  } else {
    config.lanes = static_cast<int>(ceil_div(threads_of_row, 32 * config.blocks_per_row) * 32);
  }
  const int groups = std::max(1, kPersistentBlock / config.lanes);
  config.threads = groups * config.lanes;
  // As many blocks as 128 multiprocessors hold, with the registers that vecs takes. Clusters find
  // fewer places: 30 of 4 and 14 of 8 blocks fit a H200.
  const int per_sm = config.vecs == 1 ? (config.threads <= kSmallBlock ? 3 : 2)
                     : config.blocks_per_row == 1 && config.threads <= kSmallPairs ? 2
                                                                                   : 1;
  static constexpr int kClusters[] = {128, 64, 28, 14, 7};
  int partial_rows = 128 * per_sm;
  for (int i = 1; (1 << i) <= config.blocks_per_row; ++i) partial_rows = kClusters[i];
  while (partial_rows > 1 && static_cast<std::int64_t>(partial_rows) * groups * 2 > rows) {
    partial_rows = (partial_rows + 1) / 2;
  }
  config.partial_rows = partial_rows;
  return config;
}

// Blocks of rows: four chunks per thread and blocks of 256 threads for all rows of several blocks.
inline RmsNormConfig gradient_rows_config(std::int64_t rows, std::int64_t cols, int dtype_size,
                                          int max_cluster) {
  const std::int64_t chunks = ceil_div(cols, kChunk / dtype_size);
  if (chunks <= kMaxGroups * block_chunks(4, 8)) {
    RmsNormConfig config = unfolded(rms_norm_config(rows, cols, dtype_size, max_cluster));
    config.overlap_launch = true;
    return config;
  }
  RmsNormConfig config{};
  config.form = RowForm::kStreamed;
  config.vecs = 4;
  config.fold = 1;
  config.max_warps = 8;
  config.groups = kStreamedGroups;
  config.segments_per_group =
      static_cast<int>(ceil_div(chunks, config.groups * block_chunks(4, 8)));
  config.threads =
      virtual_threads(ceil_div(chunks, config.groups * config.segments_per_group), 4, 1);
  config.lanes = config.threads;
  config.blocks_per_row = std::min(config.groups, max_cluster);
  config.overlap_launch = true;
  return config;
}

// rows, cols >= 1; dtype_size: bytes of an element of x; max_cluster: the largest cluster that the
// GPU takes, 1 for none.
inline RmsNormBackwardConfig rms_norm_backward_config(std::int64_t rows, std::int64_t cols,
                                                      int dtype_size, bool dweight,
                                                      int max_cluster) {
  const std::int64_t chunks = ceil_div(cols, kChunk / dtype_size);
  if (dweight && !gradient_in_roles(rows, cols, dtype_size)) {
    const RmsNormBackwardConfig config = persistent_config(rows, chunks);
    if (config.blocks_per_row <= max_cluster) return config;
  }
  RmsNormBackwardConfig config{};
  config.form = GradientForm::kRoles;
  config.rows = gradient_rows_config(rows, cols, dtype_size, max_cluster);
  config.threads = config.rows.threads;
  config.lanes = config.rows.lanes;
  config.blocks_per_row = config.rows.blocks_per_row;
  if (dweight) {
    config.column_blocks =
        ceil_div(ceil_div(chunks, kColumnSegment), config.blocks_per_row) * config.blocks_per_row;
  }
  return config;
}

// Rows of partial sums of dweight: what the workspace has to hold.
inline std::int64_t rms_norm_backward_partials(std::int64_t rows, std::int64_t cols,
                                               int dtype_size) {
  if (gradient_in_roles(rows, cols, dtype_size)) return 0;
  return persistent_config(rows, ceil_div(cols, kChunk / dtype_size)).partial_rows;
}

}  // namespace membound::cuda::tuning
