// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "cuda/norm/rms_norm_quant_config.hpp"
#include "tuning_text.hpp"

using namespace membound::cuda::tuning;

TEST_CASE("a quantised row has the tree of the norm, whose bits it takes") {
  for (const std::int64_t cols : {8, 128, 2048, 4096, 8192, 16384, 65536, 1 << 20}) {
    for (const std::int64_t rows : {1, 600, 4096, 1 << 20}) {
      for (int options = 0; options < 4; ++options) {
        const bool aligned = options & 1, residual = options & 2;
        const RmsNormConfig norm = rms_norm_config(rows, cols, 2, 16);
        const RmsNormConfig quant = rms_norm_quant_config(rows, cols, 2, aligned, residual, 16);
        CAPTURE(to_string(quant));
        CHECK(quant.form == norm.form);
        CHECK(quant.groups == norm.groups);
        CHECK(quant.vectors_per_item == norm.vectors_per_item);
        CHECK(quant.threads * quant.items_per_thread == norm.threads * norm.items_per_thread);
        CHECK((aligned || quant.form != RowForm::kBlock || quant.items_per_thread == 1));
        // Only these have kernels with two items per thread.
        if (residual && is_half_block(quant)) CHECK(quant.items_per_thread == 1);
      }
    }
  }
}

TEST_CASE("threads of a quantised row by rows, dtype and residual") {
  const auto items_per_thread_of = [](std::int64_t rows, std::int64_t cols, int size,
                                      bool residual) {
    return rms_norm_quant_config(rows, cols, size, true, residual, 16).items_per_thread;
  };
  CHECK(items_per_thread_of(2048, 4096, 2, false) == 1);
  CHECK(items_per_thread_of(4096, 4096, 2, false) == 2);
  CHECK(items_per_thread_of(2048, 2048, 4, false) == 2);
  CHECK(items_per_thread_of(1 << 20, 4096, 2, true) == 1);
  CHECK(items_per_thread_of(2048, 5120, 2, false) == 2);
  CHECK(items_per_thread_of(2048, 5120, 2, true) == 2);
}

TEST_CASE("quantised rows in one warp where they are many, by as many virtual threads") {
  const auto by_warp = [](std::int64_t rows, std::int64_t cols, int size, bool residual = false) {
    const RmsNormConfig norm = rms_norm_config(rows, cols, size, 16);
    const RmsNormConfig quant = rms_norm_quant_config(rows, cols, size, true, residual, 16);
    if (quant.form != RowForm::kWarp) return false;
    CHECK(norm.form == RowForm::kBlock);
    CHECK(quant.lanes * quant.items_per_thread == norm.threads * norm.items_per_thread);
    return true;
  };
  CHECK_FALSE(by_warp(1024, 768, 2));
  CHECK(by_warp(2048, 768, 2));
  CHECK_FALSE(by_warp(2047, 1152, 2));
  CHECK(by_warp(2048, 1152, 2));
  CHECK_FALSE(by_warp(4095, 1536, 2));
  CHECK(by_warp(4096, 1536, 2));
  CHECK_FALSE(by_warp(1 << 20, 2048, 2));  // fills a block
  CHECK(by_warp(8192, 320, 4));
  CHECK_FALSE(by_warp(4096, 768, 4));
  CHECK(by_warp(8192, 768, 4));
  CHECK_FALSE(by_warp(1 << 20, 1152, 2, true));
  CHECK_FALSE(by_warp(1 << 20, 576, 8));
}
