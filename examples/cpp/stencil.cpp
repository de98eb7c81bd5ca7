// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// A stencil on arrays: heat that spreads along a rod, by steps of t[i] += (t[i - 1] - 2 t[i] +
// t[i + 1]) / 4 with ends that let no heat out.
#include "membound/array/stencil.hpp"

#include <cmath>
#include <cstdio>
#include <exception>

#include "membound/array/reduction.hpp"

namespace {

using membound::NDArray;

NDArray after_steps(NDArray temperatures, int steps) {
  const NDArray weights = NDArray::from<double>({0.25, 0.5, 0.25});
  const membound::array::StencilOptions insulated{/*axis=*/0, membound::array::Boundary::kReflect};
  for (int step = 0; step < steps; ++step)
    temperatures = membound::array::stencil_1d(temperatures, weights, insulated);
  return temperatures;
}

// A rod of which one end is hot: the heat stays in it, and evens out.
bool evens_out() {
  constexpr std::int64_t kLength = 32;
  NDArray rod = NDArray::zeros({kLength}, membound::DType::kFloat64);
  rod.index({membound::Slice{0, 4}}).fill(100.0);
  const NDArray later = after_steps(rod, 4000);
  const double total = membound::array::sum(later).item().real;
  const double coldest = membound::array::min(later).item().real;
  std::printf("stencil: heat 400 -> %.9g, coldest place 0 -> %.3g\n", total, coldest);
  return std::abs(total - 400) < 1e-9 && std::abs(coldest - 12.5) < 0.1;
}

}  // namespace

int main() {
  try {
    return evens_out() ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "stencil: %s\n", error.what());
    return 1;
  }
}
