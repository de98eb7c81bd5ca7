// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Branch-free inline exponential in float64, so that a thread can have several in flight.
namespace membound::cuda {

// Accurate to 1 ulp; subnormal results are rounded twice. e^x = 2^n * e^r with |r| <= ln(2) / 2,
// where (e^r - 1 - r) / r^2 is interpolated at Chebyshev nodes (the coefficients of
// cpu/exponential.hpp).
__device__ inline double exponential(double x) {
  constexpr double kCurve[] = {0x1p-1,
                               0x1.5555555555556p-3,
                               0x1.5555555553d68p-5,
                               0x1.11111111109b5p-7,
                               0x1.6c16c17889ef1p-10,
                               0x1.a01a01a7c2efep-13,
                               0x1.a019b9149a41cp-16,
                               0x1.71de0db2f6b19p-19,
                               0x1.28917c89a43a7p-22,
                               0x1.af389ecfc4b9cp-26};
  constexpr double kWhole = 0x1.8p52;               // adding it rounds to an integer
  x = x < -800.0 ? -800.0 : x > 800.0 ? 800.0 : x;  // results are 0 and infinity beyond; NaN passes
  const double biased = fma(x, 0x1.71547652b82fep0, kWhole);
  const double n = biased - kWhole;
  const double r = fma(n, -0x1.cf79abc9e3b3ap-40, fma(n, -0x1.62e42fefap-1, x));
  double curve = kCurve[9];
#pragma unroll
  for (int i = 8; i >= 0; --i) curve = fma(curve, r, kCurve[i]);
  const double power = 1.0 + fma(__dmul_rn(r, r), curve, r);
  // 2^n is applied in two steps, because the result may be subnormal.
  const int whole = __double2loint(biased), half = whole / 2;
  const double first = __hiloint2double((half + 1023) << 20, 0);
  return power * first * __hiloint2double((whole - half + 1023) << 20, 0);
}

}  // namespace membound::cuda
