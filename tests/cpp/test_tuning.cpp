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
  CHECK(items_per_thread_of(4096, 1024, true, false) == 2);
  CHECK(items_per_thread_of(2048, 1280, false, false) == 4);
  CHECK(items_per_thread_of(1024, 1280, false, false) == 0);
  CHECK(items_per_thread_of(4096, 1536, false, false) == 0);
  CHECK(items_per_thread_of(8192, 1536, false, false) == 4);
  CHECK(items_per_thread_of(4096, 1280, true, false) == 0);
  CHECK(items_per_thread_of(8192, 1280, true, false) == 4);
  CHECK(items_per_thread_of(8192, 1536, true, false) == 0);
  CHECK(items_per_thread_of(8192, 1600, false, false) == 0);
  CHECK(items_per_thread_of(8192, 1600, false, true) == 4);
  CHECK(items_per_thread_of(2048, 1280, false, true) == 0);
  CHECK(items_per_thread_of(65536, 2056, false, true) == 0);
}

TEST_CASE("threads of a row with a residual and centred") {
  const auto items_per_thread_of = [](std::int64_t rows, std::int64_t cols, bool residual,
                                      bool centred, int size = 2) {
    const RmsNormConfig c = rms_norm_config(rows, cols, size, 16);
    return spread_over_threads(c, rows, size, false, residual, centred).items_per_thread;
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
  const RmsNormConfig c = rms_norm_config(1 << 20, 4096, 2, 16);
  CHECK(spread_over_threads(c, 1 << 20, 2, true, true, false).items_per_thread == 2);
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
          CHECK((warps.items_per_thread == 2 || warps.items_per_thread == 4));
          CHECK(size < 8);
          CHECK_FALSE((fused_input && centred));
          // As many vectors as those kernels hold.
          const bool three_quarters_full =
              is_three_quarters_full(vectors, 32 * warps.items_per_thread);
          CHECK(vectors <= 64 * warps.items_per_thread);
          if (warps.items_per_thread == 4 && !centred)
            CHECK((three_quarters_full && (!fused_input || vectors <= 5 * 32)));
          if (warps.items_per_thread == 4 && centred) CHECK(size == 2);
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
  const auto generic = [](std::int64_t cols, int size, int clusters, bool unaligned,
                          bool fused_input) {
    return uses_strided_kernel(rms_norm_config(64, cols, size, clusters), size, unaligned,
                               fused_input);
  };
  for (int size : {2, 4}) {
    for (bool fused_input : {false, true}) {
      CHECK_FALSE(generic(4096, size, 16, false, fused_input));
      CHECK_FALSE(generic(4097, size, 16, true, fused_input));
      CHECK_FALSE(generic(65537, size, 16, true, fused_input));
      CHECK_FALSE(generic(131072, size, 16, false, fused_input));
      CHECK(generic(65537, size, 1, true, fused_input));
    }
    CHECK_FALSE(generic(1 << 20, size, 16, false, false));
    CHECK(generic(1 << 20, size, 16, false, true));
    CHECK(generic(1 << 20, size, 16, true, false));
  }
  CHECK_FALSE(generic(4096, 8, 16, false, false));
  CHECK(generic(4096, 8, 16, true, false));
  CHECK(generic(4096, 8, 16, false, true));
}

TEST_CASE("few unaligned rows take narrow vectors, more of them where nothing else takes them") {
  const auto takes = [](std::int64_t rows, std::int64_t cols, int size, bool whole, bool gate) {
    const std::int64_t vectors = ceil_div(cols, kVector / size);
    return takes_narrow_vectors(rms_norm_config(rows, cols, size, 16), rows, vectors, whole, gate);
  };
  CHECK(takes(1, 1, 2, false, false));
  CHECK(takes(300, 1001, 2, false, false));
  CHECK_FALSE(takes(1024, 1001, 2, false, false));
  CHECK(takes(1024, 1002, 2, true, false));
  CHECK(takes(1024, 1001, 2, false, true));
  CHECK_FALSE(takes(2048, 1001, 2, false, true));
  CHECK(takes(512, 8190, 2, true, false));
  CHECK_FALSE(takes(1024, 8190, 2, true, true));
  CHECK(takes(4096, 301, 4, true, false));
  CHECK_FALSE(takes(8192, 301, 4, true, false));
  CHECK_FALSE(takes(1, 8193, 2, true, false));  // four vectors per item

  const auto goes = [](std::int64_t rows, std::int64_t cols, int size, bool gate) {
    return uses_narrow_vectors(rms_norm_config(rows, cols, size, 16), rows, size, gate);
  };
  CHECK(goes(1 << 20, 511, 2, false));
  CHECK_FALSE(goes(1024, 1001, 2, false));
  CHECK(goes(1 << 20, 1001, 2, true));
  CHECK_FALSE(goes(1, 8193, 2, true));
  CHECK(goes(1024, 1001, 4, false));
  CHECK_FALSE(goes(4096, 1001, 4, false));  // two items per thread
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

TEST_CASE("many wide rows take persistent blocks") {
  const auto does = [](std::int64_t rows, std::int64_t cols, int size, int cluster) {
    return uses_wide_kernel(rms_norm_config(rows, cols, size, cluster), rows);
  };
  CHECK(does(1024, 32768, 2, 16));
  CHECK(does(512, 65536, 2, 16));
  CHECK(!does(512, 32768, 2, 16));
  CHECK(!does(1 << 20, 16384, 2, 16));    // one block
  CHECK(!does(1 << 20, 1 << 20, 2, 16));  // read twice
  CHECK(!does(1 << 20, 65536, 2, 1));
  for (std::int64_t cols : kWidths) {
    const RmsNormConfig c = rms_norm_config(1 << 20, cols, 2, 16);
    if (!uses_wide_kernel(c, 1 << 20)) continue;
    CAPTURE(cols);
    CHECK(c.vectors_per_item == kWideVectors);
    CHECK(c.threads <= kWideThreads);
    CHECK(wide_bytes(c) <= 216 << 10);
  }
}

TEST_CASE("persistent clusters take the fewest blocks for the same number of rounds") {
  for (std::int64_t rows : {1, 2, 500, 2048, 4096, 100000}) {
    for (std::int64_t clusters : {1, 7, 30, 66}) {
      CAPTURE(rows);
      CAPTURE(clusters);
      const std::int64_t even = balanced_clusters(rows, clusters);
      const auto rounds = [&](std::int64_t of) { return ceil_div(rows, of * kWideGroups); };
      CHECK(even >= 1);
      CHECK(even <= clusters);
      CHECK(rounds(even) == rounds(clusters));
      if (even > 1) CHECK(rounds(even - 1) > rounds(clusters));
    }
  }
  CHECK(balanced_clusters(4096, 66) == 64);
}

TEST_CASE("a configuration prints") {
  CHECK(to_string(rms_norm_config(1, 4096, 2, 16)) ==
        "block vectors_per_item=2 items_per_thread=1 threads=256 lanes=256 blocks=1 groups=1 "
        "segments=1 overlapped");
}

TEST_CASE("rows are staged in shared memory where a block has room for them") {
  const auto is_staged = [](std::int64_t cols, bool unaligned, bool fused_input,
                            std::int64_t kilobytes) {
    return has_room_to_stage(rms_norm_config(1, cols, 2, 1), unaligned, fused_input,
                             kilobytes << 10);
  };
  CHECK(is_staged(16384, false, false, 64));
  CHECK(is_staged(12288, false, true, 64));
  CHECK_FALSE(is_staged(16000, false, true, 64));
  CHECK_FALSE(is_staged(10241, true, true, 64));
  CHECK(is_staged(16384, true, true, 99));
  CHECK(is_staged(8192, true, true, 64));
}
