// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "layer_norm.hpp"
#include "membound/error.hpp"

using namespace membound_test;

TEST_CASE("layer_norm: every dtype, weight and bias dtype, offset and width") {
  test_layer_values(/*adds=*/false);
}

TEST_CASE("layer_norm: a mean far above the spread costs no digits") {
  test_layer_far_mean(/*adds=*/false);
}

TEST_CASE("layer_norm: strides, alignment, order and place change no bit") {
  test_layer_layouts(/*adds=*/false);
}

TEST_CASE("layer_norm: one thread and two give the same bits, past the cache too") {
  test_layer_threads(/*adds=*/false);
}

TEST_CASE("layer_norm: a row's bits do not depend on its batch") { test_layer_batch(false); }

TEST_CASE("layer_norm: staged results have the bits of direct ones") { test_layer_staged(false); }

namespace {

void check_row(DType dtype, std::int64_t cols, double even, double odd, double eps,
               std::int64_t stride) {
  CAPTURE(std::string(dtype_name(dtype)));
  CAPTURE(cols);
  CAPTURE(even);
  CAPTURE(odd);
  CAPTURE(eps);
  CAPTURE(stride);
  // The middle row is the extreme one and must not affect the others.
  Array x(dtype, {3, cols}, {stride * cols, stride});
  for (std::int64_t i = 0; i < 3 * cols; ++i) {
    const bool is_even = i % cols % 2 == 0;
    x.set(i, i / cols == 1 ? (is_even ? even : odd) : (is_even ? 1.0 : 2.0));
  }
  LayerOutputs got(dtype, {3, cols});
  const LayerInputs in{&x, nullptr, nullptr, nullptr};
  run_layer(in, {eps}, got);
  const double unit = ulp(1.0, accumulate_dtype(dtype));
  for (std::int64_t row = 0; row < 3; ++row) {
    const Moments exact =
        exact_moments_of(cols, eps, [&](std::int64_t col) { return x.get(row * cols + col); });
    for (std::int64_t i = row * cols; i < (row + 1) * cols; ++i) {
      const double truth = static_cast<double>(exact.deviation(x.get(i)) * exact.rstd);
      REQUIRE(std::abs(got.out.get(i) - truth) <= 0.51 * ulp(truth, dtype) + 4 * unit);
    }
    const double rstd = rounded(static_cast<double>(exact.rstd), got.rstd.dtype());
    if (std::isinf(rstd)) {
      CHECK(got.rstd.get(row) == rstd);
    } else {
      CHECK(std::abs(got.rstd.get(row) - rstd) <= 4 * ulp(rstd, got.rstd.dtype()));
    }
    const double mean = static_cast<double>(exact.mean);
    CHECK(std::abs(got.mean.get(row) - mean) <=
          ulp(mean, got.mean.dtype()) + 4 * unit * (std::abs(even) + std::abs(odd)));
  }
}

}  // namespace

TEST_CASE("layer_norm: large, small and mixed magnitudes") {
  INFO("isa " << std::string(cpu_isa()));
  // Odd widths, where the mean of a row is none of its values; width 1 has a variance of zero.
  for (std::int64_t cols : {5, 6, 128, 4096, 9001}) {
    for (std::int64_t stride : {1, 2}) {
      for (double eps : {0.0, 1e-6}) {
        for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
          check_row(dtype, cols, 1e20, -1e20, eps, stride);
          check_row(dtype, cols, 1e30, 3e30, eps, stride);
          check_row(dtype, cols, 3e38, 1e38, eps, stride);
          check_row(dtype, cols, 3e38, -3e38, eps, stride);
          check_row(dtype, cols, 1e20, 1.0, eps, stride);
          check_row(dtype, cols, 1e20, 1e-20, eps, stride);
          check_row(dtype, cols, 1e-20, 3e-20, eps, stride);
          check_row(dtype, cols, 1e-30, -1e-30, eps, stride);
          check_row(dtype, cols, 1e-38, 1e-30, eps, stride);
          check_row(dtype, cols, 1e-39, 3e-39, eps, stride);
        }
        check_row(DType::kFloat16, cols, 65504.0, -65504.0, eps, stride);
        check_row(DType::kFloat16, cols, 0x1p-24, 0x1p-23, eps, stride);
        check_row(DType::kFloat64, cols, 1e200, -1e200, eps, stride);
        check_row(DType::kFloat64, cols, 1.7e308, 1.1e308, eps, stride);
        check_row(DType::kFloat64, cols, 1e200, 1.0, eps, stride);
        check_row(DType::kFloat64, cols, 1e-200, 3e-200, eps, stride);
        check_row(DType::kFloat64, cols, 1e-310, -1e-310, eps, stride);
      }
    }
  }
}

TEST_CASE("layer_norm: constant rows, inf and NaN as IEEE has it") {
  for (DType dtype : kFloating) {
    for (std::int64_t cols : {1, 3, 64, 5000}) {
      CAPTURE(std::string(dtype_name(dtype)));
      CAPTURE(cols);
      Array x(dtype, {1, cols});
      Array bias(DType::kFloat32, {cols});
      bias.fill_normal(test_seed());
      LayerOutputs got(dtype, {1, cols});
      // float16 sums 5000 equal values of 11 digits without rounding.
      for (double value : {0.0, -0.375, 1000.0}) {
        for (std::int64_t i = 0; i < cols; ++i) x.set(i, value);
        run_layer({&x, nullptr, nullptr, &bias}, {1e-6}, got);
        for (std::int64_t i = 0; i < cols; ++i)
          REQUIRE(got.out.get(i) == rounded(bias.get(i), dtype));
        CHECK(got.mean.get(0) == value);
        CHECK(got.rstd.get(0) == doctest::Approx(1000.0));
        run_layer({&x, nullptr, nullptr, nullptr}, {0.0}, got);
        for (std::int64_t i = 0; i < cols; ++i) REQUIRE(std::isnan(got.out.get(i)));
        CHECK(got.mean.get(0) == value);
        CHECK(std::isinf(got.rstd.get(0)));
      }
      // The sums of squares overflow, and so would the rstd of the scaled row.
      if (dtype != DType::kFloat16) {
        // For the second value, three times the mean is not the sum of three of them.
        for (double value : {0x1p126, dtype == DType::kBFloat16 ? -0x1p100 : 1e30}) {
          for (std::int64_t i = 0; i < cols; ++i) x.set(i, value);
          for (double eps : {1e-6, 1e-30}) {
            run_layer({&x, nullptr, nullptr, &bias}, {eps}, got);
            for (std::int64_t i = 0; i < cols; ++i)
              REQUIRE(got.out.get(i) == rounded(bias.get(i), dtype));
            CHECK(got.rstd.get(0) == doctest::Approx(1 / std::sqrt(eps)));
          }
        }
        for (std::int64_t i = 0; i < cols; ++i) x.set(i, 1.0);
      }
      x.set(0, -INFINITY);
      run_layer({&x, nullptr, nullptr, &bias}, {}, got);
      CHECK(got.mean.get(0) == -INFINITY);
      CHECK(std::isnan(got.rstd.get(0)));
      for (std::int64_t i = 0; i < cols; ++i) REQUIRE(std::isnan(got.out.get(i)));
      x.set(cols - 1, NAN);
      run_layer({&x, nullptr, nullptr, nullptr}, {}, got);
      CHECK(std::isnan(got.mean.get(0)));
      CHECK(std::isnan(got.rstd.get(0)));
      for (std::int64_t i = 0; i < cols; ++i) REQUIRE(std::isnan(got.out.get(i)));
    }
  }
}

// Every payload: rounding to bfloat16 must not turn a NaN into an infinity or a number.
TEST_CASE("layer_norm: a NaN in weight or bias reaches its column as one") {
  for (DType dtype : kFloating) {
    for (std::uint32_t bits : {0x7fffffffu, 0x7f800001u, 0xffffffffu, 0x7fc08000u, 0x7f80ffffu}) {
      LayerCase c(dtype, {20, 70}, 2, 2, false, test_seed());
      std::memcpy(c.weight->at(33), &bits, 4);
      std::memcpy(c.bias->at(69), &bits, 4);
      LayerOutputs got(dtype, {20, 70});
      run_layer(c.inputs(), {}, got);
      for (std::int64_t i = 0; i < 20 * 70; ++i)
        REQUIRE(std::isnan(got.out.get(i)) == (i % 70 == 33 || i % 70 == 69));
    }
  }
}

TEST_CASE("layer_norm: one row broadcast over many, one value over all columns") {
  for (DType dtype : kFloating) {
    Array row(dtype, {5, 300}, {0, 1}), constant(dtype, {5, 300}, {1, 0});
    row.fill_normal(test_seed());
    for (std::int64_t i = 0; i < 1500; i += 300) constant.set(i, 3.0);
    Array weight(dtype, {300}, {0}), bias(dtype, {300}, {0});
    weight.set(0, 0.5);
    bias.set(0, -2.0);
    for (const Array* x : {&row, &constant}) {
      LayerOutputs got(dtype, {5, 300});
      const LayerInputs in{x, nullptr, &weight, &bias};
      run_layer(in, {}, got);
      check_layer(in, {}, got);
    }
  }
}

TEST_CASE("layer_norm: each statistic alone, and neither") {
  const LayerCase c(DType::kFloat32, {33, 130}, 2, 2, false, test_seed());
  LayerOutputs all(DType::kFloat32, {33, 130}), one(DType::kFloat32, {33, 130});
  run_layer(c.inputs(), {}, all);
  const StreamView stream = StreamView::legacy_default();
  run_layer(c.inputs(), {}, one.out, one.sum, &one.mean, nullptr, stream);
  run_layer(c.inputs(), {}, one.out, one.sum, nullptr, &one.rstd, stream);
  CHECK(one.first_difference(all, false) == nullptr);
  LayerOutputs none(DType::kFloat32, {33, 130});
  run_layer(c.inputs(), {}, none.out, none.sum, nullptr, nullptr, stream);
  CHECK(none.out.first_difference(all.out) == -1);
}

TEST_CASE("layer_norm: errors name the array and leave the outputs alone") {
  const LayerCase c(DType::kFloat32, {2, 8}, 2, 2, false, test_seed());
  LayerOutputs to(DType::kFloat32, {2, 8});
  Array narrow(DType::kFloat32, {2, 7}), short_one(DType::kFloat32, {7}), whole(DType::kInt32, {8});
  Array statistic64(DType::kFloat64, {2}), statistics(DType::kFloat32, {1});
  to.out.set(0, 42.0);
  to.mean.set(0, 43.0);
  const auto fails = [&](const LayerInputs& in, const LayerNormOptions& options, const Array& out,
                         const Array* mean, const Array* rstd, const char* text) {
    std::string got;
    try {
      run_layer(in, options, out, to.sum, mean, rstd, StreamView::legacy_default());
    } catch (const Error& error) {
      got = error.what();
    }
    CHECK(got == std::string("layer_norm: argument ") + text);
  };
  const LayerInputs in = c.inputs();
  fails(in, {}, narrow, &to.mean, nullptr, "'out' must have shape (2, 8), got (2, 7)");
  fails({in.x, nullptr, in.weight, &short_one}, {}, to.out, &to.mean, nullptr,
        "'bias' must have shape (8,), the last axis of 'x', or with three axes and more that "
        "of its last two, got (7,)");
  fails({in.x, nullptr, in.weight, &whole}, {}, to.out, &to.mean, nullptr,
        "'bias' must be float16, bfloat16, float32 or float64, got int32");
  fails({in.x, nullptr, &short_one, in.bias}, {}, to.out, &to.mean, nullptr,
        "'weight' must have shape (8,), the last axis of 'x', or with three axes and more that "
        "of its last two, got (7,)");
  fails({in.x, nullptr, nullptr, in.bias}, {1e-6, NAN}, to.out, &to.mean, nullptr,
        "'weight_offset' must be finite, got nan");
  fails(in, {-1.0}, to.out, &to.mean, nullptr, "'eps' must be finite and not negative, got -1");
  fails(in, {}, to.out, &statistic64, nullptr, "'mean' must be float32, got float64");
  fails(in, {}, to.out, &statistics, nullptr, "'mean' must have shape (2,), got (1,)");
  fails(in, {}, to.out, &to.mean, &statistic64, "'rstd' must be float32, got float64");
  fails(in, {}, to.out, &to.mean, &to.mean, "'rstd' must not overlap 'mean'");
  // out overlaps the bias, which must be refused.
  const TensorView bias_in_out(to.out.at(8), DType::kFloat32, Device::cpu(), {8});
  const ConstTensorView bias(bias_in_out);
  CHECK_THROWS_WITH_AS(layer_norm(c.x.view(), nullptr, &bias, {}, to.out.view(), nullptr, nullptr,
                                  StreamView::legacy_default()),
                       "layer_norm: argument 'out' must not overlap 'bias'", InvalidArgument);
  CHECK(to.out.get(0) == 42.0);
  CHECK(to.mean.get(0) == 43.0);
}

TEST_CASE("layer_norm: no rows is no work") {
  const TensorView none(nullptr, DType::kFloat32, Device::cpu(), {0, 16});
  const TensorView statistic(nullptr, DType::kFloat32, Device::cpu(), {0});
  CHECK_NOTHROW(layer_norm(none, nullptr, nullptr, {}, none, &statistic, &statistic,
                           StreamView::legacy_default()));
}
