// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of the bulk pipeline for unaligned rows (bulk_pipeline.cuh): pure functions,
// unit-tested without a GPU. The reduction trees are those of the other kernels.
#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "cuda/norm/rms_norm_backward_config.hpp"

namespace membound::cuda::tuning {

// Pipeline stages of a gradient: three where shared memory has room. With three arrays of four
// vectors per thread there is room for three up to kThreeStageThreads threads (H200, bfloat16 8192
// x 8193: 172 us with three stages, 234 with two).
inline constexpr int kThreeStageThreads = 352;
constexpr int gradient_stages(int vectors_per_item, int arrays, int threads) {
  return vectors_per_item == 4 && arrays == 3 && threads > kThreeStageThreads ? 2 : 3;
}

// Bytes of shared memory for `groups` rows at a time, each of `arrays` arrays and `lanes` threads:
// two vectors of masks, and for each group `columns` arrays of affine parameters, the stages (per
// stage one vector, and per array three vectors of padding) and the fetch state (a cursor per
// array, two numbers, the rounds).
constexpr int bulk_bytes(int groups, int stages, int arrays, int columns, int vectors_per_item,
                         int lanes) {
  const int vectors = vectors_per_item * lanes;
  return kVector *
         (2 + groups * (columns * vectors + stages * (1 + arrays * (vectors + 3)) + arrays + 3));
}
constexpr int bulk_bytes(const RmsNormBackwardConfig& config, int arrays) {
  const int stages = gradient_stages(config.vectors_per_item, arrays, config.threads);
  return bulk_bytes(config.threads / config.lanes, stages, arrays, 1, config.vectors_per_item,
                    config.lanes);
}

// Whether rows that are `step` apart have the same offset from a 16-byte boundary. row_strides: of
// all arrays, in elements.
inline bool same_shift(std::int64_t step, int dtype_size,
                       std::initializer_list<std::int64_t> row_strides) {
  return std::all_of(row_strides.begin(), row_strides.end(), [&](std::int64_t stride) {
    return step * stride * dtype_size % kVector == 0;
  });
}

// Whether rows of unit stride use the bulk pipeline of the gradient. They must be many and wider
// than a warp, in one block each or in several of two vectors per thread, and the row's last vector
// must be in the last vector slot of a thread. Rows within a warp would diverge where their shifts
// differ (H200, bfloat16 524288 x 127: 209 us without, 270 with the pipeline).
inline bool fits_bulk_kernel(const RmsNormBackwardConfig& config, std::int64_t vectors,
                             int dtype_size, std::initializer_list<std::int64_t> row_strides) {
  const std::int64_t step = std::int64_t{config.partial_rows} * (config.threads / config.lanes);
  const std::int64_t places = std::int64_t{config.vectors_per_item} * config.blocks_per_row;
  const bool fits = (config.blocks_per_row == 1 || config.vectors_per_item == 2) &&
                    vectors > config.lanes * (places - 1);
  return config.form == GradientForm::kPersistent && fits && dtype_size <= 4 && config.lanes > 32 &&
         same_shift(step, dtype_size, row_strides);
}

// The same for the forward norm.
struct BulkConfig {
  int vectors_per_item;
  int threads;
  int blocks;  // persistent blocks; 0: too few rows, or another kernel
  int bytes;   // shared memory per block
};
inline constexpr int kBulkThreadsPerSm = 1024;  // per SM
inline constexpr int kBulkReservedBytes =
    2 << 10;  // of a block next to `bytes`, the system's included
inline constexpr int kSystemSharedBytes = 1 << 10;  // per block

// Pipeline stages of a forward norm: two for two arrays or four vectors per thread, so that shared
// memory has room for as many blocks as the registers (H200, LayerNorm of bfloat16 16384 x 4095:
// 188 us with three stages, 171 with two).
constexpr int bulk_stages(int vectors_per_item, int arrays) {
  return vectors_per_item > 2 || arrays > 1 ? 2 : 3;
}

// arrays: that are read. columns: arrays of affine parameters. most_bytes: shared memory available
// to a block, all of an SM's except the system's. The number of blocks does not change the bits of
// a row. More blocks than are resident would run as a second wave. With fewer rows than `least` the
// other kernels are faster (H200, bfloat16 300 x 4097: 6.0 us, bulk 6.4), unless rows are so wide
// that those work element by element.
inline BulkConfig bulk_config(std::int64_t rows, const RmsNormConfig& whole, int dtype_size,
                              int arrays, int columns, int multiprocessors, int most_bytes) {
  BulkConfig config{};
  if (whole.form != RowForm::kBlock || dtype_size > 4) return config;
  const RmsNormConfig row = one_item_per_thread(whole);
  config.vectors_per_item = row.vectors_per_item;
  config.threads = row.threads;
  config.bytes = bulk_bytes(1, bulk_stages(row.vectors_per_item, arrays), arrays, columns,
                            row.vectors_per_item, row.threads);
  const int fit = (most_bytes + kSystemSharedBytes) / (config.bytes + kBulkReservedBytes);
  const int blocks = multiprocessors * std::min({16, kBulkThreadsPerSm / row.threads, fit}) / 8 * 8;
  const int least = row.vectors_per_item > 2 ? 1 : arrays > 1 ? blocks / 2 : blocks;
  // With one row per block, rows of different blocks may have different alignment.
  if (rows >= least) config.blocks = static_cast<int>(std::min<std::int64_t>(blocks, rows));
  return config;
}

}  // namespace membound::cuda::tuning
