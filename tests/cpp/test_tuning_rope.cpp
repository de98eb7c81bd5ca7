// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "cuda/rope/rope_config.hpp"
#include "tuning_text.hpp"

using namespace membound::cuda::tuning;

TEST_CASE("rope: every unit of every head belongs to one thread") {
  for (const std::int64_t tokens : {1, 64, 2048, 16384, 1 << 24}) {
    for (const std::int64_t heads : {1, 2, 3, 40, 129}) {
      for (const std::int64_t units : {1, 5, 8, 64, 300, 5000}) {
        for (const int shared : {rope_heads_of_vectors(false), rope_heads_of_vectors(true),
                                 rope_heads_of_narrow_vectors(2)}) {
          const RopeConfig config = rope_config(tokens, heads, heads / 4, units, shared);
          CAPTURE(to_string(config));
          const std::int64_t each = config.heads_per_thread;
          CHECK(each >= 1);
          CHECK(each <= shared);
          CHECK(config.groups == (heads + each - 1) / each + (heads / 4 + each - 1) / each);
          CHECK(config.blocks * config.rows_per_block >= tokens * config.groups);
          CHECK((config.blocks - 1) * config.rows_per_block < tokens * config.groups);
          CHECK(config.threads() >= 1);
          CHECK(config.threads() <= kRopeThreads);
          CHECK(config.lanes <= units);
        }
      }
    }
  }
}

TEST_CASE("rope: decoding has a head per thread and launches that overlap") {
  const RopeConfig decode = rope_config(64, 32, 8, 8, kRopeHeadsOfTable);
  CHECK(decode == RopeConfig{1, 8, 8, 40, 320, true});
  const RopeConfig large = rope_config(16384, 32, 8, 8, kRopeHeadsOfTable);
  CHECK(large == RopeConfig{4, 8, 16, 10, 10240, false});
  CHECK(rope_config(16384, 32, 8, 8, rope_heads_of_vectors(true)).groups == 5);
  CHECK(rope_config(16384, 32, 8, 9, rope_heads_of_narrow_vectors(8)).threads() == 126);
}
