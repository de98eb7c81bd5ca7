// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of rows that go by their spans (bulk_row.cuh): a pure function,
// unit-tested without a GPU. Their trees are those of the other forms.
#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "cuda/norm/rms_norm_backward_config.hpp"

namespace membound::cuda::tuning {

// Rows of a gradient in shared memory, three where there is room: of three arrays of four vectors a
// thread in up to kLowPressureFours threads (H200, bfloat16, dsum, with three and two rows: 8192 x
// 8193 172 and 234 us, 8192 x 10239 185 and 258; float32 16384 x 4097 284 and 400).
inline constexpr int kLowPressureFours = 352;
constexpr int gradient_ring(int vectors_per_item, int arrays, int threads) {
  return vectors_per_item == 4 && arrays == 3 && threads > kLowPressureFours ? 2 : 3;
}

// Bytes of shared memory for `groups` rows at once, each of `arrays` arrays in `lanes` threads: two
// vectors of masks, `columns` arrays of columns, and for each group the ring, a vector more for
// each row, and what is known of arrays, two numbers and the ends.
constexpr int bulk_bytes(int groups, int ring, int arrays, int columns, int vectors_per_item,
                         int lanes) {
  const int vectors = vectors_per_item * lanes;
  return kVector *
         (2 + groups * (columns * vectors + ring * (1 + arrays * (vectors + 3)) + arrays + 3));
}
constexpr int bulk_bytes(const RmsNormBackwardConfig& config, int arrays) {
  const int ring = gradient_ring(config.vectors_per_item, arrays, config.threads);
  return bulk_bytes(config.threads / config.lanes, ring, arrays, 1, config.vectors_per_item,
                    config.lanes);
}

// Whether rows `step` apart are as far behind a 16-byte boundary. row_strides: of all arrays, in
// elements.
inline bool keeps_shift(std::int64_t step, int dtype_size,
                        std::initializer_list<std::int64_t> row_strides) {
  return std::all_of(row_strides.begin(), row_strides.end(), [&](std::int64_t stride) {
    return step * stride * dtype_size % kVector == 0;
  });
}

// Whether rows of unit stride are for the gradient's kernel: many, of more than a warp, in one
// block each or in several of two vectors a thread, the last of which has the row's last vector in
// the last place of a thread. Lanes of a warp that have different shifts would pay for it (H200,
// bfloat16, 524288 x 127: 209 us, by spans 270; with a gate 742 and 756).
inline bool has_span(const RmsNormBackwardConfig& config, std::int64_t vectors, int dtype_size,
                     std::initializer_list<std::int64_t> row_strides) {
  const std::int64_t step = std::int64_t{config.partial_rows} * (config.threads / config.lanes);
  const std::int64_t places = std::int64_t{config.vectors_per_item} * config.blocks_per_row;
  const bool fits = (config.blocks_per_row == 1 || config.vectors_per_item == 2) &&
                    vectors > config.lanes * (places - 1);
  return config.form == GradientForm::kPersistent && fits && dtype_size <= 4 && config.lanes > 32 &&
         keeps_shift(step, dtype_size, row_strides);
}

// The same for the norm itself.
struct BulkConfig {
  int vectors_per_item;
  int threads;
  int blocks;  // rows between those of a block; 0: rows are too few, or of another form
  int bytes;   // of shared memory
};
inline constexpr int kBulkThreads = 1024;   // of a multiprocessor
inline constexpr int kBulkBytes = 2 << 10;  // of a block beside `bytes`, the system's with them
inline constexpr int kSharedOfSystem = 1 << 10;  // of each block

// Rows in shared memory: two of two arrays, and where a thread has four vectors, so that as many
// blocks have room as there are registers for (H200, bfloat16, 16384 x 4095 with a residual: 143 us
// with three, 140 with two; LayerNorm 188 and 171; with a gate 112 and 106).
constexpr int bulk_pipeline(int vectors_per_item, int arrays) {
  return vectors_per_item > 2 || arrays > 1 ? 2 : 3;
}

// arrays: that are read; columns: those of weight and bias. most_bytes: what a block may have, all
// of a multiprocessor's but for the system's. The bits of a row do not depend on how many blocks
// there are. More than fit would wait for the first to end; with fewer rows than these, others are
// faster (H200, bfloat16: 300 x 4097 6.0 us, so 6.4, but 512 x 4097 7.9 and 6.6; with a residual
// 132 x 4097 4.5 and 6.4, 200 x 4097 7.5 and 6.0, 1000 x 1001 5.5 and 6.2, 2000 x 1001 9.9 and 8.4;
// 64 x 16383 8.0 and 7.2, with a residual 13.0 and 8.9). With a gate others go by elements (512 x
// 4097 21.7 and 9.2), and so do quantised ones (H100, 256 x 4097 10.5 and 5.8).
inline BulkConfig bulk_config(std::int64_t rows, const RmsNormConfig& whole, int dtype_size,
                              bool others_by_element, int arrays, int columns, int multiprocessors,
                              int most_bytes) {
  BulkConfig config{};
  if (whole.form != RowForm::kBlock || dtype_size > 4) return config;
  const RmsNormConfig row = one_item_per_thread(whole);
  config.vectors_per_item = row.vectors_per_item;
  config.threads = row.threads;
  config.bytes = bulk_bytes(1, bulk_pipeline(row.vectors_per_item, arrays), arrays, columns,
                            row.vectors_per_item, row.threads);
  const int fit = (most_bytes + kSharedOfSystem) / (config.bytes + kBulkBytes);
  const int blocks = multiprocessors * std::min({16, kBulkThreads / row.threads, fit}) / 8 * 8;
  const int least = others_by_element || row.vectors_per_item > 2 ? 1
                    : arrays > 1                                  ? blocks / 2
                                                                  : blocks;
  // One row of each block may be anywhere.
  if (rows >= least) config.blocks = static_cast<int>(std::min<std::int64_t>(blocks, rows));
  return config;
}

}  // namespace membound::cuda::tuning
