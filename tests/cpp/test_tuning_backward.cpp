// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>

#include "cuda/norm/rms_norm_backward_config.hpp"

using namespace membound::cuda::tuning;

namespace {

const std::int64_t kWidths[] = {1,     7,     8,     100,   128,   512,    1001,   2048,
                                3072,  4096,  4097,  5120,  8192,  8200,   9216,   12288,
                                16384, 20480, 24576, 32768, 65536, 131072, 262144, 1 << 20};
const std::int64_t kRows[] = {1, 3, 128, 1024, 2048, 16384, 1 << 20};

template <class Check>
void for_each_shape(Check check) {
  for (int size : {2, 4, 8}) {
    for (std::int64_t cols : kWidths) {
      for (std::int64_t rows : kRows) {
        CAPTURE(size);
        CAPTURE(cols);
        CAPTURE(rows);
        for (bool stages : {false, true}) {
          for (bool centred : {false, true}) check(rows, cols, size, stages, centred);
        }
      }
    }
  }
}

int partial_rows(std::int64_t rows, std::int64_t cols, int size, bool centred, bool gated = false) {
  return rms_norm_backward_config(rows, cols, size, true, true, 16, centred, 1, gated).partial_rows;
}

// Shared memory for the pipeline on 9.0, and on 8.0, which has no clusters.
constexpr int kClusterRingBytes = (192 << 10) + 2 * kVector, kRingBytes = 96 << 10;

}  // namespace

TEST_CASE("the persistent form has a thread for every vector and fits a block") {
  for_each_shape([](std::int64_t rows, std::int64_t cols, int size, bool stages, bool centred) {
    const auto c = rms_norm_backward_config(rows, cols, size, true, stages, 16, centred);
    if (c.form != GradientForm::kPersistent) return;
    const std::int64_t vectors = ceil_div(cols, kVector / size);
    CHECK(std::int64_t{c.lanes} * c.vectors_per_item * c.blocks_per_row >= vectors);
    CHECK(c.threads % c.lanes == 0);
    CHECK(c.threads <= kPersistentBlock);
    CHECK(c.threads % 32 == 0);
    CHECK(c.blocks_per_row <= kMaxGroups);
    if (c.blocks_per_row > 1) CHECK(c.threads == c.lanes);
    CHECK(c.partial_rows >= 1);
    CHECK(c.partial_rows <= rows);
    CHECK(c.shared_bytes <= (c.blocks_per_row > 1 ? kClusterRingBytes : kRingBytes));
    const auto added =
        rms_norm_backward_config(rows, cols, size, true, stages, 16, centred, 1, false, true);
    CHECK(added.shared_bytes <= kClusterRingBytes);
    CHECK(added.partial_rows == c.partial_rows);
    // With less shared memory a row takes more blocks, with the same reduction trees.
    const auto tight = rms_norm_backward_config(rows, cols, size, true, stages, 16, centred, 1,
                                                false, false, false);
    CHECK(tight.form == GradientForm::kPersistent);
    CHECK(tight.lanes == c.lanes);
    CHECK(tight.partial_rows == c.partial_rows);
    CHECK(tight.vectors_per_item * tight.blocks_per_row == c.vectors_per_item * c.blocks_per_row);
    CHECK((tight.vectors_per_item < 4 || tight.blocks_per_row > 1));
    CHECK(tight.shared_bytes <= kClusterRingBytes);
    if (c.stages > 0) CHECK(c.stages == (c.blocks_per_row > 1 ? kClusterStages : 2));
    if (!stages) CHECK(c.shared_bytes == 0);
    // Aligned rows have one kernel without a pipeline besides the one for lanes.
    if (stages && c.stages == 0 && c.lanes > 32) {
      CHECK_FALSE(centred);
      CHECK(c.vectors_per_item == 1);
      CHECK(c.blocks_per_row == 1);
    }
  });
}

TEST_CASE("the workspace holds the partial sums, whatever the GPU") {
  for_each_shape([](std::int64_t rows, std::int64_t cols, int size, bool stages, bool centred) {
    for (int cluster : {1, 8, 16}) {
      const auto c = rms_norm_backward_config(rows, cols, size, true, stages, cluster, centred);
      const int sums = centred ? 2 : 1;
      CHECK(sums * c.partial_rows <= rms_norm_backward_partials(rows, cols, size, centred));
      const auto gated =
          rms_norm_backward_config(rows, cols, size, true, stages, cluster, false, 1, true);
      CHECK(gated.partial_rows <= rms_norm_backward_partials(rows, cols, size, false, 1, true));
      CHECK(gated.shared_bytes <= (gated.blocks_per_row > 1 ? kClusterRingBytes : kRingBytes));
    }
  });
}

TEST_CASE("alignment does not change the tree of dweight") {
  for_each_shape([](std::int64_t rows, std::int64_t cols, int size, bool, bool centred) {
    const auto aligned = rms_norm_backward_config(rows, cols, size, true, true, 16, centred);
    const auto unaligned = rms_norm_backward_config(rows, cols, size, true, false, 16, centred);
    CHECK(aligned.form == unaligned.form);
    CHECK(aligned.partial_rows == unaligned.partial_rows);
    CHECK(aligned.column_blocks == unaligned.column_blocks);
    if (aligned.form == GradientForm::kPersistent) {
      CHECK(aligned.threads / aligned.lanes == unaligned.threads / unaligned.lanes);
    }
  });
}

TEST_CASE("blocks of columns cover the row and fill whole clusters") {
  for_each_shape([](std::int64_t rows, std::int64_t cols, int size, bool stages, bool centred) {
    for (int cluster : {1, 8, 16}) {
      const auto c = rms_norm_backward_config(rows, cols, size, true, stages, cluster, centred);
      if (c.form != GradientForm::kSpecialised) continue;
      const std::int64_t vectors = ceil_div(cols, kVector / size);
      CHECK(c.column_blocks * column_segment(vectors) >= vectors);
      CHECK((c.column_blocks - c.blocks_per_row) * column_segment(vectors) < vectors);
      CHECK(c.column_blocks % c.blocks_per_row == 0);
      CHECK(c.blocks_per_row <= cluster);
    }
  });
}

TEST_CASE("rows alone need no blocks of columns, and the kernels that exist") {
  for_each_shape([](std::int64_t rows, std::int64_t cols, int size, bool stages, bool centred) {
    const auto c = rms_norm_backward_config(rows, cols, size, false, stages, 16, centred);
    CHECK(c.column_blocks == 0);
    if (c.form == GradientForm::kPersistent) {  // as with sums where these are in that form, too
      const auto both = rms_norm_backward_config(rows, cols, size, true, stages, 16, centred);
      if (both.form == GradientForm::kPersistent) CHECK(c == both);
      return;
    }
    CHECK(c.partial_rows == 0);
    CHECK(c.rows.vectors_per_item == kGradientVectorsPerItem);
    CHECK(c.rows.items_per_thread == 1);
    CHECK(c.threads <= (c.rows.form == RowForm::kWarp ? 256 : kPersistentBlock));
    if (c.rows.form == RowForm::kBlock) CHECK(c.rows.groups == 1);
  });
}

TEST_CASE("a row of dx has one tree, among few rows and many, aligned and not") {
  for_each_shape([](std::int64_t rows, std::int64_t cols, int size, bool stages, bool centred) {
    for (bool gated : {false, true}) {
      const auto c =
          rms_norm_backward_config(rows, cols, size, true, stages, 16, centred, 1, gated);
      if (c.form != GradientForm::kPersistent) return;
      for (int cluster : {1, 8, 16}) {
        const auto alone = gradient_rows_config(rows, cols, size, cluster);
        if (c.lanes <=
            32) {  // half as many threads, each with the vectors that the first shuffle adds
          CHECK(alone.form == RowForm::kWarp);
          CHECK(alone.lanes == (c.lanes + 1) / 2);
          continue;
        }
        // Groups of items, with one vector each or two.
        CHECK(alone.groups == c.blocks_per_row * (c.vectors_per_item == 4 ? 2 : 1));
        if (c.vectors_per_item > 1) {
          CHECK(alone.threads == c.lanes);
        } else if (alone.form == RowForm::kWarp) {
          CHECK(alone.lanes == 32);
          CHECK(c.lanes == 64);
        } else {
          CHECK(alone.threads <= kPersistentBlock / 2);
          CHECK((c.lanes + 32) / 64 * 32 == alone.threads);
        }
      }
    }
  });
}

TEST_CASE("narrow and wide rows are many sooner than others, odd and gated ones, too") {
  enum Kind { kNorm, kLayerNorm, kGated };
  struct Bound {
    std::int64_t cols, rows;
    int size = 2;
    Kind kind = kNorm;
  };
  for (const auto& [cols, rows, size, kind] : {Bound{128, 256},
                                               {512, 256},
                                               {520, 160},
                                               {1024, 224, 2, kLayerNorm},
                                               {1032, 208},
                                               {1280, 384, 2, kLayerNorm},
                                               {1288, 224},
                                               {1536, 768, 2, kLayerNorm},
                                               {2048, 448},
                                               {2048, 896, 2, kLayerNorm},
                                               {2056, 1024},
                                               {4096, 1024},
                                               {8192, 1024},
                                               {8200, 640},
                                               {16384, 192},
                                               {16384, 320, 2, kLayerNorm},
                                               {65536, 64},
                                               {4096, 768, 4},
                                               {8192, 128, 4},
                                               {1024, 512, 8},
                                               {2048, 256, 8},
                                               {2047, 256, 8},
                                               {127, 112},
                                               {257, 160},
                                               {513, 80},
                                               {1001, 80},
                                               {2049, 256, 2, kLayerNorm},
                                               {2561, 224},
                                               {3073, 224},
                                               {256, 288, 4},
                                               {1024, 304, 4},
                                               {1024, 832, 4, kLayerNorm},
                                               {1024, 112, 2, kGated},
                                               {4097, 224},
                                               {4097, 256, 2, kLayerNorm},
                                               {6001, 224},
                                               {8193, 144},
                                               {16383, 48},
                                               {2049, 224, 4},
                                               {4096, 384, 2, kGated},
                                               {4096, 160, 4, kGated},
                                               {4097, 64, 2, kGated}}) {
    CAPTURE(cols);
    CAPTURE(size);
    for (const std::int64_t more : {0, 1}) {
      const auto form = rms_norm_backward_config(rows + more, cols, size, true, true, 16,
                                                 kind == kLayerNorm, 1, kind == kGated)
                            .form;
      CHECK(form == (more == 0 ? GradientForm::kSpecialised : GradientForm::kPersistent));
    }
  }
}

TEST_CASE("sums of two blocks of an SM are paired, whatever the alignment") {
  const auto paired = [](std::int64_t rows, std::int64_t cols, int size, bool centred,
                         std::int64_t heads = 1, bool gated = false) {
    const auto config = [&](bool stages) {
      return rms_norm_backward_config(rows, cols, size, true, stages, 16, centred, heads, gated);
    };
    const auto c = config(true);
    CHECK(config(false).paired == c.paired);
    if (c.paired) CHECK(c.partial_rows % 2 == 0);
    if (c.paired) CHECK(c.threads == c.lanes);
    return c.paired;
  };
  for (const bool centred : {false, true}) {
    CHECK(paired(16384, 4096, 2, centred));
    CHECK(paired(1025, 3080, 2, centred));
    CHECK_FALSE(paired(16384, 3072, 2, centred));  // three
    CHECK_FALSE(paired(16384, 4097, 2, centred));
    CHECK_FALSE(paired(16384, 2048, 2, centred));  // two thread groups per block
    CHECK_FALSE(paired(16384, 1024, 8, centred));
    CHECK_FALSE(paired(64, 4096, 2, centred));  // no such blocks
    CHECK_FALSE(paired(16384, 4096, 2, centred, 2));
    CHECK(paired(16384, 2048, 4, centred) == !centred);
  }
  CHECK_FALSE(paired(16384, 4096, 2, false, 1, true));
}

TEST_CASE("few narrow rows are spread over blocks as long as their partial sums are few bytes") {
  CHECK(partial_rows(2000, 128, 2, false, false) == 64);  // 32 groups each
  CHECK(partial_rows(1000, 1024, 2, false, false) == 256);
  CHECK(partial_rows(1000, 1024, 2, true, false) == 64);
  CHECK(partial_rows(700, 1001, 2, true, false) == 256);
  CHECK(partial_rows(1500, 1001, 2, false, true) == 128);
  CHECK(partial_rows(512, 1001, 2, false, true) == 128);
  CHECK(partial_rows(1 << 20, 1024, 2, false, false) == 256);
}

TEST_CASE("more blocks of few threads share a multiprocessor, of those with rows enough") {
  const std::int64_t many = 1 << 20;
  // Four blocks of up to 288 threads, except RMSNorm of float32 and float64; three of up to 384.
  CHECK(partial_rows(20479, 2304, 2, false) == 512);
  CHECK(partial_rows(20480, 2304, 2, false) == 384);
  CHECK(partial_rows(many, 2304, 2, true) == 512);
  CHECK(partial_rows(many, 1152, 4, false) == 384);
  CHECK(partial_rows(many, 1152, 4, true) == 512);
  CHECK(partial_rows(many, 576, 8, true) == 384);
  CHECK(partial_rows(many, 2312, 2, true) == 384);
  CHECK(partial_rows(many, 3072, 2, false) == 384);
  CHECK(partial_rows(many, 2304, 2, false, true) == 256);
  // Three blocks if LayerNorm has two groups of 161 to 192 threads.
  CHECK(partial_rows(many, 1536, 2, true) == 384);
  CHECK(partial_rows(many, 1536, 2, false) == 256);
  CHECK(partial_rows(many, 1280, 2, true) == 256);
  // Two rows per group, four for LayerNorm; otherwise fewer blocks.
  CHECK(partial_rows(1025, 2056, 2, false) == 512);
  CHECK(partial_rows(1025, 2056, 2, true) == 256);
  CHECK(partial_rows(1535, 2056, 2, true) == 256);
  CHECK(partial_rows(1536, 2056, 2, true) == 384);
  CHECK(partial_rows(2048, 2056, 2, true) == 512);
  CHECK(partial_rows(1536, 1536, 2, true) == 256);
  CHECK(partial_rows(3072, 1536, 2, true) == 384);
  // Two blocks of 384 threads with two vectors, if the registers suffice.
  CHECK(partial_rows(many, 6144, 2, false) == 256);
  CHECK(partial_rows(many, 6152, 2, false) == 128);
  CHECK(partial_rows(many, 3072, 4, true) == 256);
  CHECK(partial_rows(many, 5120, 2, true) == 256);
  CHECK(partial_rows(many, 5128, 2, true) == 128);
  CHECK(partial_rows(many, 5128, 2, false, true) == 128);
  CHECK(partial_rows(many, 1288, 8, false) == 128);
  // Clusters of as few threads, with a gate or for LayerNorm of float32.
  CHECK(partial_rows(many, 10240, 2, false, true) == 128);
  CHECK(partial_rows(many, 10248, 2, false, true) == 64);
  CHECK(partial_rows(many, 20480, 2, false, true) == 56);
  CHECK(partial_rows(many, 20480, 2, false) == 64);
  CHECK(partial_rows(many, 20480, 4, true) == 28);
  CHECK(partial_rows(many, 20480, 4, false) == 28);
  CHECK(partial_rows(many, 16384, 4, true) == 28);
  // An SM has room for two of these pipelines, plus 20 KiB for each.
  for (const int size : {2, 4, 8}) {
    const auto c =
        rms_norm_backward_config(many, 20480 / size, size, true, true, 16, false, 1, true);
    CHECK(2 * (c.shared_bytes + (20 << 10)) <= 228 << 10);
  }
}

TEST_CASE(
    "plain rows take the shared-memory pipeline where threads have no vector and rows enough") {
  const auto rings = [](std::int64_t cols, int size, int rounds) {
    const auto c = rms_norm_backward_config(1 << 20, cols, size, true, true, 16);
    return stages_plain_rows(c, ceil_div(cols, kVector / size), rounds);
  };
  CHECK(rings(1536, 2, 10));  // 384 threads
  CHECK_FALSE(rings(1536, 2, 9));
  CHECK(rings(576, 2, 10));  // 480 threads, 360 vectors
  CHECK(rings(3584, 2, 10));
  CHECK(rings(768, 4, 10));
  CHECK_FALSE(rings(512, 2, 1000));
  CHECK_FALSE(rings(4096, 2, 1000));
  CHECK_FALSE(rings(1024, 4, 1000));
}

TEST_CASE("dx alone by blocks of rows to 8 MiB, centred ones to 4, wide to 16, odd to 2") {
  const auto form = [](std::int64_t rows, std::int64_t cols, bool centred) {
    return rms_norm_backward_config(rows, cols, 2, false, true, 16, centred).form;
  };
  struct Bound {
    std::int64_t cols, rows;
    bool centred;
  };
  for (const auto& [cols, rows, centred] : {Bound{4096, 1024, false},
                                            {4096, 512, true},
                                            {8192, 512, false},
                                            {128, 32768, false},
                                            {16384, 512, false},
                                            {16384, 512, true},
                                            {4097, 255, false},
                                            {127, 33026, false}}) {
    CAPTURE(cols);
    CHECK(form(rows, cols, centred) == GradientForm::kSpecialised);
    CHECK(form(rows + 1, cols, centred) == GradientForm::kPersistent);
  }
}

TEST_CASE("four vectors of a thread where rows would wait for an exchange, with dsum of 16 bits") {
  struct Width {
    std::int64_t cols;
    int size;
    bool centred;
    int vectors_per_item, blocks, partial_rows;
  };
  for (const Width& of : {Width{8192, 2, false, 2, 1, 128},
                          {8200, 2, false, 4, 1, 128},
                          {12288, 2, true, 4, 1, 128},
                          {12296, 2, false, 2, 2, 64},
                          {16384, 2, true, 2, 2, 64},
                          {16392, 2, true, 4, 2, 64},
                          {24576, 2, true, 4, 2, 64},
                          {24584, 2, true, 2, 4, 28},
                          {20480, 2, false, 4, 2, 64},
                          {5120, 4, false, 4, 1, 128},
                          {2560, 8, false, 2, 2, 64}}) {
    CAPTURE(of.cols);
    const auto config = [&](bool gated, bool added) {
      return rms_norm_backward_config(8192, of.cols, of.size, true, true, 16, of.centred && !gated,
                                      1, gated, added);
    };
    const auto c = config(false, false), added = config(false, true);
    CHECK(c.vectors_per_item == of.vectors_per_item);
    CHECK(c.blocks_per_row == of.blocks);
    CHECK(c.partial_rows == of.partial_rows);
    const bool rings = of.size == 2 && of.vectors_per_item == (of.blocks > 1 ? 2 : 4);
    const int offset =
        of.centred ? 0 : stage_offset(of.vectors_per_item, of.blocks > 1, kPersistentBlock);
    CHECK((added.shared_bytes - offset) * 2 == (c.shared_bytes - offset) * (rings ? 3 : 2));
    if (of.blocks == 1 && of.vectors_per_item == 4)
      CHECK(config(true, false).vectors_per_item == 2);  // has no kernel
  }
}

TEST_CASE("an empty array needs neither workspace nor blocks of rows") {
  CHECK(rms_norm_backward_partials(0, 4096, 2) == 0);
  CHECK(rms_norm_backward_config(0, 4096, 2, true, true, 16).form == GradientForm::kSpecialised);
}

TEST_CASE("a lane of four items has vectors for three of them at most") {
  for (std::int64_t vectors = 1; vectors <= 32; ++vectors) {
    CAPTURE(vectors);
    const auto c =
        rms_norm_backward_config(1 << 20, vectors * 8, 2, true, true, 16, false, 1, true);
    CHECK(c.form == GradientForm::kPersistent);
    CHECK(c.threads == kPersistentBlock);  // with coarsening, a half or a quarter of it
    CHECK(c.lanes >= vectors);
    if (coarsens_four_lanes(vectors, c.lanes)) {
      CHECK(c.lanes % 8 == 0);
      CHECK(vectors <= c.lanes / 4 * 3);
      CHECK(vectors > c.lanes / 4 * 2);
    }
  }
}
