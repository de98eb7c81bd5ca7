// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "membound/error.hpp"
#include "membound/ops/add_rms_norm.hpp"
#include "norm.hpp"

using namespace membound_test;

namespace {

void run(const Array& x, const Array& residual, const Array* weight, const RmsNormOptions& options,
         const Array& out, const Array& residual_out, const Array* rstd) {
  add_rms_norm(x.view(), residual.view(), Optional<ConstTensorView>(weight).get(), options,
               out.view(), residual_out.view(), Optional<TensorView>(rstd).get(),
               StreamView::legacy_default());
}

struct Result {
  Result(DType dtype, const Array::Extents& shape)
      : out(dtype, shape),
        sum(dtype, shape),
        rstd(accumulate_dtype(dtype), Array::Extents(shape.begin(), shape.end() - 1)) {}
  Array out, sum, rstd;
};

// Checks residual_out and, given the row's rstd, out bit by bit; rstd is within 3 ulp of the exact
// one of the unrounded sum.
void check_against_reference(const Array& x, const Array& residual, const Array* weight,
                             const RmsNormOptions& options, const Result& got) {
  const DType dtype = x.dtype();
  const std::int64_t cols = x.shape().back();
  for (std::int64_t row = 0; row < x.size() / cols; ++row) {
    const double exact =
        static_cast<double>(exact_rstd_of(cols, options.eps, [&](std::int64_t col) {
          return sum_of(x, residual, row * cols + col);
        }));
    const double rstd = got.rstd.get(row);
    REQUIRE(std::abs(rstd - exact) <= 3 * ulp(exact, got.rstd.dtype()));
    for (std::int64_t col = 0; col < cols; ++col) {
      const std::int64_t i = row * cols + col;
      const double sum = sum_of(x, residual, i);
      REQUIRE(got.sum.get(i) == rounded(sum, dtype));
      REQUIRE(got.out.get(i) == promised(sum, rstd,
                                         factor_of(weight, col, options.weight_offset, dtype),
                                         weight != nullptr, options.rounding, dtype));
    }
  }
}

}  // namespace

TEST_CASE("add_rms_norm: every dtype, weight dtype, rounding and width against the reference") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed << ", isa " << std::string(cpu_isa()));
  for (DType dtype : kFloating) {
    for (int weight_kind = -1; weight_kind < 4; ++weight_kind) {
      for (std::int64_t cols : {1, 2, 3, 7, 8, 31, 64, 65, 127, 128, 1000, 4096, 4097}) {
        const std::int64_t rows = cols <= 128 ? 19 : 3;
        Array x(dtype, {rows, cols}), residual(dtype, {rows, cols});
        x.fill_normal(seed + static_cast<std::uint32_t>(cols), 3.0);
        residual.fill_normal(seed + 1, 2.0);
        std::unique_ptr<Array> weight;
        if (weight_kind >= 0) {
          weight = std::make_unique<Array>(kFloating[weight_kind], Array::Extents{cols});
          weight->fill_normal(seed + 2);
        }
        for (Rounding rounding : {Rounding::kOnce, Rounding::kBeforeWeight}) {
          for (double offset : {0.0, 1.0}) {
            if (offset != 0 && !weight) continue;
            CAPTURE(std::string(dtype_name(dtype)));
            CAPTURE(weight_kind);
            CAPTURE(cols);
            CAPTURE(offset);
            const RmsNormOptions options{1e-6, offset, rounding};
            Result got(dtype, {rows, cols});
            run(x, residual, weight.get(), options, got.out, got.sum, &got.rstd);
            check_against_reference(x, residual, weight.get(), options, got);
          }
        }
      }
    }
  }
}

TEST_CASE("add_rms_norm: strides, alignment, order and place change no bit") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed << ", isa " << std::string(cpu_isa()));
  for (DType dtype : kFloating) {
    for (std::int64_t cols : {1, 5, 64, 129, 4500}) {
      const Array::Extents shape{2, 3, cols};
      Array weight(dtype, {cols}), x_model(dtype, shape), residual_model(dtype, shape);
      weight.fill_normal(seed + 7);
      x_model.fill_normal(seed);
      residual_model.fill_normal(seed + 1);
      Result expected(dtype, shape);
      run(x_model, residual_model, &weight, {}, expected.out, expected.sum, &expected.rstd);
      const std::vector<Layout> layouts = layouts_of(cols);
      for (std::size_t i = 0; i < layouts.size(); ++i) {
        for (std::size_t shift = 0; shift < layouts.size(); ++shift) {
          // Each array has each layout in turn, combined with other layouts.
          const auto layout = [&](std::size_t part) -> const Layout& {
            return layouts[(i + part * shift) % layouts.size()];
          };
          const auto array = [&](std::size_t part) {
            return std::make_unique<Array>(dtype, shape, layout(part).strides, layout(part).lead);
          };
          CAPTURE(std::string(dtype_name(dtype)));
          CAPTURE(cols);
          CAPTURE(std::string(layout(0).name));
          CAPTURE(shift);
          const auto out = array(2), sum = array(3);
          Array rstd(accumulate_dtype(dtype), {2, 3}, {1, 2}, 1);
          // 0: separate; 1: out = x, sum = residual; 2: out = residual, sum = x; 3, 4: only one
          // aliases.
          for (int place = 0; place < 5; ++place) {
            CAPTURE(place);
            const auto x = array(0), residual = array(1);
            x->copy_from(x_model);
            residual->copy_from(residual_model);
            const Array& to = place == 1 ? *x : place == 2 ? *residual : *out;
            const Array& sum_to = place == 1 || place == 3   ? *residual
                                  : place == 2 || place == 4 ? *x
                                                             : *sum;
            run(*x, *residual, &weight, {}, to, sum_to, &rstd);
            REQUIRE(to.first_difference(expected.out) == -1);
            REQUIRE(sum_to.first_difference(expected.sum) == -1);
            REQUIRE(rstd.first_difference(expected.rstd) == -1);
            if (place == 0) REQUIRE(x->first_difference(x_model) == -1);
            if (place == 0) REQUIRE(residual->first_difference(residual_model) == -1);
          }
        }
      }
    }
  }
}

TEST_CASE("add_rms_norm: broadcast inputs, and x as its own residual") {
  for (DType dtype : kFloating) {
    Array x(dtype, {5, 300}), row(dtype, {5, 300}, {0, 1}), one(dtype, {5, 300}, {1, 0});
    x.fill_normal(test_seed());
    row.fill_normal(test_seed() + 1);
    for (std::int64_t i = 0; i < 1500; i += 300) one.set(i, 0.5);
    for (const Array* residual : {&row, &one, &x}) {
      Array packed(dtype, {5, 300});
      packed.copy_from(*residual);
      Result got(dtype, {5, 300}), expected(dtype, {5, 300});
      run(x, *residual, nullptr, {}, got.out, got.sum, &got.rstd);
      run(x, packed, nullptr, {}, expected.out, expected.sum, &expected.rstd);
      CHECK(got.out.first_difference(expected.out) == -1);
      CHECK(got.sum.first_difference(expected.sum) == -1);
      check_against_reference(x, *residual, nullptr, {}, got);
    }
  }
}

TEST_CASE("add_rms_norm: large, small and vanishing sums, in place too") {
  struct Values {
    double x, residual;
  };
  for (DType dtype : {DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
    for (std::int64_t cols : {1, 100, 4096, 4500}) {
      for (std::int64_t stride : {1, 2}) {
        for (Values v : {Values{1e20, 1e20},
                         {1e-20, 1e-20},
                         {1e20, 1e-20},
                         {1e20, -9e19},
                         {-1e-25, 3e-25},
                         {1e38, 1e38}}) {
          for (double eps : {0.0, 1e-6}) {
            CAPTURE(std::string(dtype_name(dtype)));
            CAPTURE(cols);
            CAPTURE(v.x);
            CAPTURE(v.residual);
            Array x(dtype, {3, cols}, {stride * cols, stride});
            Array residual(dtype, {3, cols}, {stride * cols, stride});
            // The middle row is the extreme one and must not affect the others.
            for (std::int64_t i = 0; i < 3 * cols; ++i) {
              x.set(i, i / cols == 1 ? v.x : 1.0);
              residual.set(i, i / cols == 1 ? v.residual : 2.0);
            }
            Result got(dtype, {3, cols});
            run(x, residual, nullptr, {eps}, got.out, got.sum, &got.rstd);
            long double exact = 0;
            for (std::int64_t i = 0; i < 3 * cols; ++i) {
              const double sum = sum_of(x, residual, i);
              // One value per row.
              if (i % cols == 0) exact = exact_rstd_of(1, eps, [&](std::int64_t) { return sum; });
              const double truth = static_cast<double>(sum * exact);
              REQUIRE(std::abs(got.out.get(i) - truth) <= 4 * ulp(truth, dtype));
              REQUIRE(got.sum.get(i) == rounded(sum, dtype));
            }
            run(x, residual, nullptr, {eps}, x, residual, nullptr);
            REQUIRE(x.first_difference(got.out) == -1);
            REQUIRE(residual.first_difference(got.sum) == -1);
          }
        }
      }
    }
  }
}

TEST_CASE("add_rms_norm: inf, NaN, zero sums and sums beyond float32 as IEEE has it") {
  for (DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    for (std::int64_t cols : {3, 64, 5000}) {
      Array x(dtype, {1, cols}), residual(dtype, {1, cols});
      Result got(dtype, {1, cols});
      const auto fill = [&](double a, double b) {
        for (std::int64_t i = 0; i < cols; ++i) {
          x.set(i, 1.0);
          residual.set(i, 1.0);
        }
        x.set(1, a);
        residual.set(1, b);
        run(x, residual, nullptr, {}, got.out, got.sum, &got.rstd);
      };
      fill(3e38, 3e38);
      CHECK(std::isinf(got.sum.get(1)));
      CHECK(got.rstd.get(0) == 0.0);
      for (std::int64_t i = 0; i < cols; ++i)
        REQUIRE((i == 1 ? std::isnan(got.out.get(i)) : got.out.get(i) == 0.0));
      fill(INFINITY, -INFINITY);
      CHECK(std::isnan(got.sum.get(1)));
      for (std::int64_t i = 0; i < cols; ++i) REQUIRE(std::isnan(got.out.get(i)));
      fill(NAN, 1.0);
      CHECK(std::isnan(got.rstd.get(0)));
      for (std::int64_t i = 0; i < cols; ++i) residual.set(i, -x.get(i));
      x.set(1, 2.0);
      residual.set(1, -2.0);
      run(x, residual, nullptr, {}, got.out, got.sum, &got.rstd);
      for (std::int64_t i = 0; i < cols; ++i) {
        REQUIRE(got.out.get(i) == 0.0);
        REQUIRE(got.sum.get(i) == 0.0);
      }
    }
  }
}

// One case has 17 MiB, which selects non-temporal stores.
TEST_CASE("add_rms_norm: one thread and two give the same bits, past the cache too") {
  for (DType dtype : kFloating) {
    for (std::int64_t cols : {5000, 4096}) {
      const std::int64_t rows = dtype == DType::kFloat32 && cols == 4096 ? 1100 : 60;
      Array x(dtype, {rows, cols}), residual(dtype, {rows, cols});
      x.fill_normal(test_seed());
      residual.copy_from(x);
      Result one(dtype, {rows, cols}), two(dtype, {rows, cols});
      set_cpu_threads(1);
      run(x, residual, nullptr, {}, one.out, one.sum, &one.rstd);
      set_cpu_threads(2);
      run(x, residual, nullptr, {}, two.out, two.sum, &two.rstd);
      // Results in place always use ordinary stores.
      run(x, residual, nullptr, {}, x, residual, nullptr);
      set_cpu_threads(0);
      CHECK(one.out.first_difference(two.out) == -1);
      CHECK(one.sum.first_difference(two.sum) == -1);
      CHECK(one.rstd.first_difference(two.rstd) == -1);
      CHECK(one.out.first_difference(x) == -1);
      CHECK(one.sum.first_difference(residual) == -1);
    }
  }
}

TEST_CASE("add_rms_norm: errors name the array and leave the outputs alone") {
  Array x(DType::kFloat32, {2, 8}), residual(DType::kFloat32, {2, 8});
  Array out(DType::kFloat32, {2, 8}), sum(DType::kFloat32, {2, 8}), narrow(DType::kFloat32, {2, 7});
  Array whole(DType::kInt32, {2, 8});
  out.set(0, 42.0);
  CHECK_THROWS_WITH_AS(run(x, narrow, nullptr, {}, out, sum, nullptr),
                       "add_rms_norm: argument 'residual' must have shape (2, 8), got (2, 7)",
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(run(x, residual, nullptr, {}, out, narrow, nullptr),
                       "add_rms_norm: argument 'residual_out' must have shape (2, 8), got (2, 7)",
                       InvalidArgument);
  CHECK_THROWS_AS(run(x, whole, nullptr, {}, out, sum, nullptr), TypeMismatch);
  CHECK_THROWS_AS(run(x, residual, nullptr, {}, out, whole, nullptr), TypeMismatch);
  CHECK_THROWS_AS(run(x, residual, nullptr, {}, out, out, nullptr), InvalidArgument);
  CHECK_THROWS_AS(run(x, residual, nullptr, {1e-6, NAN}, out, sum, nullptr), InvalidArgument);
  CHECK_THROWS_AS(run(x, residual, nullptr, {-1.0}, out, sum, nullptr), InvalidArgument);
  // A view of the same storage, one row further on.
  Array both(DType::kFloat32, {3, 8});
  TensorView first(both.at(0), DType::kFloat32, Device::cpu(), {2, 8});
  TensorView second(both.at(8), DType::kFloat32, Device::cpu(), {2, 8});
  const auto refused = [&](const ConstTensorView& a, const ConstTensorView& b, const TensorView& to,
                           const TensorView& sum_to) {
    CHECK_THROWS_AS(
        add_rms_norm(a, b, nullptr, {}, to, sum_to, nullptr, StreamView::legacy_default()),
        InvalidArgument);
  };
  refused(first, residual.view(), second, sum.view());
  refused(x.view(), first, second, sum.view());
  refused(first, residual.view(), out.view(), second);
  refused(x.view(), first, out.view(), second);
  CHECK(out.get(0) == 42.0);
}

TEST_CASE("add_rms_norm: no rows is no work") {
  const TensorView none(nullptr, DType::kFloat32, Device::cpu(), {0, 16});
  CHECK_NOTHROW(
      add_rms_norm(none, none, nullptr, {}, none, none, nullptr, StreamView::legacy_default()));
}
