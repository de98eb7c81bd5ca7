// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>

#include "cuda/tuning/rms_norm_backward.hpp"

using namespace membound::cuda::tuning;

namespace {

const std::int64_t kWidths[] = {1,    7,    8,    100,   128,   512,   1001,   2048,   3072,   4096,
                                4097, 5120, 8192, 16384, 32768, 65536, 131072, 262144, 1 << 20};
const std::int64_t kRows[] = {1, 3, 128, 1024, 2048, 16384, 1 << 20};

template <class Check>
void for_each_shape(Check check) {
  for (int size : {2, 4, 8}) {
    for (std::int64_t cols : kWidths) {
      for (std::int64_t rows : kRows) {
        CAPTURE(size);
        CAPTURE(cols);
        CAPTURE(rows);
        for (bool ring : {false, true}) {
          for (bool centred : {false, true}) check(rows, cols, size, ring, centred);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("the persistent form has a thread for every chunk and fits a block") {
  for_each_shape([](std::int64_t rows, std::int64_t cols, int size, bool ring, bool centred) {
    const auto c = rms_norm_backward_config(rows, cols, size, true, ring, 16, centred);
    if (c.form != GradientForm::kPersistent) return;
    const std::int64_t chunks = ceil_div(cols, kChunk / size);
    CHECK(std::int64_t{c.lanes} * c.vecs * c.blocks_per_row >= chunks);
    CHECK(c.threads % c.lanes == 0);
    CHECK(c.threads <= kPersistentBlock);
    CHECK(c.threads % 32 == 0);
    CHECK(c.blocks_per_row <= kMaxGroups);
    if (c.blocks_per_row > 1) CHECK(c.threads == c.lanes);
    CHECK(c.partial_rows >= 1);
    CHECK(c.partial_rows <= rows);
    CHECK(c.shared_bytes <= kRingBytes);
    if (!ring) CHECK(c.shared_bytes == 0);
  });
}

TEST_CASE("the workspace holds the partial sums, whatever the GPU") {
  for_each_shape([](std::int64_t rows, std::int64_t cols, int size, bool ring, bool centred) {
    for (int cluster : {1, 8, 16}) {
      const auto c = rms_norm_backward_config(rows, cols, size, true, ring, cluster, centred);
      const int sums = centred ? 2 : 1;
      CHECK(sums * c.partial_rows <= rms_norm_backward_partials(rows, cols, size, centred));
    }
  });
}

TEST_CASE("alignment does not change the tree of dweight") {
  for_each_shape([](std::int64_t rows, std::int64_t cols, int size, bool, bool centred) {
    const auto aligned = rms_norm_backward_config(rows, cols, size, true, true, 16, centred);
    const auto shifted = rms_norm_backward_config(rows, cols, size, true, false, 16, centred);
    CHECK(aligned.form == shifted.form);
    CHECK(aligned.partial_rows == shifted.partial_rows);
    CHECK(aligned.column_blocks == shifted.column_blocks);
    if (aligned.form == GradientForm::kPersistent) {
      CHECK(aligned.threads / aligned.lanes == shifted.threads / shifted.lanes);
    }
  });
}

TEST_CASE("blocks of columns cover the row and fill whole clusters") {
  for_each_shape([](std::int64_t rows, std::int64_t cols, int size, bool ring, bool centred) {
    for (int cluster : {1, 8, 16}) {
      const auto c = rms_norm_backward_config(rows, cols, size, true, ring, cluster, centred);
      if (c.form != GradientForm::kRoles) continue;
      CHECK(c.column_blocks * kColumnSegment >= ceil_div(cols, kChunk / size));
      CHECK(c.column_blocks % c.blocks_per_row == 0);
      CHECK(c.blocks_per_row <= cluster);
    }
  });
}

TEST_CASE("rows alone need no blocks of columns, and the kernels that exist") {
  for_each_shape([](std::int64_t rows, std::int64_t cols, int size, bool ring, bool centred) {
    const auto c = rms_norm_backward_config(rows, cols, size, false, ring, 16, centred);
    CHECK(c.form == GradientForm::kRoles);
    CHECK(c.column_blocks == 0);
    CHECK(c.partial_rows == 0);
    if (c.rows.form == RowForm::kCluster || c.rows.form == RowForm::kStreamed) {
      CHECK(c.rows.vecs == 4);
      CHECK(c.threads <= 256);
    } else {
      CHECK(c.rows.fold == 1);
      CHECK(c.threads <= 512);
    }
  });
}

TEST_CASE("an empty array needs neither workspace nor blocks of rows") {
  CHECK(rms_norm_backward_partials(0, 4096, 2) == 0);
  CHECK(rms_norm_backward_config(0, 4096, 2, true, true, 16).form == GradientForm::kRoles);
}
