// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <initializer_list>

#include "cuda/row/divider.hpp"

using membound::cuda::divider;
using membound::cuda::kMaxSplitRows;
using membound::cuda::RowDivider;
using membound::cuda::RowSplit;
using membound::cuda::split_rows;

TEST_CASE("the inner axis of rows is divided by exactly") {
  for (std::int64_t power = 1; power <= 31; ++power) {
    for (std::int64_t near : {-1, 0, 1, 5}) {
      const std::int64_t extent = (std::int64_t{1} << power) + near;
      if (extent < 2 || extent > kMaxSplitRows) continue;
      const RowSplit split = split_rows(extent);
      CAPTURE(extent);
      CHECK(split.extent == extent);
      // Both sides of multiples at the ends of the range, where a wrong magic number fails first.
      for (std::int64_t last : {extent, 7 * extent, kMaxSplitRows / 3, kMaxSplitRows - 1}) {
        for (std::int64_t step = -2; step <= 2; ++step) {
          const std::int64_t row = last / extent * extent + step;
          if (row < 0 || row >= kMaxSplitRows) continue;
          CAPTURE(row);
          REQUIRE(split.outer(row) == row / extent);
        }
      }
    }
  }
}

TEST_CASE("every row of common head counts") {
  for (std::int64_t extent = 2; extent <= 257; ++extent) {
    const RowSplit split = split_rows(extent);
    for (std::int64_t row = 0; row < 20000; ++row) REQUIRE(split.outer(row) == row / extent);
  }
}

TEST_CASE("dividers take any extent") {
  for (const std::int64_t extent : {std::int64_t{1}, std::int64_t{5}, kMaxSplitRows,
                                    kMaxSplitRows + 1, std::int64_t{1} << 40}) {
    const RowDivider by = divider(extent);
    CAPTURE(extent);
    for (const std::int64_t row : {std::int64_t{0}, std::int64_t{1}, std::int64_t{4},
                                   std::int64_t{5}, std::int64_t{12345}, kMaxSplitRows - 1}) {
      CHECK(by.quotient(row) == row / extent);
    }
  }
}
