// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdio>
#include <cstring>

#include "membound/membound.hpp"

namespace {

int failures = 0;

void expect(bool holds, const char* what) {
  if (holds) return;
  ++failures;
  std::fprintf(stderr, "consumer: %s\n", what);
}

void expect_right_result() {
  const float x[2] = {3.0f, 4.0f};
  float out[2] = {0.0f, 0.0f};
  const auto dtype = membound::DType::kFloat32;
  const auto cpu = membound::Device::cpu();
  membound::rms_norm(membound::ConstTensorView(x, dtype, cpu, {1, 2}), nullptr, {},
                     membound::TensorView(out, dtype, cpu, {1, 2}), nullptr,
                     membound::StreamView::legacy_default());
  const float rms = std::sqrt(12.5f);
  expect(std::abs(out[0] - 3.0f / rms) < 1e-6f && std::abs(out[1] - 4.0f / rms) < 1e-6f,
         "rms_norm of (3, 4) is wrong");
}

// The exception types are matched by type across the library's border.
void expect_exception_to_cross() {
  const float x[2] = {3.0f, 4.0f};
  float out[3] = {0.0f, 0.0f, 0.0f};
  const auto dtype = membound::DType::kFloat32;
  const auto cpu = membound::Device::cpu();
  try {
    membound::rms_norm(membound::ConstTensorView(x, dtype, cpu, {1, 2}), nullptr, {},
                       membound::TensorView(out, dtype, cpu, {1, 3}), nullptr,
                       membound::StreamView::legacy_default());
    expect(false, "an output of another shape was taken");
  } catch (const membound::InvalidArgument& error) {
    expect(std::strstr(error.what(), "out") != nullptr, "the error does not name its argument");
  }
}

}  // namespace

int main() {
  expect(std::strcmp(MEMBOUND_VERSION, PACKAGE_VERSION) == 0,
         "headers and package differ in version");
  expect_right_result();
  expect_exception_to_cross();
  return failures == 0 ? 0 : 1;
}
