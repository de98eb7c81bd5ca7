// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "cuda/rope/qk_norm_lanes_config.hpp"
#include "cuda/rope/qk_norm_rope_backward_config.hpp"
#include "tuning_text.hpp"

using namespace membound::cuda::tuning;

TEST_CASE("qk_norm_rope: every head of every token belongs to one row of lanes") {
  for (const std::int64_t tokens : {1, 64, 2048, 16384, 1 << 24}) {
    for (const std::int64_t heads : {1, 2, 3, 32, 129}) {
      for (const std::int64_t head_dim : {16, 64, 80, 128, 512}) {
        const QkNormRopeConfig config = qk_norm_rope_config(tokens, heads, 1, head_dim, 2, true);
        CAPTURE(to_string(config));
        CHECK(config.groups * config.heads_per_thread >= heads + 1);
        CHECK(config.blocks * config.rows_per_block >= tokens * config.groups);
        CHECK((config.blocks - 1) * config.rows_per_block < tokens * config.groups);
        CHECK(config.threads() % 32 == 0);
        CHECK(config.threads() <= kQkNormRopeThreads);
        CHECK(2 * config.lanes * 8 >= head_dim);
        CHECK(config.lanes * 8 < head_dim);
      }
    }
  }
}

TEST_CASE("qk_norm_rope: decoding has a head per row, prefill eight") {
  CHECK(qk_norm_rope_config(64, 32, 8, 128, 2, true) == QkNormRopeConfig{1, 8, 8, 40, 320, true});
  CHECK(qk_norm_rope_config(16384, 32, 8, 128, 2, true) ==
        QkNormRopeConfig{8, 8, 16, 5, 5120, true});
  CHECK(qk_norm_rope_config(2, 32, 8, 80, 2, false).lanes == 32);
}

TEST_CASE("qk_norm_rope: every head of v belongs to one row of the blocks behind") {
  for (const std::int64_t tokens : {1, 64, 16384}) {
    for (const std::int64_t heads : {1, 3, 8}) {
      for (const bool in_vectors : {false, true}) {
        const QkNormRopeConfig config = qk_norm_rope_config(tokens, 32, heads, 128, 2, in_vectors);
        const std::int64_t groups = qk_norm_value_groups(config, heads);
        const std::int64_t blocks = qk_norm_value_blocks(config, tokens, heads);
        CAPTURE(to_string(config));
        CHECK(groups * config.heads_per_thread >= heads);
        CHECK((groups - 1) * config.heads_per_thread < heads);
        CHECK(blocks * config.rows_per_block >= tokens * groups);
        CHECK((blocks - 1) * config.rows_per_block < tokens * groups);
      }
    }
  }
  CHECK(qk_norm_value_blocks(qk_norm_rope_config(64, 32, 8, 128, 2, true), 64, 0) == 0);
}

TEST_CASE("qk_norm_rope: which heads take pairs of vectors") {
  CHECK(qk_norm_pairs_vectors(128, 2));
  CHECK(qk_norm_pairs_vectors(16, 2));
  CHECK(qk_norm_pairs_vectors(512, 2));
  CHECK(qk_norm_pairs_vectors(256, 4));
  CHECK_FALSE(qk_norm_pairs_vectors(8, 2));     // one vector
  CHECK(qk_norm_pairs_vectors(80, 2));          // lanes without vectors
  CHECK_FALSE(qk_norm_pairs_vectors(72, 2));    // nine vectors
  CHECK_FALSE(qk_norm_pairs_vectors(1024, 2));  // more than a warp holds
  CHECK_FALSE(qk_norm_pairs_vectors(20, 2));    // no whole vectors
}

TEST_CASE("qk_norm_rope: rows have as many heads as leave the fewest lanes without one") {
  CHECK(qk_norm_heads(32, 8) == 8);
  CHECK(qk_norm_heads(16, 16) == 8);
  CHECK(qk_norm_heads(28, 4) == 7);
  CHECK(qk_norm_heads(12, 2) == 6);
  for (std::int64_t heads = 0; heads < 200; ++heads) {
    const int each = qk_norm_heads(heads, heads / 4);
    CHECK(each > 1);
    CHECK(each <= kQkNormHeads);
  }
}

TEST_CASE("qk_norm_rope: every vector of a warp's heads belongs to one lane") {
  for (const int size : {2, 4}) {
    for (std::int64_t head_dim = 1; qk_norm_fits_lanes(head_dim, size); ++head_dim) {
      const WarpHeads all = warp_heads(head_dim, size);
      CAPTURE(head_dim);
      CHECK(all.vectors * 16 >= head_dim * size);
      CHECK((all.vectors - 1) * 16 < head_dim * size);
      CHECK(all.vectors * all.heads <= 32);
      CHECK(all.vectors * (all.heads + 1) > 32);
      CHECK(2 * all.summing >= all.vectors);
      const int behind = all.vectors - all.summing, front = all.heads * all.summing;
      for (int lane = front; behind > 0 && lane < 32; ++lane) {
        const int number = lane - front;
        CHECK(static_cast<int>(number * all.behind_magic >> 16) == number / behind);
      }
      // Blocks of the gradient cover all slots, with no more threads than the kernel's launch
      // bounds.
      const int slots = qk_norm_rope_backward_config(1, head_dim, size, false).slots;
      const int threads = qk_norm_backward_lane_threads(slots, all);
      CHECK(threads / 32 * all.heads >= slots);
      CHECK(threads <= kQkNormBackwardLaneThreads);
      CHECK(slots * head_dim <= 2 * (16 / size) * kQkNormRopeBackwardThreads);
      const QkNormRopeConfig config = qk_norm_lane_config(16384, 32, 8, all);
      CHECK(config.blocks * config.rows_per_block >= 16384 * config.groups);
      CHECK(config.rows_per_block == kQkNormRopeThreads / 32 * all.heads);
    }
  }
  CHECK(warp_heads(72, 2).heads == 3);
  CHECK_FALSE(qk_norm_fits_lanes(257, 2));
}

TEST_CASE("qk_norm_rope_backward: slots are of the head's width alone") {
  for (const bool in_vectors : {false, true}) {
    for (const std::int64_t blocks : {1, 100000}) {
      const auto config = qk_norm_rope_backward_config(blocks, 128, 2, in_vectors);
      CHECK(config.lanes == 8);
      CHECK(config.slots == 16);
      CHECK(config.threads == (in_vectors ? kQkNormRopeBackwardThreads : 32));
    }
  }
}
