// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "core/layout.hpp"

namespace membound {

// Sums of squares outside the safe range are recomputed on values scaled by a power of two, so that
// float32 rows of 1e20 or 1e-25 give accurate results (a plain sum would be inf or 0).

// The range within which a plain sum of squares is accurate. With eps far above what underflow
// could lose, small sums need no second pass, so zero rows cost nothing extra.
template <class Accumulate>
struct SafeRange {
  Accumulate low;
  Accumulate high;
};

inline SafeRange<float> safe_range(double eps, float) {
  return {eps >= 1e-20 ? 0.0f : 1e-28f, 1e37f};
}
inline SafeRange<double> safe_range(double eps, double) {
  return {eps >= 1e-200 ? 0.0 : 1e-270, 1e300};
}

// The power of two that scales 2^reference to about 2^40: squares then sum without overflow up to
// 2^45 columns, and what underflows is below the smallest result. The limit keeps the scale, and
// its square in double, representable.
MEMBOUND_HOST_DEVICE inline int safe_exponent(int reference, int limit) {
  const int exponent = 40 - reference;
  return exponent > limit ? limit : (exponent < -limit ? -limit : exponent);
}
// reference: the exponent of the largest magnitude, or of sqrt(eps) if that is larger.
inline int safe_exponent(double largest, double eps, int limit) {
  const double reference = fmax(largest, sqrt(eps));
  if (!(reference > 0.0 && reference <= DBL_MAX)) return 0;
  return safe_exponent(ilogb(reference), limit);
}
inline constexpr int kSafeExponentLimitFloat = 100;
inline constexpr int kSafeExponentLimitDouble = 1000;

}  // namespace membound
