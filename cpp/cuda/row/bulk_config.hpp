// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of rows that go by their frames (framed_row.cuh): a pure function,
// unit-tested without a GPU. Their trees are those of the other forms.
#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "cuda/norm/rms_norm_backward_config.hpp"

namespace membound::cuda::tuning {

// Rows of a gradient in shared memory, three where there is room: of three arrays of four chunks a
// thread in up to kRoomyFours threads (H200, bfloat16, dsum, with three and two rows: 8192 x 8193
// 172 and 234 us, 8192 x 10239 185 and 258; float32 16384 x 4097 284 and 400).
inline constexpr int kRoomyFours = 352;
constexpr int gradient_ring(int vecs, int arrays, int threads) {
  return vecs == 4 && arrays == 3 && threads > kRoomyFours ? 2 : 3;
}

// Bytes of shared memory for `groups` rows at once, each of `arrays` arrays in `lanes` threads: two
// chunks of masks, `columns` arrays of columns, and for each group the ring, a chunk more for each
// row, and what is known of arrays, two numbers and the ends.
constexpr int framed_bytes(int groups, int ring, int arrays, int columns, int vecs, int lanes) {
  const int chunks = vecs * lanes;
  return kChunk *
         (2 + groups * (columns * chunks + ring * (1 + arrays * (chunks + 3)) + arrays + 3));
}
constexpr int framed_bytes(const RmsNormBackwardConfig& config, int arrays) {
  const int ring = gradient_ring(config.vecs, arrays, config.threads);
  return framed_bytes(config.threads / config.lanes, ring, arrays, 1, config.vecs, config.lanes);
}

// Whether rows `step` apart are as far behind a 16-byte boundary. row_strides: of all arrays, in
// elements.
inline bool keeps_shift(std::int64_t step, int dtype_size,
                        std::initializer_list<std::int64_t> row_strides) {
  return std::all_of(row_strides.begin(), row_strides.end(),
                     [&](std::int64_t stride) { return step * stride * dtype_size % kChunk == 0; });
}

// Whether rows of unit stride are for the gradient's kernel: many, of more than a warp, in one
// block each or in several of two chunks a thread, the last of which has the row's last chunk in
// the last place of a thread. Lanes of a warp that have different shifts would pay for it (H200,
// bfloat16, 524288 x 127: 209 us, by frames 270; with a gate 742 and 756).
inline bool has_frame(const RmsNormBackwardConfig& config, std::int64_t chunks, int dtype_size,
                      std::initializer_list<std::int64_t> row_strides) {
  const std::int64_t step = std::int64_t{config.partial_rows} * (config.threads / config.lanes);
  const std::int64_t places = std::int64_t{config.vecs} * config.blocks_per_row;
  const bool fits =
      (config.blocks_per_row == 1 || config.vecs == 2) && chunks > config.lanes * (places - 1);
  return config.form == GradientForm::kPersistent && fits && dtype_size <= 4 && config.lanes > 32 &&
         keeps_shift(step, dtype_size, row_strides);
}

// The same for the norm itself.
struct FramedConfig {
  int vecs;
  int threads;
  int blocks;  // rows between those of a block; 0: rows are too few, or of another form
  int bytes;   // of shared memory
};
inline constexpr int kFramedThreads = 1024;   // of a multiprocessor
inline constexpr int kFramedBytes = 2 << 10;  // of a block beside `bytes`, the system's with them
inline constexpr int kSharedOfSystem = 1 << 10;  // of each block

// Rows in shared memory: two of two arrays, and where a thread has four chunks, so that as many
// blocks have room as there are registers for (H200, bfloat16, 16384 x 4095 with a residual: 143 us
// with three, 140 with two; LayerNorm 188 and 171; with a gate 112 and 106).
constexpr int framed_ring(int vecs, int arrays) { return vecs > 2 || arrays > 1 ? 2 : 3; }

// arrays: that are read; columns: those of weight and bias. most_bytes: what a block may have, all
// of a multiprocessor's but for the system's. The bits of a row do not depend on how many blocks
// there are. More than fit would wait for the first to end; with fewer rows than these, others are
// faster (H200, bfloat16: 300 x 4097 6.0 us, so 6.4, but 512 x 4097 7.9 and 6.6; with a residual
// 132 x 4097 4.5 and 6.4, 200 x 4097 7.5 and 6.0, 1000 x 1001 5.5 and 6.2, 2000 x 1001 9.9 and 8.4;
// 64 x 16383 8.0 and 7.2, with a residual 13.0 and 8.9). With a gate others go by elements (512 x
// 4097 21.7 and 9.2), and so do quantised ones (H100, 256 x 4097 10.5 and 5.8).
inline FramedConfig framed_config(std::int64_t rows, const RmsNormConfig& whole, int dtype_size,
                                  bool others_by_element, int arrays, int columns,
                                  int multiprocessors, int most_bytes) {
  FramedConfig config{};
  if (whole.form != RowForm::kBlock || dtype_size > 4) return config;
  const RmsNormConfig row = unfolded(whole);
  config.vecs = row.vecs;
  config.threads = row.threads;
  config.bytes =
      framed_bytes(1, framed_ring(row.vecs, arrays), arrays, columns, row.vecs, row.threads);
  const int fit = (most_bytes + kSharedOfSystem) / (config.bytes + kFramedBytes);
  const int blocks = multiprocessors * std::min({16, kFramedThreads / row.threads, fit}) / 8 * 8;
  const int least = others_by_element || row.vecs > 2 ? 1 : arrays > 1 ? blocks / 2 : blocks;
  // One row of each block may be anywhere.
  if (rows >= least) config.blocks = static_cast<int>(std::min<std::int64_t>(blocks, rows));
  return config;
}

}  // namespace membound::cuda::tuning
