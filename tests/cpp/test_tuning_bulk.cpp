// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <utility>

#include "cuda/row/bulk_config.hpp"

using namespace membound::cuda::tuning;

namespace {

const std::int64_t kWidths[] = {1,    7,    31,   63,    127,   257,   511,   1001,  2049,  3071,
                                4097, 5119, 8191, 16383, 16385, 24575, 32767, 33001, 65535, 131071};
constexpr int kMostBytes = 227 << 10;
const std::int64_t kRows[] = {1, 300, 1025, 5003, 16384, 1 << 20};

}  // namespace

TEST_CASE("many unaligned rows keep their shift and take the bulk kernel") {
  for (int size : {2, 4}) {
    for (std::int64_t cols : kWidths) {
      for (std::int64_t rows : kRows) {
        for (bool gated : {false, true}) {
          CAPTURE(size);
          CAPTURE(cols);
          CAPTURE(rows);
          const auto vectors = ceil_div(cols, kVector / size);
          for (bool as_aligned : {true, false}) {
            const auto c =
                rms_norm_backward_config(rows, cols, size, true, as_aligned, 16, false, 1, gated);
            const bool bulk = fits_bulk_kernel(c, vectors, size, {cols, cols, 0});
            if (vectors <= 2048) {
              CHECK(bulk == (c.form == GradientForm::kPersistent && c.lanes > 32));
            }
            if (!bulk) continue;
            // The last vector is the last one of a thread.
            CHECK(vectors > c.lanes * (c.vectors_per_item * c.blocks_per_row - 1));
            CHECK(bulk_bytes(c, 3) <= 220 << 10);
            // At the end the pipeline's memory holds a float for each column of each group.
            CHECK(bulk_bytes(c, 2) >= c.threads * c.vectors_per_item * kVector / size * 4);
          }
        }
      }
    }
  }
}

TEST_CASE("wide rows take the bulk kernel in clusters of two vectors a thread") {
  const auto config = [](std::int64_t cols, bool as_aligned, bool gated) {
    return rms_norm_backward_config(4096, cols, 2, true, as_aligned, 16, false, 1, gated);
  };
  for (std::int64_t cols : {24575, 32767}) {
    CHECK_FALSE(fits_bulk_kernel(config(cols, true, false), (cols + 1) / 8, 2, {cols}));
    CHECK(config(cols, false, false).blocks_per_row == 4);
    CHECK(fits_bulk_kernel(config(cols, false, false), (cols + 1) / 8, 2, {cols}));
  }
  for (bool gated : {false, true}) {
    CHECK(config(10239, false, gated).blocks_per_row == 2);
    CHECK(fits_bulk_kernel(config(10239, false, gated), 1280, 2, {10239}));
  }
}

TEST_CASE("row strides that blocks do not repeat do not take the bulk kernel") {
  RmsNormBackwardConfig config{};
  config.form = GradientForm::kPersistent;
  config.blocks_per_row = 1;
  config.threads = config.lanes = 512;
  config.vectors_per_item = 1;
  for (int blocks : {1, 2, 4, 8, 12, 256}) {
    config.partial_rows = blocks;
    CHECK(fits_bulk_kernel(config, 512, 2, {4096, 4097}) == (blocks % 8 == 0));
    CHECK(fits_bulk_kernel(config, 512, 2, {4096, 4100}) == (blocks % 2 == 0));
    CHECK(fits_bulk_kernel(config, 512, 4, {4097}) == (blocks % 4 == 0));
    CHECK(fits_bulk_kernel(config, 512, 2, {4096, 8}));
  }
}

TEST_CASE("norms of rows in one block have a thread for every vector, and room for its stages") {
  for (int size : {2, 4, 8}) {
    for (std::int64_t cols : kWidths) {
      for (std::int64_t rows : kRows) {
        CAPTURE(size);
        CAPTURE(cols);
        CAPTURE(rows);
        const auto row = rms_norm_config(rows, cols, size, 16);
        for (int arrays : {1, 2}) {
          CAPTURE(arrays);
          const auto c = bulk_config(rows, row, size, arrays, 2, 132, kMostBytes);
          if (c.blocks == 0) continue;
          CHECK(size < 8);
          CHECK(row.form == RowForm::kBlock);
          CHECK(std::int64_t{c.threads} * c.vectors_per_item >= ceil_div(cols, kVector / size));
          CHECK(c.threads <= 512);
          CHECK(c.blocks <= rows);
          CHECK((c.blocks == rows || same_shift(c.blocks, size, {1})));
          CHECK(ceil_div(c.blocks, 132) * (c.bytes + kBulkReservedBytes) <=
                kMostBytes + kSystemSharedBytes);
        }
      }
    }
  }
}
