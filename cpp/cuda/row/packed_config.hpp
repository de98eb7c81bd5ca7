// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of narrow rows without gaps that start anywhere (packed_piece.cuh): a pure
// function, unit-tested without a GPU. Their trees are those of the other forms.
#include <algorithm>
#include <cstdint>

#include "cuda/norm/rms_norm_backward_config.hpp"

namespace membound::cuda::tuning {

// Fewer blocks than these start sooner by others, whose rows are spread over more of them (H200,
// bfloat16, us, so and by others: 8192 x 127 4.8 and 4.0, LayerNorm 6.4 and 5.4, with a
// residual 6.4 and 5.0; 16384 x 127 5.0 and 6.8, 6.6 and 8.9, 7.4 and 9.1; 2048 x 300 3.6 and 3.6,
// 4096 x 300 4.0 and 6.1). With a gate others go by elements.
inline constexpr int kFewPacked = 3 * 132;

// Chunks of shared memory for a piece, which may start within one. Threads read whole vectors of
// its last row.
constexpr int packed_places(int rows, int cols, int dtype_size) {
  return static_cast<int>(ceil_div(std::int64_t{rows} * cols * dtype_size, kVector)) + 2;
}

struct PackedConfig {
  std::int64_t blocks;  // 0: others take the rows
  int rows;             // of a block
  int places;           // vectors of shared memory for each array
  int bytes;            // of all
};

// arrays: that are read. Lanes hold the elements of the shift, and the last vector of a row in the
// last place of a lane.
inline PackedConfig packed_config(std::int64_t rows, std::int64_t cols, const RmsNormConfig& row,
                                  int dtype_size, bool others_by_element, int arrays) {
  if (row.form != RowForm::kWarp || row.lanes < 4 || dtype_size > 4) return {};
  PackedConfig config{};
  config.rows = row.threads / row.lanes * kPairRows;
  config.places = packed_places(config.rows, static_cast<int>(cols), dtype_size);
  config.bytes = kVector * arrays * config.places;
  const std::int64_t blocks = ceil_div(rows, config.rows);
  if (others_by_element || blocks >= kFewPacked) config.blocks = blocks;
  return config;
}

// The same for gradients, whose blocks take one piece after the other
// (rms_norm_backward_packed.cuh).
inline constexpr int kPackedSlots = 2;

struct PackedGradientConfig {
  int places;  // vectors of shared memory for each array; 0: others take the rows
  int bytes;   // of all
};

// sources, results: arrays. At the end shared memory has a vector of sums for each thread.
inline PackedGradientConfig packed_gradient_config(const RmsNormBackwardConfig& config,
                                                   std::int64_t cols, int dtype_size, int sources,
                                                   int results) {
  if (config.form != GradientForm::kPersistent || config.lanes > 32 || dtype_size > 4) return {};
  const int rows = config.threads / config.lanes;
  PackedGradientConfig packed{};
  packed.places = packed_places(rows, static_cast<int>(cols), dtype_size);
  const int sums = config.threads * kVector / dtype_size * 4;
  packed.bytes = std::max(sums, kVector * packed.places * (kPackedSlots * sources + 2 * results));
  return packed;
}

}  // namespace membound::cuda::tuning
