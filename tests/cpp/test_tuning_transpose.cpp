// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "cuda/array/transpose_config.hpp"

// Which words transposes move: those that have a kernel, and the widest that fill their tiles.
namespace membound_test {

using membound::cuda::tuning::transpose_pack;

TEST_CASE("words of large matrices have 8 bytes, or 4 of single bytes") {
  CHECK(transpose_pack(1, 8, 4096, 4096) == 4);
  CHECK(transpose_pack(2, 8, 4096, 4096) == 4);
  CHECK(transpose_pack(4, 8, 4096, 4096) == 2);
  CHECK(transpose_pack(8, 8, 4096, 4096) == 1);
}

TEST_CASE("words have 4 bytes where one side fills half of a tile or less") {
  for (const std::int64_t side : {8, 32, 64}) {
    CHECK(transpose_pack(1, 8, side, 4096) == 4);
    CHECK(transpose_pack(2, 8, side, 4096) == 2);
    CHECK(transpose_pack(2, 8, 4096, side) == 2);
    CHECK(transpose_pack(4, 8, side, 4096) == (side <= 32 ? 1 : 2));
    CHECK(transpose_pack(8, 8, side, 4096) == 1);
  }
  CHECK(transpose_pack(2, 8, 68, 4096) == 4);
}

TEST_CASE("words are no wider than what everything is a multiple of") {
  CHECK(transpose_pack(1, 2, 4096, 4096) == 1);
  CHECK(transpose_pack(1, 4, 4096, 4096) == 4);
  for (const std::int64_t fitting : {1, 2, 4})
    CHECK(transpose_pack(2, fitting, 4096, 4096) == fitting);
  CHECK(transpose_pack(4, 1, 4096, 4096) == 1);
}

}  // namespace membound_test
