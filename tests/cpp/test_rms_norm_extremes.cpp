// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Magnitudes at the limits of each dtype, and IEEE results for inf, NaN and zero.
#include <doctest/doctest.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "array.hpp"
#include "membound/ops/rms_norm.hpp"

using namespace membound_test;

namespace {

void run(const Array& x, double eps, Array& out, Array& rstd) {
  const TensorView rstd_view = rstd.view();
  rms_norm(x.view(), nullptr, {eps}, out.view(), &rstd_view, StreamView::legacy_default());
}

void check_row(DType dtype, std::int64_t cols, double even, double odd, double eps) {
  CAPTURE(std::string(dtype_name(dtype)));
  CAPTURE(cols);
  CAPTURE(even);
  CAPTURE(odd);
  CAPTURE(eps);
  // The middle row is the extreme one and must not affect the others.
  Array x(dtype, {3, cols}), out(dtype, {3, cols}), rstd(accumulate_dtype(dtype), {3});
  for (std::int64_t i = 0; i < cols; ++i) {
    x.set(i, 1.0);
    x.set(cols + i, i % 2 == 0 ? even : odd);
    x.set(2 * cols + i, 2.0);
  }
  run(x, eps, out, rstd);
  long double sum = 0;
  for (std::int64_t i = cols; i < 2 * cols; ++i)
    sum += static_cast<long double>(x.get(i)) * x.get(i);
  const long double exact = 1 / sqrtl(sum / cols + eps);
  for (std::int64_t i = cols; i < 2 * cols; ++i) {
    const double truth = static_cast<double>(x.get(i) * exact);
    REQUIRE(std::abs(out.get(i) - truth) <= 4 * ulp(truth, dtype));
  }
  const double expected_rstd = rounded(static_cast<double>(exact), rstd.dtype());
  if (std::isinf(expected_rstd)) {
    CHECK(rstd.get(1) == expected_rstd);
  } else {
    CHECK(std::abs(rstd.get(1) - expected_rstd) <= 2 * ulp(expected_rstd, rstd.dtype()));
  }
  CHECK(out.get(0) == doctest::Approx(1.0 / std::sqrt(1.0 + eps)).epsilon(0.01));
  CHECK(out.get(3 * cols - 1) == doctest::Approx(2.0 / std::sqrt(4.0 + eps)).epsilon(0.01));
}

}  // namespace

TEST_CASE("rms_norm: large, small and mixed magnitudes") {
  INFO("isa " << std::string(cpu_isa()));
  for (std::int64_t cols : {1, 6, 128, 4096, 9001}) {
    for (double eps : {0.0, 1e-6}) {
      for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        check_row(dtype, cols, 1e20, -1e20, eps);
        check_row(dtype, cols, 3e38, 3e38, eps);
        check_row(dtype, cols, 1e20, 1e-20, eps);
        check_row(dtype, cols, 1e-20, 1e-20, eps);
        check_row(dtype, cols, 1e-25, -1e-25, eps);
        check_row(dtype, cols, 1e-38, 1e-30, eps);
        check_row(dtype, cols, 1e-40, 1e-40, eps);
      }
      check_row(DType::kFloat16, cols, 65504.0, -65504.0, eps);
      check_row(DType::kFloat16, cols, 0x1p-24, 0x1p-24, eps);
      check_row(DType::kFloat64, cols, 1e200, -1e200, eps);
      check_row(DType::kFloat64, cols, 1.7e308, 1.7e308, eps);
      check_row(DType::kFloat64, cols, 1e200, 1e-200, eps);
      check_row(DType::kFloat64, cols, 1e-200, 1e-160, eps);
      check_row(DType::kFloat64, cols, 1e-310, 1e-310, eps);
    }
  }
}

TEST_CASE("rms_norm: zero, inf and NaN as IEEE has it") {
  for (DType dtype : kFloating) {
    for (std::int64_t cols : {3, 64, 5000}) {
      CAPTURE(std::string(dtype_name(dtype)));
      CAPTURE(cols);
      Array x(dtype, {1, cols}), out(dtype, {1, cols}), rstd(accumulate_dtype(dtype), {1});
      for (std::int64_t i = 0; i < cols; ++i) x.set(i, 0.0);
      run(x, 1e-6, out, rstd);
      for (std::int64_t i = 0; i < cols; ++i) REQUIRE(out.get(i) == 0.0);
      CHECK(rstd.get(0) == doctest::Approx(1000.0));
      run(x, 0.0, out, rstd);
      for (std::int64_t i = 0; i < cols; ++i) REQUIRE(std::isnan(out.get(i)));
      CHECK(std::isinf(rstd.get(0)));

      for (std::int64_t i = 0; i < cols; ++i) x.set(i, 1.0);
      x.set(1, -INFINITY);
      run(x, 1e-6, out, rstd);
      CHECK(rstd.get(0) == 0.0);
      for (std::int64_t i = 0; i < cols; ++i) {
        REQUIRE((i == 1 ? std::isnan(out.get(i)) : out.get(i) == 0.0));
      }

      x.set(1, NAN);
      run(x, 1e-6, out, rstd);
      CHECK(std::isnan(rstd.get(0)));
      for (std::int64_t i = 0; i < cols; ++i) REQUIRE(std::isnan(out.get(i)));
    }
  }
}

// Every payload: rounding to bfloat16 must not turn a NaN into an infinity or a number.
TEST_CASE("rms_norm: a NaN in the weight reaches the output as one") {
  for (DType dtype : kFloating) {
    for (std::uint32_t bits : {0x7fffffffu, 0x7f800001u, 0xffffffffu, 0x7fc08000u, 0x7f80ffffu}) {
      Array x(dtype, {1, 70}), weight(DType::kFloat32, {70}), out(dtype, {1, 70});
      x.fill_normal(test_seed());
      weight.fill_normal(test_seed());
      for (std::int64_t at : {0, 33, 69}) std::memcpy(weight.at(at), &bits, 4);
      const ConstTensorView weight_view = weight.view();
      rms_norm(x.view(), &weight_view, {}, out.view(), nullptr, StreamView::legacy_default());
      for (std::int64_t i = 0; i < 70; ++i) {
        REQUIRE(std::isnan(out.get(i)) == (i == 0 || i == 33 || i == 69));
      }
    }
  }
}

// Reads and rounds all 65536 bit patterns, subnormals included.
TEST_CASE("rms_norm: every 16-bit pattern is read and written right") {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    Array x(dtype, {65536, 64}), out(dtype, {65536, 64}), rstd(DType::kFloat32, {65536});
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      const auto pattern = static_cast<std::uint16_t>(bits);
      std::memcpy(x.at(bits * 64), &pattern, 2);
      for (std::int64_t i = 1; i < 64; ++i) x.set(bits * 64 + i, i % 2 ? 1.0 : -1.0);
    }
    run(x, 1e-6, out, rstd);
    for (std::int64_t row = 0; row < 65536; ++row) {
      const double value = x.get(row * 64);
      const double got = out.get(row * 64);
      if (std::isnan(value) || std::isinf(value)) {
        REQUIRE(std::isnan(got));
        continue;
      }
      const double sum = value * value + 63;
      const double truth = value / std::sqrt(sum / 64 + 1e-6);
      REQUIRE(std::abs(got - truth) <= 0.51 * ulp(truth, dtype));
      REQUIRE(std::signbit(got) == std::signbit(value));
    }
  }
}

#if defined(__x86_64__)
// One thread and two, as each thread of the pool has its own floating-point mode.
TEST_CASE("rms_norm: the caller's floating-point mode changes no bit and comes back") {
  constexpr unsigned kFlushAndTruncate = 0x8040 | 0x6000;
  for (DType dtype : kFloating) {
    Array x(dtype, {64, 4096}), weight(dtype, {4096}), out(dtype, {64, 4096});
    Array expected(dtype, {64, 4096});
    x.fill_normal(test_seed());
    // Products are subnormal where the dtype has float32's exponents.
    for (std::int64_t i = 0; i < 4096; ++i) weight.set(i, i % 2 ? 1.0 : 1e-39);
    const ConstTensorView weight_view = weight.view();
    const auto compute = [&](const Array& to) {
      rms_norm(x.view(), &weight_view, {}, to.view(), nullptr, StreamView::legacy_default());
    };
    compute(expected);
    if (dtype == DType::kFloat32)
      CHECK(std::fpclassify(static_cast<float>(expected.get(0))) == FP_SUBNORMAL);
    for (int threads : {1, 2}) {
      set_cpu_threads(threads);
      const unsigned before = _mm_getcsr();
      _mm_setcsr(before | kFlushAndTruncate);
      compute(out);
      const unsigned after = _mm_getcsr();
      _mm_setcsr(before);
      set_cpu_threads(0);
      CHECK((after & kFlushAndTruncate) == kFlushAndTruncate);
      CHECK(out.first_difference(expected) == -1);
    }
  }
}
#endif
