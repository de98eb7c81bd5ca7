// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Constants of gelu, for both back ends.
namespace membound {

// The lower tail of the normal distribution, for t from 0 to kEdge (beyond, gelu(-t) rounds to 0):
//
//   Phi(-t) = exp(-t^2 / 2) * Q(t),   Q(t) = d * sum of kTail[i] * u^i,
//   d = 1 / (t + kCentre),   u = 1 - 2 * kCentre * d
//
// The sum interpolates Q(t) * (t + kCentre), which is smooth, at Chebyshev nodes in u.
template <class A>
struct Gelu;

template <>
struct Gelu<float> {
  static constexpr float kEdge = 14.75f;
  static constexpr float kSubnormalEdge = 12.5f;     // gelu(-t) may be subnormal beyond
  static constexpr float kDensity = 0x1.988454p-2f;  // 1 / sqrt(2 * pi)
  static constexpr float kCentre = 4;
  // Within 2^-26.
  static constexpr float kTail[] = {
      0x1.82b4bcp-1f,  -0x1.373e3ap-1f, 0x1.8c6d8ep-2f,  -0x1.7dffdep-3f, 0x1.eed934p-5f,
      -0x1.ed3b04p-8f, -0x1.cda30ap-9f, 0x1.9afcc2p-10f, 0x1.91120ep-13f, -0x1.05353ep-13f};
  // w(x) = x * (kLinear + kCubic * x^2) = 2 * sqrt(2 / pi) * (x + 0.044715 * x^3), and the low
  // parts of both factors; beyond kTanhEdge, gelu_tanh(x) rounds to x or 0.
  static constexpr float kLinear = 0x1.988454p+0f, kLinearRest = -0x1.857936p-25f;
  static constexpr float kCubic = 0x1.2444f2p-4f, kCubicRest = 0x1.49b16ap-29f;
  static constexpr float kTanhEdge = 11;
};

template <>
struct Gelu<double> {
  static constexpr double kEdge = 39;
  static constexpr double kSubnormalEdge = 37;
  static constexpr double kDensity = 0x1.9884533d43651p-2;
  static constexpr double kCentre = 6;
  // Within 2^-55.
  static constexpr double kTail[] = {
      0x1.8e010d2b8a0e9p-1,   -0x1.66eaa7d09640ep-1, 0x1.234fe3fd925efp-1,  -0x1.a7d6577269cbep-2,
      0x1.1267d7383c5bdp-2,   -0x1.38b069dbb262cp-3, 0x1.33e777766f611p-4,  -0x1.fba9d530e4273p-6,
      0x1.48a83bac2258cp-7,   -0x1.1764cd6ffeb08p-9, 0x1.13bcc2a58d338p-15, 0x1.7c573a1ff2b09p-13,
      -0x1.0f98c31704ce1p-14, 0x1.20756eb66b638p-20, 0x1.c860711dad8dap-18, -0x1.e2443a1811be3p-20,
      -0x1.d3e93b5db34c1p-22, 0x1.474d625ec2759p-22, 0x1.b64995b191e76p-27, -0x1.44cb5b0f9500ap-25,
      0x1.9577b8b27c09ep-34,  0x1.73d58c320c33ep-29};
  static constexpr double kLinear = 0x1.9884533d43651p+0, kLinearRest = -0x1.cbc0d30ebfd15p-54;
  static constexpr double kCubic = 0x1.2444f2a4d8b4bp-4, kCubicRest = -0x1.6c843a29d1c7p-61;
  static constexpr double kTanhEdge = 22;
};

// For 16-bit dtypes on a CPU: within 2^-18, an eightieth of an ulp of float16.
struct GeluOf16Bits : Gelu<float> {
  static constexpr float kCentre = 5;
  static constexpr float kTail[] = {0x1.89d3a6p-1f,  -0x1.54ad1p-1f, 0x1.fb3abep-2f,
                                    -0x1.40f80ap-2f, 0x1.50fc16p-3f, -0x1.1f3516p-4f,
                                    0x1.68183cp-6f};
};

}  // namespace membound
