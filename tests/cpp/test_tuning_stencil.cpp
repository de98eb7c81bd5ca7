// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "cuda/array/stencil_config.hpp"

// How stencils are cut into tiles on a GPU: a block always has as many results, whatever the shape.
namespace membound_test {

using namespace membound::cuda::tuning;

TEST_CASE("a tile has one result for each register of the threads that hold them") {
  for (const std::int64_t length : {1, 7, 8, 9, 100, 2048, 2049, 1 << 30}) {
    for (const std::int64_t inner : {1, 2, 3, 31, 32, 33, 1 << 20}) {
      const StencilConfig config = stencil_config(length, inner);
      CHECK(config.width() * config.rows() * config.lines() == kStencilTile);
      CHECK(config.width() <= 32);
      CHECK(config.rows() >= kStencilRows);
      // Rows and those that the last weight of a pass meets are in shared memory.
      CHECK((config.rows() + config.taps - 1) * config.width() * config.lines() <= kStencilShared);
      // So is what the last window reads beyond them.
      CHECK(config.rows() + config.taps - 2 >= config.rows() - kStencilRows + kStencilGroup);
    }
  }
}

TEST_CASE("long axes fill a tile, short ones share it") {
  CHECK(stencil_config(1 << 20, 1).rows() == kStencilTile);
  CHECK(stencil_config(1 << 20, 1 << 20).rows() == kStencilTile / 32);
  CHECK(stencil_config(100, 1).lines() == 16);
  CHECK(stencil_config(1, 1).lines() == kStencilTile / kStencilRows);
}

TEST_CASE("gradients of weights have at most 1024 totals each") {
  for (const std::int64_t tiles : {1, 1000, 1024, 1025, 5000, 1 << 30}) {
    const std::int64_t each = stencil_tiles_of_block(tiles);
    CHECK((tiles + each - 1) / each <= 1024);
    CHECK((each == 1 || tiles > 1024));
  }
}

}  // namespace membound_test
