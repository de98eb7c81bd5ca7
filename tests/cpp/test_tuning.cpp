// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <set>

#include "cuda/norm/rms_norm_config.hpp"
#include "tuning_text.hpp"

using namespace membound::cuda::tuning;

namespace {

const std::int64_t kWidths[] = {1,    7,     8,     9,     64,    80,     128,    129,     512,
                                1000, 1024,  1025,  3072,  4096,  4097,   5120,   8192,    8200,
                                9000, 16384, 32768, 40000, 65536, 131072, 262144, 1 << 20, 1 << 24};

// The vectors that the configuration has a thread for.
std::int64_t capacity(const RmsNormConfig& c) {
  if (c.form == RowForm::kWarp)
    return static_cast<std::int64_t>(c.lanes) * c.vectors_per_item * c.items_per_thread;
  return static_cast<std::int64_t>(c.threads) * c.vectors_per_item * c.items_per_thread * c.groups *
         c.segments_per_group;
}

}  // namespace

TEST_CASE("every width is covered, with less than a warp per block to spare") {
  for (int size : {2, 4, 8}) {
    for (int cluster : {1, 8, 16}) {
      for (std::int64_t cols : kWidths) {
        for (std::int64_t rows : {1, 300, 1 << 22}) {
          const RmsNormConfig c = rms_norm_config(rows, cols, size, cluster);
          const std::int64_t vectors = ceil_div(cols, kVector / size);
          CAPTURE(to_string(c));
          CAPTURE(cols);
          CHECK(capacity(c) >= vectors);
          if (c.form != RowForm::kWarp) {
            const std::int64_t blocks = static_cast<std::int64_t>(c.groups) * c.segments_per_group;
            CHECK(capacity(c) - vectors < blocks * (32 * c.vectors_per_item * 2 + 1));
          }
        }
      }
    }
  }
}

TEST_CASE("launches are legal") {
  for (int size : {2, 4, 8}) {
    for (int cluster : {1, 8, 16}) {
      for (std::int64_t cols : kWidths) {
        const RmsNormConfig c = rms_norm_config(100, cols, size, cluster);
        CAPTURE(to_string(c));
        CHECK(c.threads >= 32);
        CHECK(c.threads <= 512);
        CHECK(c.threads % 32 == 0);
        CHECK(c.blocks_per_row <= cluster);
        CHECK(c.groups % c.blocks_per_row == 0);
        CHECK(c.groups <= kMaxGroups);
        if (c.form == RowForm::kCluster) CHECK(c.blocks_per_row == c.groups);
        if (c.form != RowForm::kWarp) CHECK(c.threads * c.items_per_thread <= c.max_warps * 32);
        if (c.form == RowForm::kWarp) CHECK(c.threads % c.lanes == 0);
      }
    }
  }
}

TEST_CASE("a row's tree depends on its width and dtype alone") {
  for (int size : {2, 4, 8}) {
    for (std::int64_t cols : kWidths) {
      std::set<std::int64_t> trees;
      for (std::int64_t rows : {1, 17, 129, 1024, 5000, 100000, 1 << 24}) {
        for (int cluster : {1, 8, 16}) {
          const RmsNormConfig c = rms_norm_config(rows, cols, size, cluster);
          const std::int64_t lanes = c.form == RowForm::kWarp ? c.lanes : c.threads;
          const std::int64_t tree = lanes * c.items_per_thread * 1000000 +
                                    c.vectors_per_item * 100000 + c.groups * 1000 +
                                    c.segments_per_group % 1000;
          trees.insert(tree);
        }
      }
      CAPTURE(cols);
      CHECK(trees.size() == 1);
    }
  }
}

TEST_CASE("rows of two to four virtual warps, several to a block") {
  const auto items_per_thread_of = [](std::int64_t rows, std::int64_t cols, bool fused_input,
                                      bool centred) {
    const RmsNormConfig c = coarsened(rms_norm_config(rows, cols, 2, 16), rows);
    const RmsNormConfig warps = one_warp_per_row(c, rows, cols / 8, 2, fused_input, centred);
    return warps.form == RowForm::kWarp ? warps.items_per_thread : 0;
  };
  CHECK(items_per_thread_of(512, 1024, false, false) == 0);
  CHECK(items_per_thread_of(1024, 1024, false, false) == 2);
  CHECK(items_per_thread_of(1, 768, false, true) == 2);
  CHECK(items_per_thread_of(2048, 1024, false, true) == 0);
  CHECK(items_per_thread_of(4096, 1024, true, false) == 0);
  CHECK(items_per_thread_of(1024, 1280, false, false) == 0);
  CHECK(items_per_thread_of(2048, 1280, false, false) == 4);
  CHECK(items_per_thread_of(65536, 1536, false, false) == 0);
  CHECK(items_per_thread_of(4096, 1280, true, false) == 0);
  CHECK(items_per_thread_of(8192, 1280, true, false) == 4);
  CHECK(items_per_thread_of(8192, 1536, true, false) == 0);
  CHECK(items_per_thread_of(4096, 1280, false, true) == 0);
  CHECK(items_per_thread_of(8192, 1280, false, true) == 4);
  CHECK(items_per_thread_of(8192, 1536, false, true) == 0);
  CHECK(items_per_thread_of(65536, 1536, false, true) == 4);
  CHECK(items_per_thread_of(65536, 1600, false, true) == 0);
  const RmsNormConfig c = coarsened(rms_norm_config(8192, 1536, 2, 16), 8192);
  CHECK(one_warp_per_row(c, 8192, 192, 2, false, false, true).items_per_thread == 4);
}

TEST_CASE("threads of a row with a residual and centred") {
  const auto items_per_thread_of = [](std::int64_t rows, std::int64_t cols, bool residual,
                                      bool centred, int size = 2) {
    const RmsNormConfig c = rms_norm_config(rows, cols, size, 16);
    return spread_over_threads(c, rows, size, residual, centred).items_per_thread;
  };
  for (const std::int64_t cols : {1024, 2048, 3072, 4096, 5120, 8192}) {
    for (const std::int64_t rows : {1, 512, 1024, 4096, 1 << 20}) {
      CHECK(items_per_thread_of(rows, cols, true, false) == 1);
      CHECK(items_per_thread_of(rows, cols / 2, false, false, 4) == 1);
    }
  }
  CHECK(items_per_thread_of(1024, 4096, false, true, 4) == 2);
  CHECK(items_per_thread_of(1024, 4096, false, false) == 2);
  CHECK(items_per_thread_of(1 << 20, 2048, true, true) == 1);
  CHECK(items_per_thread_of(1 << 20, 4096, true, true) == 2);
  CHECK(items_per_thread_of(1024, 3072, false, true) == 1);
  CHECK(items_per_thread_of(512, 8192, false, true) == 2);
  CHECK(items_per_thread_of(1 << 20, 2048, false, true) == 2);
}

TEST_CASE("threads of a gated row") {
  const auto items_per_thread_of = [](std::int64_t rows, std::int64_t cols, int size) {
    return spread_with_gate(rms_norm_config(rows, cols, size, 16), rows, size).items_per_thread;
  };
  CHECK(items_per_thread_of(1 << 20, 4096, 2) == 1);
  CHECK(items_per_thread_of(768, 8192, 2) == 1);
  CHECK(items_per_thread_of(1024, 8192, 2) == 2);
  CHECK(items_per_thread_of(1024, 5120, 2) == 1);
  CHECK(items_per_thread_of(8192, 5120, 2) == 2);
  CHECK(items_per_thread_of(16384, 2048, 4) == 1);
  CHECK(items_per_thread_of(16384, 4096, 4) == 2);
}

TEST_CASE("few rows of four vectors a thread stay in registers, in one wave of blocks") {
  const auto most_rows = [](std::int64_t cols, int size, bool low_register_pressure) {
    std::int64_t rows = 0;
    while (holds_few_in_registers(rms_norm_config(rows + 1, cols, size, 16), rows + 1, 132,
                                  low_register_pressure))
      ++rows;
    return rows;
  };
  CHECK(most_rows(8192, 2, false) == 0);
  CHECK(most_rows(8200, 2, false) == 2 * 132);  // 288 threads
  CHECK(most_rows(11008, 2, false) == 132);
  CHECK(most_rows(11008, 2, true) == 2 * 132);
  CHECK(most_rows(16384, 2, true) == 2 * 132);
  CHECK(most_rows(5120, 4, true) == 3 * 132);
  CHECK(most_rows(16392, 2, true) == 0);
}

TEST_CASE("another number of threads for the same virtual threads") {
  for (int size : {2, 4, 8}) {
    for (std::int64_t cols : kWidths) {
      for (std::int64_t rows : {1, 129, 5000, 1 << 20}) {
        CAPTURE(cols);
        CAPTURE(rows);
        const RmsNormConfig c = rms_norm_config(rows, cols, size, 16);
        for (const RmsNormConfig& other : {one_item_per_thread(c), coarsened(c, rows)}) {
          CHECK(other.threads * other.items_per_thread == c.threads * c.items_per_thread);
          CHECK(other.threads % 32 == 0);
          CHECK(other.form == c.form);
        }
        for (int options = 0; options < 4; ++options) {
          const std::int64_t vectors = ceil_div(cols, kVector / size);
          const bool fused_input = options & 1, centred = options & 2;
          const RmsNormConfig warps =
              one_warp_per_row(coarsened(c, rows), rows, vectors, size, fused_input, centred);
          if (warps.form == c.form) continue;
          CHECK(warps.form == RowForm::kWarp);
          CHECK(warps.lanes * warps.items_per_thread == c.threads * c.items_per_thread);
          CHECK(warps.threads % warps.lanes == 0);
          CHECK(size < 8);
          // As many vectors as those kernels hold.
          if (warps.items_per_thread == 2) {
            CHECK_FALSE(fused_input);
            CHECK(vectors <= 64 * 2);
          } else {
            CHECK(warps.items_per_thread == 4);
            CHECK_FALSE((fused_input && centred));
            CHECK(vectors <= (centred ? 6 : 5) * 32);
            if (centred) CHECK(size == 2);
          }
        }
        CHECK(one_item_per_thread(c).items_per_thread == 1);
        const bool coarsens = c.form == RowForm::kBlock && c.vectors_per_item == 2;
        if (c.form == RowForm::kBlock && rows == 1) CHECK(coarsened(c, rows).items_per_thread == 1);
        if (coarsens && rows == 1 << 20) CHECK(coarsened(c, rows).items_per_thread == 2);
      }
    }
  }
}

TEST_CASE("rows are read once up to 131,072 columns where there are clusters") {
  for (int size : {2, 4, 8}) {
    for (std::int64_t cols : kWidths) {
      if (cols > 131072) continue;
      CAPTURE(cols);
      CHECK(rms_norm_config(64, cols, size, 16).form != RowForm::kStreamed);
    }
  }
}

TEST_CASE("rare rows take the strided kernel, common rows do not") {
  const auto strided = [](std::int64_t cols, int size, int clusters, bool fused_input) {
    return uses_strided_kernel(rms_norm_config(64, cols, size, clusters), fused_input);
  };
  for (int size : {2, 4}) {
    for (bool fused_input : {false, true}) {
      CHECK_FALSE(strided(4096, size, 16, fused_input));
      CHECK_FALSE(strided(131072, size, 16, fused_input));
    }
    CHECK(strided(65536, size, 1, true));
    CHECK_FALSE(strided(1 << 20, size, 16, false));
    CHECK(strided(1 << 20, size, 16, true));
  }
  CHECK_FALSE(strided(4096, 8, 16, false));
  CHECK_FALSE(strided(4096, 8, 16, true));
}

TEST_CASE("few unaligned rows take narrow vectors") {
  const auto takes = [](std::int64_t rows, std::int64_t cols, int size, int width) {
    const std::int64_t vectors = ceil_div(cols, kVector / size);
    return takes_narrow_vectors(rms_norm_config(rows, cols, size, 16), rows, vectors, width);
  };
  CHECK(takes(1, 1, 2, 2));
  CHECK(takes(300, 1001, 2, 2));
  CHECK_FALSE(takes(1024, 1001, 2, 2));
  CHECK(takes(1024, 1002, 2, 4));
  CHECK(takes(1024, 1004, 2, 8));
  CHECK_FALSE(takes(1 << 20, 1004, 2, 8));
  CHECK(takes(512, 8190, 2, 4));
  CHECK_FALSE(takes(1024, 8190, 2, 4));
  CHECK(takes(4096, 301, 4, 4));
  CHECK_FALSE(takes(8192, 301, 4, 4));
  CHECK_FALSE(takes(1, 8196, 2, 8));  // four vectors per item
}

TEST_CASE("narrow rows are paired from two waves of blocks on") {
  const auto does = [](std::int64_t rows, std::int64_t cols, int size) {
    const RmsNormConfig c = rms_norm_config(rows, cols, size, 16);
    return is_many_narrow(c, ceil_div(rows, c.threads / c.lanes));
  };
  CHECK(does(65536, 128, 2));
  CHECK(does(1 << 20, 64, 2));
  CHECK(does(1 << 20, 512, 2));
  CHECK(does(1 << 20, 32, 4));
  CHECK(does(65536, 96, 2));
  CHECK(!does(16384, 128, 2));   // fewer than two waves of blocks
  CHECK(!does(1 << 20, 32, 2));  // two lanes
  CHECK(!does(1 << 20, 1024, 2));
}

TEST_CASE("a lane of two rows has one second vector where rows fill three quarters of a tile") {
  for (std::int64_t cols = 1; cols <= 1024; ++cols) {
    CAPTURE(cols);
    const RmsNormConfig c = rms_norm_config(1 << 20, cols, 4, 16);
    if (c.form != RowForm::kWarp || c.lanes < 4) continue;
    const std::int64_t vectors = ceil_div(cols, kVector / 4), second = vectors - c.lanes;
    CHECK(second > 0);  // every lane has a first vector
    CHECK(is_three_quarters_full(vectors, c.lanes) == (second <= c.lanes / 2));
  }
}

TEST_CASE("a configuration prints") {
  CHECK(to_string(rms_norm_config(1, 4096, 2, 16)) ==
        "block vectors_per_item=2 items_per_thread=1 threads=256 lanes=256 blocks=1 groups=1 "
        "segments=1 overlapped");
}

TEST_CASE("rows are staged in shared memory where a block has room for them") {
  const auto is_staged = [](std::int64_t cols, bool fused_input, std::int64_t kilobytes) {
    return has_room_to_stage(rms_norm_config(1, cols, 2, 1), fused_input, kilobytes << 10);
  };
  CHECK(is_staged(16384, false, 64));
  CHECK(is_staged(12288, true, 64));
  CHECK_FALSE(is_staged(16000, true, 64));
  CHECK(is_staged(16384, true, 99));
}
