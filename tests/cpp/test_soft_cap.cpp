// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>

#include "array.hpp"
#include "membound/device.hpp"
#include "membound/error.hpp"
#include "membound/ops/soft_cap.hpp"

using namespace membound_test;

namespace {

const StreamView kStream = StreamView::legacy_default();

// In units of the last place; results of 16 bits are rounded from float32.
double allowed(double ulps, DType dtype) { return dtype_size(dtype) == 2 ? 0.51 : ulps; }

constexpr double kLeastSlope = 1e-34;  // less may be 0

double slope_of(double u) { return 1 / (std::cosh(u) * std::cosh(u)); }

// Tells -0 from 0.
bool is_same(double a, double b) {
  return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b);
}

}  // namespace

TEST_CASE("soft_cap: every dtype and width against the definition") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed << ", isa " << std::string(cpu_isa()));
  for (DType dtype : kFloating) {
    for (double scale : {1e-6, 1.0, 50.0, 500.0}) {
      for (std::int64_t cols : {1, 2, 7, 16, 33, 64, 200, 1000, 9001}) {
        CAPTURE(std::string(dtype_name(dtype)));
        CAPTURE(scale);
        CAPTURE(cols);
        Array dy(dtype, {3, cols}), x(dtype, {3, cols}), out(dtype, {3, cols}),
            dx(dtype, {3, cols});
        dy.fill_normal(seed);
        x.fill_normal(seed + 1, scale);
        soft_cap(x.view(), 30.0, out.view(), kStream);
        soft_cap_backward(dy.view(), x.view(), 30.0, dx.view(), kStream);
        for (std::int64_t i = 0; i < x.size(); ++i) {
          const double u = x.get(i) / 30, right = 30 * std::tanh(u),
                       slope = dy.get(i) * slope_of(u);
          CAPTURE(x.get(i));
          REQUIRE(std::abs(out.get(i) - right) <= allowed(5, dtype) * ulp(right, dtype));
          // The rounding error of x / cap counts 2 |u| times in the slope.
          const double ulps = allowed(6 + 2 * std::abs(u), dtype);
          REQUIRE(std::abs(dx.get(i) - slope) <= ulps * ulp(slope, dtype) + kLeastSlope * 5);
        }
      }
    }
  }
}

TEST_CASE("soft_cap: any strides, and in place, have the bits of contiguous rows") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed);
  for (DType dtype : kFloating) {
    for (std::int64_t cols : {5, 300, 2500}) {
      CAPTURE(cols);
      Array x(dtype, {7, cols}), transposed(dtype, {7, cols}, {1, 7}, 1), dy(dtype, {7, cols});
      Array right(dtype, {7, cols}), apart(dtype, {7, cols}, {-2 * cols, 2}, 4 * cols);
      x.fill_normal(seed, 40);
      dy.fill_normal(seed + 1);
      transposed.copy_from(x);
      soft_cap(x.view(), 30.0, right.view(), kStream);
      soft_cap(transposed.view(), 30.0, apart.view(), kStream);
      CHECK(apart.first_difference(right) == -1);
      soft_cap(transposed.view(), 30.0, transposed.view(), kStream);
      CHECK(transposed.first_difference(right) == -1);

      transposed.copy_from(x);
      soft_cap_backward(dy.view(), x.view(), 30.0, right.view(), kStream);
      soft_cap_backward(dy.view(), transposed.view(), 30.0, apart.view(), kStream);
      CHECK(apart.first_difference(right) == -1);
      soft_cap_backward(dy.view(), transposed.view(), 30.0, transposed.view(), kStream);
      CHECK(transposed.first_difference(right) == -1);
      soft_cap_backward(dy.view(), x.view(), 30.0, dy.view(), kStream);
      CHECK(dy.first_difference(right) == -1);
    }
  }
}

TEST_CASE("soft_cap: what is not finite, and numbers next to 0") {
  for (DType dtype : kFloating) {
    CAPTURE(std::string(dtype_name(dtype)));
    const double least = ulp(0, dtype);
    Array x(dtype, {6}), out(dtype, {6}), dy(dtype, {6}), dx(dtype, {6});
    const double values[] = {NAN, INFINITY, -INFINITY, -0.0, least, -3 * least};
    for (int i = 0; i < 6; ++i) x.set(i, values[i]), dy.set(i, 2);
    soft_cap(x.view(), 50.0, out.view(), kStream);
    soft_cap_backward(dy.view(), x.view(), 50.0, dx.view(), kStream);
    const double right[] = {NAN, 50, -50, -0.0, least, -3 * least}, slopes[] = {NAN, 0, 0, 1, 1, 1};
    for (int i = 0; i < 6; ++i) {
      CAPTURE(i);
      CHECK(is_same(out.get(i), right[i]));
      CHECK(is_same(dx.get(i), 2 * slopes[i]));
    }
  }
}

TEST_CASE("soft_cap: no elements, and what is refused") {
  Array x(DType::kFloat32, {2, 4}), half(DType::kFloat16, {2, 4}), ints(DType::kInt32, {2, 4});
  Array none(DType::kFloat32, {0, 4}), row(DType::kFloat32, {4}), scalar(DType::kFloat32, {});
  Array no_columns(DType::kFloat32, {2, 0});
  for (const Array* empty : {&none, &no_columns}) {
    CHECK_NOTHROW(soft_cap(empty->view(), 1.0, empty->view(), kStream));
    CHECK_NOTHROW(soft_cap_backward(empty->view(), empty->view(), 1.0, empty->view(), kStream));
  }
  CHECK_THROWS_AS(soft_cap(x.view(), 1.0, half.view(), kStream), TypeMismatch);
  CHECK_THROWS_AS(soft_cap(ints.view(), 1.0, ints.view(), kStream), TypeMismatch);
  CHECK_THROWS_AS(soft_cap(x.view(), 1.0, row.view(), kStream), InvalidArgument);
  CHECK_THROWS_AS(soft_cap(scalar.view(), 1.0, scalar.view(), kStream), InvalidArgument);
  CHECK_THROWS_AS(soft_cap_backward(none.view(), x.view(), 1.0, x.view(), kStream),
                  InvalidArgument);
  TensorView shifted = x.view();
  shifted.data = static_cast<float*>(shifted.data) + 1;
  CHECK_THROWS_AS(soft_cap(shifted, 1.0, x.view(), kStream), InvalidArgument);
  const auto refuses = [&](double cap, const char* text) {
    CHECK_THROWS_WITH_AS(soft_cap(x.view(), cap, x.view(), kStream), text, InvalidArgument);
  };
  refuses(0.0, "soft_cap: argument 'cap' must be finite and above 0, got 0");
  refuses(-1.0, "soft_cap: argument 'cap' must be finite and above 0, got -1");
  refuses(NAN, "soft_cap: argument 'cap' must be finite and above 0, got nan");
  refuses(INFINITY, "soft_cap: argument 'cap' must be finite and above 0, got inf");
  refuses(1e-60, "soft_cap: argument 'cap' must be above 0 in float32, got 1e-60");
  refuses(1e60, "soft_cap: argument 'cap' must be finite in float32, got 1e+60");
}
