// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of rows that go by their frames (framed_row.cuh): a pure function,
// unit-tested without a GPU. Their trees are those of the other forms.
#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "cuda/tuning/rms_norm_backward.hpp"

namespace membound::cuda::tuning {

// Rows in shared memory; two where a thread has four chunks, so that two blocks have room.
constexpr int framed_ring(int vecs) { return vecs > 2 ? 2 : 3; }

// Bytes of shared memory for `groups` rows at once, each of `arrays` arrays in `lanes` threads: two
// chunks of masks, `columns` arrays of columns, and for each group the ring, a chunk more for each
// row, and what is known of arrays, two numbers and the ends.
constexpr int framed_bytes(int groups, int arrays, int columns, int vecs, int lanes) {
  const int chunks = vecs * lanes;
  return kChunk * (2 + groups * (columns * chunks +
                                 framed_ring(vecs) * (1 + arrays * (chunks + 3)) + arrays + 3));
}
constexpr int framed_bytes(const RmsNormBackwardConfig& config, int arrays) {
  return framed_bytes(config.threads / config.lanes, arrays, 1, config.vecs, config.lanes);
}

// Whether rows `step` apart are as far behind a 16-byte boundary. row_strides: of all arrays, in
// elements.
inline bool keeps_shift(std::int64_t step, int dtype_size,
                        std::initializer_list<std::int64_t> row_strides) {
  return std::all_of(row_strides.begin(), row_strides.end(),
                     [&](std::int64_t stride) { return step * stride * dtype_size % kChunk == 0; });
}

// Whether rows of unit stride are for the gradient's kernel: many, in one block each, of more than
// a warp. Lanes of a warp that have different shifts would pay for it (H200, bfloat16, 524288 x
// 127: 209 us, by frames 270; with a gate 742 and 756).
inline bool has_frame(const RmsNormBackwardConfig& config, int dtype_size,
                      std::initializer_list<std::int64_t> row_strides) {
  const std::int64_t step = std::int64_t{config.partial_rows} * (config.threads / config.lanes);
  return config.form == GradientForm::kPersistent && config.blocks_per_row == 1 &&
         dtype_size <= 4 && config.lanes > 32 && keeps_shift(step, dtype_size, row_strides);
}

// The same for the norm itself.
struct FramedConfig {
  int vecs;
  int threads;
  int blocks;  // rows between those of a block; 0: rows are too few, or of another form

  constexpr int bytes(bool gated, bool centred) const {
    return framed_bytes(1, gated ? 2 : 1, centred ? 2 : 1, vecs, threads);
  }
};
inline constexpr int kFramedThreads = 1024;  // of a multiprocessor
inline constexpr int kFramedRows = 4;        // of a block, at least

// multiprocessors: of the GPU. The bits of a row do not depend on how many there are.
inline FramedConfig framed_config(std::int64_t rows, const RmsNormConfig& whole, int dtype_size,
                                  int multiprocessors) {
  FramedConfig config{};
  if (whole.form != RowForm::kBlock || dtype_size > 4) return config;
  const RmsNormConfig row = unfolded(whole);
  config.vecs = row.vecs;
  config.threads = row.threads;
  const int blocks = multiprocessors * std::min(16, kFramedThreads / row.threads) / 8 * 8;
  if (rows >= std::int64_t{kFramedRows} * blocks) config.blocks = blocks;
  return config;
}

}  // namespace membound::cuda::tuning
