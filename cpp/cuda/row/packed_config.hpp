// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of packed rows, which are narrow, without gaps and of any alignment
// (packed_tile.cuh): pure functions, unit-tested without a GPU. The reduction trees are those of
// the other kernels.
#include <algorithm>
#include <cstdint>

#include "cuda/norm/rms_norm_backward_config.hpp"

namespace membound::cuda::tuning {

// With fewer blocks than this the other kernels are faster, because they spread the rows over more
// blocks (H200, bfloat16 8192 x 127: 4.0 us, packed 4.8).
inline constexpr int kFewPacked = 3 * 132;

// Vectors of shared memory for a tile, which may start within a vector. Threads read whole vectors
// of its last row.
constexpr int packed_vectors(int rows, int cols, int dtype_size) {
  return static_cast<int>(ceil_div(std::int64_t{rows} * cols * dtype_size, kVector)) + 2;
}

struct PackedConfig {
  std::int64_t blocks;  // 0: other kernels take the rows
  int rows;             // per block
  int tile_vectors;     // vectors of shared memory per array
  int bytes;            // of all arrays
};

// arrays: that are read. The lanes of a row must hold the elements of the variance shift, and a
// lane must have the row's last vector in its last vector slot.
inline PackedConfig packed_config(std::int64_t rows, std::int64_t cols, const RmsNormConfig& row,
                                  int dtype_size, int arrays) {
  if (row.form != RowForm::kWarp || row.lanes < 4 || dtype_size > 4) return {};
  PackedConfig config{};
  config.rows = row.threads / row.lanes * kPairRows;
  config.tile_vectors = packed_vectors(config.rows, static_cast<int>(cols), dtype_size);
  config.bytes = kVector * arrays * config.tile_vectors;
  const std::int64_t blocks = ceil_div(rows, config.rows);
  if (blocks >= kFewPacked) config.blocks = blocks;
  return config;
}

// The same for gradients, whose blocks process one tile after the other
// (rms_norm_backward_packed.cuh).
inline constexpr int kPackedSlots = 2;

struct PackedGradientConfig {
  int tile_vectors;  // vectors of shared memory per array; 0: other kernels take the rows
  int bytes;         // of all arrays
};

// sources: number of arrays that are read. At the end a vector of sums per thread reuses the shared
// memory.
inline PackedGradientConfig packed_gradient_config(const RmsNormBackwardConfig& config,
                                                   std::int64_t cols, int dtype_size, int sources) {
  if (config.form != GradientForm::kPersistent || config.lanes > 32 || dtype_size > 4) return {};
  const int rows = config.threads / config.lanes;
  PackedGradientConfig packed{};
  packed.tile_vectors = packed_vectors(rows, static_cast<int>(cols), dtype_size);
  const int sums = config.threads * kVector / dtype_size * 4;
  packed.bytes = std::max(sums, kVector * packed.tile_vectors * (kPackedSlots * sources + 2));
  return packed;
}

}  // namespace membound::cuda::tuning
