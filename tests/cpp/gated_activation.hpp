// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <memory>

#include "gated.hpp"
#include "membound/device.hpp"
#include "membound/ops/gated_activation_backward.hpp"

// Shared by the tests of gated activations.
namespace membound_test {

inline constexpr Activation kKinds[] = {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh,
                                        Activation::kSigmoid, Activation::kRelu2};

// The function, its slope, and the magnitude of the slope's terms, without cancellation.
struct ExactActivation {
  long double value, slope, size;
};
inline ExactActivation exact_activation(Activation kind, long double g, long double alpha) {
  const long double pi = acosl(-1);
  if (kind == Activation::kRelu2) {
    const long double positive = fmaxl(g, 0);
    return {positive * positive, 2 * positive, 2 * positive};
  }
  if (kind == Activation::kGelu) {
    const long double below = erfcl(-g / sqrtl(2)) / 2, density = expl(-g * g / 2) / sqrtl(2 * pi);
    return {g * below, below + g * density, below + fabsl(g) * density};
  }
  long double z = alpha * g, steep = z;
  if (kind == Activation::kGeluTanh) {
    const long double factor = 2 * sqrtl(2 / pi), cubic = 0.044715L;
    z = factor * (g + cubic * g * g * g);
    steep = factor * (g + 3 * cubic * g * g * g);
  }
  const long double s = sigmoid(z), rest = sigmoid(-z);
  if (kind == Activation::kSigmoid) return {s, alpha * s * rest, alpha * s * rest};
  return {g * s, s * (1 + steep * rest), s * (1 + fabsl(steep) * rest)};
}

// Options: none, and all of them.
inline std::vector<GatedActivationOptions> options_of(Activation kind) {
  std::vector<GatedActivationOptions> all(2);
  for (GatedActivationOptions& one : all) one.kind = kind;
  all[1].limit = 1.5;
  all[1].up_offset = 1;
  if (kind == Activation::kSilu || kind == Activation::kSigmoid) all[1].alpha = 1.702;
  return all;
}

// In ulps; the cancellation by an offset of up is smaller than this for the values used here.
inline double allowed(DType dtype) { return dtype_size(dtype) == 2 ? 0.53 : 12; }

struct ExactElement {
  long double out, dgate, dup, dgate_terms;
};

// Inputs of matching shapes; up is a multiple of 1/64, so that adding its offset is exact.
struct GateCase {
  Array gate, up, dy, scale;
  ConstTensorView up_view, scale_view;

  GateCase(DType dtype, const Array::Extents& shape, std::uint32_t seed)
      : gate(dtype, shape),
        up(dtype, shape),
        dy(dtype, shape),
        scale(accumulate_dtype(dtype), {shape.begin(), shape.end() - 1}) {
    gate.fill_normal(seed, 3);
    up.fill_normal(seed + 1);
    for (std::int64_t i = 0; i < up.size(); ++i) up.set(i, std::round(up.get(i) * 64) / 64);
    dy.fill_normal(seed + 2);
    scale.fill_normal(seed + 3);
    up_view = up.view();
    scale_view = scale.view();
  }

  ExactElement element(const GatedActivationOptions& options, std::int64_t i) const {
    const long double g = gate.get(i), u = up.get(i);
    const auto limit = static_cast<long double>(options.limit);
    const long double factor = fminl(fmaxl(u, -limit), limit) + options.up_offset;
    const ExactActivation found =
        exact_activation(options.kind, fminl(g, limit), static_cast<long double>(options.alpha));
    const long double of_row = scale.get(i / gate.shape().back()), d = dy.get(i) * of_row;
    return {found.value * factor * of_row, g > limit ? 0 : d * found.slope * factor,
            fabsl(u) > limit ? 0 : d * found.value, fabsl(d * factor) * found.size};
  }
};

}  // namespace membound_test
