// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "cuda/tuning/rope.hpp"

using namespace membound::cuda::tuning;

TEST_CASE("rope: every unit of every head belongs to one thread") {
  for (const std::int64_t tokens : {1, 64, 2048, 16384, 1 << 24}) {
    for (const std::int64_t heads : {1, 2, 3, 40, 129}) {
      for (const std::int64_t units : {1, 5, 8, 64, 300, 5000}) {
        const RopeConfig config = rope_config(tokens, heads, units);
        CAPTURE(to_string(config));
        CHECK(config.heads_per_thread >= 1);
        CHECK(config.heads_per_thread <= kRopeHeads);
        CHECK(config.groups * config.heads_per_thread >= heads);
        CHECK((config.groups - 1) * config.heads_per_thread < heads);
        CHECK(config.blocks * config.rows_per_block >= tokens * config.groups);
        CHECK((config.blocks - 1) * config.rows_per_block < tokens * config.groups);
        CHECK(config.threads() >= 1);
        CHECK(config.threads() <= kRopeThreads);
        CHECK(config.lanes <= units);
      }
    }
  }
}

TEST_CASE("rope: decoding has a head per thread and launches that overlap") {
  const RopeConfig decode = rope_config(64, 40, 8);
  CHECK(decode == RopeConfig{1, 8, 8, 40, 320, true});
  const RopeConfig large = rope_config(16384, 40, 8);
  CHECK(large == RopeConfig{2, 8, 32, 20, 10240, false});
}
