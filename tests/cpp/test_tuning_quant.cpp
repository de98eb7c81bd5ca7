// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "cuda/tuning/rms_norm_quant.hpp"
#include "tuning_text.hpp"

using namespace membound::cuda::tuning;

TEST_CASE("a quantised row has the tree of the norm, whose bits it takes") {
  for (const std::int64_t cols : {8, 128, 4096, 8192, 16384, 65536, 1 << 20}) {
    for (const std::int64_t rows : {1, 4096, 1 << 20}) {
      for (const bool aligned : {true, false}) {
        const RmsNormConfig norm = rms_norm_config(rows, cols, 2, 16);
        const RmsNormConfig quant = rms_norm_quant_config(rows, cols, 2, aligned, 16);
        CAPTURE(to_string(quant));
        CHECK(quant.form == norm.form);
        CHECK(quant.groups == norm.groups);
        CHECK(quant.vecs == norm.vecs);
        CHECK(quant.threads * quant.fold == norm.threads * norm.fold);
        CHECK((aligned || quant.form != RowForm::kBlock || quant.fold == 1));
      }
    }
  }
}
