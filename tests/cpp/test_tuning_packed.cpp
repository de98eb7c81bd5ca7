// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <initializer_list>

#include "cuda/row/packed_config.hpp"

using namespace membound::cuda::tuning;

namespace {

PackedConfig config_of(std::int64_t rows, std::int64_t cols, int size, int arrays = 1) {
  return packed_config(rows, cols, rms_norm_config(rows, cols, size, 16), size, arrays);
}

}  // namespace

TEST_CASE("packed rows fit their block, and all tiles have the same alignment") {
  for (int size : {2, 4}) {
    for (std::int64_t cols = 1; cols <= 1024; ++cols) {
      CAPTURE(size);
      CAPTURE(cols);
      const std::int64_t rows = 1 << 20;
      const auto row = rms_norm_config(rows, cols, size, 16);
      const PackedConfig config = config_of(rows, cols, size, 2);
      const std::int64_t vectors = ceil_div(cols, kVector / size);
      if (config.blocks == 0) {
        CHECK((vectors <= 4 || vectors > 64));
        continue;
      }
      CHECK(config.blocks * config.rows >= rows);
      CHECK((config.blocks - 1) * config.rows < rows);
      CHECK(config.rows * cols * size % kVector == 0);
      // From any byte of the first vector on, with a full vector at the end of the last row.
      CHECK(kVector * (config.tile_vectors - 1) >= config.rows * cols * size + kVector - size);
      CHECK(config.bytes == kVector * config.tile_vectors * 2);
      CHECK(config.bytes <= 40 << 10);
      // The elements of the variance shift are in the first vectors of different lanes, the end of
      // the row is in a second vector.
      CHECK(row.lanes * (kVector / size) >= 16);
      CHECK(vectors > row.lanes);
      CHECK(vectors <= 2 * row.lanes);
    }
  }
}

TEST_CASE("few packed rows, and wide or float64 ones, take other kernels") {
  CHECK(config_of(8192, 127, 2).blocks == 0);
  CHECK(config_of(16384, 127, 2).blocks == 512);
  CHECK(config_of(1 << 20, 513, 2).blocks == 0);
  CHECK(config_of(1 << 20, 127, 8).blocks == 0);
}

TEST_CASE("gradients of packed rows: two blocks fit an SM, and the sums their block") {
  for (int size : {2, 4}) {
    for (std::int64_t cols = 1; cols <= 600; ++cols) {
      for (std::int64_t rows : {300, 5003, 1 << 20}) {
        CAPTURE(size);
        CAPTURE(cols);
        CAPTURE(rows);
        const std::int64_t vectors = ceil_div(cols, kVector / size);
        const auto row = rms_norm_backward_config(rows, cols, size, true, false, 16);
        const auto packed = packed_gradient_config(row, cols, size, 3);
        CHECK((packed.tile_vectors > 0) ==
              (row.form == GradientForm::kPersistent && vectors <= 32));
        if (packed.tile_vectors == 0) continue;
        const std::int64_t groups = row.threads / row.lanes;
        CHECK(groups * cols * size % kVector == 0);
        CHECK(kVector * (packed.tile_vectors - 1) >= groups * cols * size + kVector - size);
        CHECK(packed.bytes >= kVector * packed.tile_vectors * (3 * kPackedSlots + 2));
        CHECK(packed.bytes >= row.threads * (kVector / size) * 4);
        CHECK(2 * (packed.bytes + (9 << 10)) <= 227 << 10);
      }
    }
  }
}
