// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "layer_norm.hpp"
#include "membound/error.hpp"

using namespace membound_test;

TEST_CASE("add_layer_norm: every dtype, weight and bias dtype, offset and width") {
  test_layer_values(/*adds=*/true);
}

TEST_CASE("add_layer_norm: a mean far above the spread costs no digits") {
  test_layer_far_mean(/*adds=*/true);
}

TEST_CASE("add_layer_norm: strides, alignment, order and place change no bit") {
  test_layer_layouts(/*adds=*/true);
}

TEST_CASE("add_layer_norm: one thread and two give the same bits, past the cache too") {
  test_layer_threads(/*adds=*/true);
}

TEST_CASE("add_layer_norm: a row's bits do not depend on its batch") { test_layer_batch(true); }

TEST_CASE("add_layer_norm: staged results have the bits of direct ones") {
  test_layer_staged(true);
}

TEST_CASE("add_layer_norm: zeros for a residual give layer_norm, and x as its own twice of it") {
  for (DType dtype : kFloating) {
    for (std::int64_t cols : {128, 4500}) {
      LayerCase c(dtype, {5, cols}, 2, 2, true, test_seed());
      for (std::int64_t i = 0; i < c.residual.size(); ++i) c.residual.set(i, 0.0);
      LayerOutputs added(dtype, {5, cols}), plain(dtype, {5, cols});
      run_layer(c.inputs(), {}, added);
      LayerInputs in = c.inputs();
      in.residual = nullptr;
      run_layer(in, {}, plain);
      CHECK(added.first_difference(plain, false) == nullptr);
      CHECK(added.sum.first_difference(c.x) == -1);
      in.residual = &c.x;
      run_layer(in, {}, added);
      check_layer(in, {}, added);
    }
  }
}

TEST_CASE("add_layer_norm: large, small and vanishing sums, in place too") {
  struct Values {
    double x, residual;
  };
  for (DType dtype : {DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
    for (std::int64_t cols : {2, 100, 4096, 4500}) {
      for (std::int64_t stride : {1, 2}) {
        for (Values v :
             {Values{1e20, 1e20}, {1e20, 1e-20}, {1e20, -9e19}, {-1e-25, 3e-25}, {1e38, 1e38}}) {
          for (double eps : {0.0, 1e-6}) {
            CAPTURE(std::string(dtype_name(dtype)));
            CAPTURE(cols);
            CAPTURE(stride);
            CAPTURE(v.x);
            CAPTURE(v.residual);
            CAPTURE(eps);
            Array x(dtype, {3, cols}, {stride * cols, stride});
            Array residual(dtype, {3, cols}, {stride * cols, stride});
            // The middle row is the extreme one and must not affect the others.
            for (std::int64_t i = 0; i < 3 * cols; ++i) {
              const double sign = i % cols % 3 == 0 ? -1 : 1;
              x.set(i, sign * (i / cols == 1 ? v.x : 1.0));
              residual.set(i, sign * (i / cols == 1 ? v.residual : 2.0));
            }
            LayerOutputs got(dtype, {3, cols});
            const LayerInputs in{&x, &residual, nullptr, nullptr};
            run_layer(in, {eps}, got);
            Moments exact{};
            for (std::int64_t i = 0; i < 3 * cols; ++i) {
              const auto value = [&](std::int64_t col) { return in.value(i / cols * cols + col); };
              if (i % cols == 0) exact = exact_moments_of(cols, eps, value);
              const double truth = static_cast<double>(exact.deviation(in.value(i)) * exact.rstd);
              REQUIRE(std::abs(got.out.get(i) - truth) <=
                      0.51 * ulp(truth, dtype) + 4 * ulp(1.0, accumulate_dtype(dtype)));
              REQUIRE(got.sum.get(i) == rounded(in.value(i), dtype));
            }
            run_layer(in, {eps}, x, residual, nullptr, nullptr, StreamView::legacy_default());
            REQUIRE(x.first_difference(got.out) == -1);
            REQUIRE(residual.first_difference(got.sum) == -1);
          }
        }
      }
    }
  }
}

TEST_CASE("add_layer_norm: inf, NaN, zero sums and sums beyond float32 as IEEE has it") {
  for (DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    for (std::int64_t cols : {3, 64, 5000}) {
      Array x(dtype, {1, cols}), residual(dtype, {1, cols});
      LayerOutputs got(dtype, {1, cols});
      const auto fill = [&](double a, double b) {
        for (std::int64_t i = 0; i < cols; ++i) {
          x.set(i, 1.0);
          residual.set(i, i % 2 ? 1.0 : 2.0);
        }
        x.set(1, a);
        residual.set(1, b);
        run_layer({&x, &residual, nullptr, nullptr}, {}, got);
      };
      for (const auto& [a, b] : {std::pair{3e38, 3e38}, {INFINITY, -INFINITY}, {NAN, 1.0}}) {
        fill(a, b);
        CHECK(!std::isfinite(got.sum.get(1)));
        CHECK(got.sum.get(0) == 3.0);
        for (std::int64_t i = 0; i < cols; ++i) REQUIRE(std::isnan(got.out.get(i)));
      }
      for (std::int64_t i = 0; i < cols; ++i) residual.set(i, -x.get(i));
      x.set(1, 2.0);
      residual.set(1, -2.0);
      run_layer({&x, &residual, nullptr, nullptr}, {}, got);
      for (std::int64_t i = 0; i < cols; ++i) {
        REQUIRE(got.out.get(i) == 0.0);
        REQUIRE(got.sum.get(i) == 0.0);
      }
    }
  }
}

TEST_CASE("add_layer_norm: errors name the array and leave the outputs alone") {
  const LayerCase c(DType::kFloat32, {2, 8}, 2, 2, true, test_seed());
  LayerOutputs to(DType::kFloat32, {2, 8});
  Array narrow(DType::kFloat32, {2, 7}), whole(DType::kInt32, {2, 8});
  to.out.set(0, 42.0);
  const StreamView stream = StreamView::legacy_default();
  LayerInputs in = c.inputs();
  in.residual = &narrow;
  CHECK_THROWS_WITH_AS(run_layer(in, {}, to),
                       "add_layer_norm: argument 'residual' must have shape (2, 8), got (2, 7)",
                       InvalidArgument);
  in.residual = &whole;
  CHECK_THROWS_AS(run_layer(in, {}, to), TypeMismatch);
  in = c.inputs();
  CHECK_THROWS_WITH_AS(run_layer(in, {}, to.out, narrow, nullptr, nullptr, stream),
                       "add_layer_norm: argument 'residual_out' must have shape (2, 8), got (2, 7)",
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(run_layer(in, {}, to.out, to.out, nullptr, nullptr, stream),
                       "add_layer_norm: argument 'residual_out' must not overlap 'out'",
                       InvalidArgument);
  // A view of the same storage, one row further on.
  Array both(DType::kFloat32, {3, 8});
  const TensorView first(both.at(0), DType::kFloat32, Device::cpu(), {2, 8});
  const TensorView second(both.at(8), DType::kFloat32, Device::cpu(), {2, 8});
  CHECK_THROWS_AS(add_layer_norm(first, c.residual.view(), nullptr, nullptr, {}, to.out.view(),
                                 second, nullptr, nullptr, stream),
                  InvalidArgument);
  CHECK_THROWS_AS(add_layer_norm(c.x.view(), first, nullptr, nullptr, {}, second, to.sum.view(),
                                 nullptr, nullptr, stream),
                  InvalidArgument);
  CHECK(to.out.get(0) == 42.0);
}

TEST_CASE("add_layer_norm: no rows is no work") {
  const TensorView none(nullptr, DType::kFloat32, Device::cpu(), {0, 16});
  CHECK_NOTHROW(add_layer_norm(none, none, nullptr, nullptr, {}, none, none, nullptr, nullptr,
                               StreamView::legacy_default()));
}
