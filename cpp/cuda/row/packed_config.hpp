// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of narrow rows without gaps that start anywhere (dense_piece.cuh): a pure
// function, unit-tested without a GPU. Their trees are those of the other forms.
#include <algorithm>
#include <cstdint>

#include "cuda/norm/rms_norm_backward_config.hpp"

namespace membound::cuda::tuning {

// Fewer blocks than these start sooner by others, whose rows are spread over more of them (H200,
// bfloat16, us, so and by others: 8192 x 127 4.8 and 4.0, LayerNorm 6.4 and 5.4, with a
// residual 6.4 and 5.0; 16384 x 127 5.0 and 6.8, 6.6 and 8.9, 7.4 and 9.1; 2048 x 300 3.6 and 3.6,
// 4096 x 300 4.0 and 6.1). With a gate others go by elements.
inline constexpr int kFewDense = 3 * 132;

// Chunks of shared memory for a piece, which may start within one. Threads read whole chunks of its
// last row.
constexpr int dense_places(int rows, int cols, int dtype_size) {
  return static_cast<int>(ceil_div(std::int64_t{rows} * cols * dtype_size, kChunk)) + 2;
}

struct DenseConfig {
  std::int64_t blocks;  // 0: others take the rows
  int rows;             // of a block
  int places;           // chunks of shared memory for each array
  int bytes;            // of all
};

// arrays: that are read. Lanes hold the elements of the pivot, and the last chunk of a row in the
// last place of a lane.
inline DenseConfig dense_config(std::int64_t rows, std::int64_t cols, const RmsNormConfig& row,
                                int dtype_size, bool others_by_element, int arrays) {
  if (row.form != RowForm::kWarp || row.lanes < 4 || dtype_size > 4) return {};
  DenseConfig config{};
  config.rows = row.threads / row.lanes * kPairRows;
  config.places = dense_places(config.rows, static_cast<int>(cols), dtype_size);
  config.bytes = kChunk * arrays * config.places;
  const std::int64_t blocks = ceil_div(rows, config.rows);
  if (others_by_element || blocks >= kFewDense) config.blocks = blocks;
  return config;
}

// The same for gradients, whose blocks take one piece after the other
// (rms_norm_backward_dense.cuh).
inline constexpr int kDenseSlots = 2;

struct DenseGradientConfig {
  int places;  // chunks of shared memory for each array; 0: others take the rows
  int bytes;   // of all
};

// sources, results: arrays. At the end shared memory has a chunk of sums for each thread.
inline DenseGradientConfig dense_gradient_config(const RmsNormBackwardConfig& config,
                                                 std::int64_t cols, int dtype_size, int sources,
                                                 int results) {
  if (config.form != GradientForm::kPersistent || config.lanes > 32 || dtype_size > 4) return {};
  const int rows = config.threads / config.lanes;
  DenseGradientConfig dense{};
  dense.places = dense_places(rows, static_cast<int>(cols), dtype_size);
  const int sums = config.threads * kChunk / dtype_size * 4;
  dense.bytes = std::max(sums, kChunk * dense.places * (kDenseSlots * sources + 2 * results));
  return dense;
}

}  // namespace membound::cuda::tuning
