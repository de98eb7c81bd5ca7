// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "core/safe_scale.hpp"

using namespace membound;

TEST_CASE("safe_scale: the scale brings the largest value near 2^40 and stays in its limits") {
  const int limit = kSafeExponentLimitFloat;
  for (double largest : {1e-40, 1e-20, 1.0, 1e20, 3e38}) {
    const int exponent = safe_exponent(largest, 0.0, limit);
    CHECK(std::abs(exponent) <= limit);
    const double scaled = std::ldexp(largest, exponent);
    if (std::abs(exponent) < limit) {
      CHECK(scaled >= 0x1p40);
      CHECK(scaled < 0x1p41);
    }
  }
  CHECK(safe_exponent(1e-40, 0.0, limit) == limit);
}

TEST_CASE("safe_scale: eps counts where it is the larger one; nothing to scale is scale 1") {
  CHECK(safe_exponent(1e-30, 1.0, kSafeExponentLimitFloat) == 40);
  CHECK(safe_exponent(0.0, 0.0, kSafeExponentLimitFloat) == 0);
  CHECK(safe_exponent(INFINITY, 1e-6, kSafeExponentLimitFloat) == 0);
}

TEST_CASE("safe_scale: a usual eps vouches for small sums") {
  CHECK(safe_range(1e-6, 0.0f).low == 0.0f);
  CHECK(safe_range(0.0, 0.0f).low > 0.0f);
  CHECK(safe_range(0.0, 0.0).low > 0.0);
}
