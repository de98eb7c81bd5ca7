// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "cuda/array/reduce_config.hpp"

// How reductions of arrays are shared out on a GPU: everything is read once, whatever the shape.
namespace membound_test {

using namespace membound::cuda::tuning;

namespace {

constexpr std::int64_t kExtents[] = {
    1, 2, 3, 7, 32, 33, 1000, 4096, 4099, 65536, 1 << 20, 1 << 24, std::int64_t{1} << 31};

void check(const ReduceConfig& config, std::int64_t steps) {
  CHECK((config.lanes & (config.lanes - 1)) == 0);
  CHECK(config.lanes * config.width == kReduceThreads);
  CHECK(config.chunks >= 1);
  CHECK(config.chunks <= 2048);
  CHECK(config.chunk * config.chunks >= steps);
  CHECK((config.chunks - 1) * config.chunk < std::max<std::int64_t>(steps, 1));
}

}  // namespace

TEST_CASE("chunks cover the reduced elements once") {
  for (const std::int64_t results : kExtents) {
    for (const std::int64_t steps : kExtents) {
      check(reduce_rows_config(results, steps), steps);
      check(reduce_columns_config(results, steps), steps);
    }
  }
  check(reduce_rows_config(5, 0), 0);
  check(reduce_columns_config(5, 0), 0);
}

TEST_CASE("few results are split, many are not") {
  CHECK(reduce_rows_config(1, 1 << 22).chunks == 1024);
  CHECK(reduce_rows_config(1 << 20, 256).chunks == 1);
  CHECK(reduce_columns_config(1, 1 << 22).chunks > 500);
  CHECK(reduce_columns_config(1 << 20, 4096).chunks == 1);
  // A warp's worth of loads is not split.
  CHECK(reduce_rows_config(1, 256).chunks == 1);
}

TEST_CASE("threads of a row have sixteen loads if there are rows enough") {
  CHECK(reduce_rows_config(4096, 1024).lanes == 64);
  CHECK(reduce_rows_config(100, 1024).lanes == kReduceThreads);
  CHECK(reduce_rows_config(1 << 20, 64).lanes == 16);
  CHECK(reduce_rows_config(1 << 20, 200).lanes == 32);
}

TEST_CASE("a load of a row has 16 bytes at least, of items of any size") {
  constexpr int kUnitItems = 4;
  for (const std::size_t bytes : {1u, 2u, 4u})
    CHECK((kUnitItems * bytes << load_unit_bits(bytes)) == 16);
  CHECK(load_unit_bits(8) == 0);
}

TEST_CASE("partial results are merged by as many threads as there are eights of them") {
  CHECK(chunk_lanes(1) == 1);
  CHECK(chunk_lanes(8) == 1);
  CHECK(chunk_lanes(9) == 2);
  CHECK(chunk_lanes(1024) == 128);
  CHECK(chunk_lanes(1 << 20) == kReduceThreads);
}

}  // namespace membound_test
