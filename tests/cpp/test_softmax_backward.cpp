// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>

#include "array.hpp"
#include "membound/device.hpp"
#include "membound/error.hpp"
#include "membound/ops/softmax_backward.hpp"

using namespace membound_test;

namespace {

const StreamView kStream = StreamView::legacy_default();

}  // namespace

TEST_CASE("softmax_backward: every dtype and width against the definition") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed << ", isa " << std::string(cpu_isa()));
  for (DType dtype : kFloating) {
    const double rounding = dtype == DType::kFloat64 ? 0x1p-53 : 0x1p-24;
    for (std::int64_t cols : {1, 2, 7, 16, 33, 64, 200, 1000, 2048, 2049, 9001}) {
      CAPTURE(std::string(dtype_name(dtype)));
      CAPTURE(cols);
      Array dy(dtype, {3, cols}), y(dtype, {3, cols}), dx(dtype, {3, cols});
      dy.fill_normal(seed);
      y.fill_normal(seed + 1);
      softmax_backward(dy.view(), y.view(), 0.3, dx.view(), kStream);
      for (std::int64_t row = 0; row < 3; ++row) {
        double sum = 0, size = 0;
        for (std::int64_t i = row * cols; i < (row + 1) * cols; ++i) {
          sum += dy.get(i) * y.get(i);
          size += std::abs(dy.get(i) * y.get(i));
        }
        for (std::int64_t i = row * cols; i < (row + 1) * cols; ++i) {
          const double right = 0.3 * y.get(i) * (dy.get(i) - sum);
          const double terms = 0.3 * std::abs(y.get(i)) * (std::abs(dy.get(i)) + size);
          CAPTURE(i);
          REQUIRE(std::abs(dx.get(i) - right) <= 8 * rounding * terms + 0.51 * ulp(right, dtype));
        }
      }
    }
  }
}

TEST_CASE("softmax_backward: any strides, and in place, have the bits of contiguous rows") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed);
  for (DType dtype : kFloating) {
    for (std::int64_t cols : {5, 300, 2500}) {
      Array dy(dtype, {3, cols}), transposed(dtype, {3, cols}, {1, 3}, 1), y(dtype, {3, cols});
      dy.fill_normal(seed);
      y.fill_normal(seed + 1);
      transposed.copy_from(dy);
      Array right(dtype, {3, cols}), dx(dtype, {3, cols}, {-2 * cols, 2}, 4 * cols);
      softmax_backward(dy.view(), y.view(), 1.0, right.view(), kStream);
      softmax_backward(transposed.view(), y.view(), 1.0, dx.view(), kStream);
      CHECK(dx.first_difference(right) == -1);
      softmax_backward(transposed.view(), y.view(), 1.0, transposed.view(), kStream);
      CHECK(transposed.first_difference(right) == -1);
      softmax_backward(dy.view(), y.view(), 1.0, y.view(), kStream);
      CHECK(y.first_difference(right) == -1);
    }
  }
}

TEST_CASE("softmax_backward: no rows, and what is refused") {
  Array y(DType::kFloat32, {2, 4}), dx(DType::kFloat32, {2, 4}), half(DType::kFloat16, {2, 4});
  Array nothing(DType::kFloat32, {0, 4});
  CHECK_NOTHROW(softmax_backward(nothing.view(), nothing.view(), 1.0, nothing.view(), kStream));
  CHECK_THROWS_AS(softmax_backward(half.view(), y.view(), 1.0, dx.view(), kStream), TypeMismatch);
  CHECK_THROWS_AS(softmax_backward(nothing.view(), y.view(), 1.0, dx.view(), kStream),
                  InvalidArgument);
  CHECK_THROWS_AS(softmax_backward(y.view(), y.view(), NAN, dx.view(), kStream), InvalidArgument);
}
