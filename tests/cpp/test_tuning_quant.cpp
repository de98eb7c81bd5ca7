// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "cuda/tuning/rms_norm_quant.hpp"
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
        CHECK(quant.vecs == norm.vecs);
        CHECK(quant.threads * quant.fold == norm.threads * norm.fold);
        CHECK((aligned || quant.form != RowForm::kBlock || quant.fold == 1));
        // Kernels of two virtual threads a thread are for these alone.
        if (residual && quant.max_warps == 8 && quant.vecs == 2) CHECK(quant.fold == 1);
      }
    }
  }
}

TEST_CASE("threads of a quantised row by rows, dtype and residual") {
  const auto fold_of = [](std::int64_t rows, std::int64_t cols, int size, bool residual) {
    return rms_norm_quant_config(rows, cols, size, true, residual, 16).fold;
  };
  CHECK(fold_of(2048, 4096, 2, false) == 1);
  CHECK(fold_of(4096, 4096, 2, false) == 2);
  CHECK(fold_of(2048, 2048, 4, false) == 2);
  CHECK(fold_of(1 << 20, 4096, 2, true) == 1);
  CHECK(fold_of(2048, 5120, 2, false) == 2);
  CHECK(fold_of(2048, 5120, 2, true) == 2);
}
