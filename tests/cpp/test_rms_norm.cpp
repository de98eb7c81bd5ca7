// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <memory>

#include "membound/error.hpp"
#include "norm.hpp"

using namespace membound_test;

namespace {

void run(const Array& x, const Array* weight, const RmsNormOptions& options, const Array& out,
         const Array* rstd) {
  rms_norm(x.view(), Optional<ConstTensorView>(weight).get(), options, out.view(),
           Optional<TensorView>(rstd).get(), StreamView::legacy_default());
}

long double exact_rstd(const Array& x, std::int64_t row, double eps) {
  const std::int64_t cols = x.shape().back();
  return exact_rstd_of(cols, eps, [&](std::int64_t col) { return x.get(row * cols + col); });
}

// Checks every element bit by bit given the row's rstd; rstd is within 2 ulp of the exact one, and
// float32 and float64 outputs are within 4 ulp of the exact value.
void check_against_reference(const Array& x, const Array* weight, const RmsNormOptions& options,
                             const Array& out, const Array& rstd) {
  const DType dtype = x.dtype();
  const std::int64_t cols = x.shape().back();
  const bool wide = dtype == DType::kFloat64;
  long double exact = 0;
  for (std::int64_t i = 0; i < x.size(); ++i) {
    const std::int64_t row = i / cols;
    if (i % cols == 0) exact = exact_rstd(x, row, options.eps);
    const double got_rstd = rstd.get(row);
    if (i % cols == 0) {
      const double unit = ulp(static_cast<double>(exact), accumulate_dtype(dtype));
      REQUIRE(std::abs(static_cast<double>(got_rstd - exact)) <= 2 * unit);
    }
    const double factor = factor_of(weight, i % cols, options.weight_offset, dtype);
    const double expected =
        promised(x.get(i), got_rstd, factor, weight != nullptr, options.rounding, dtype);
    const double got = out.get(i);
    REQUIRE(got == expected);
    if (dtype == DType::kFloat32 || wide) {
      const long double truth = x.get(i) * exact * factor;
      REQUIRE(std::abs(static_cast<double>(got - truth)) <=
              4 * ulp(static_cast<double>(truth), dtype));
    }
  }
}

struct Result {
  std::unique_ptr<Array> out, rstd;
};

Result contiguous_result(const Array& x, const Array* weight, const RmsNormOptions& options) {
  Array::Extents rows(x.shape().begin(), x.shape().end() - 1);
  Result result{std::make_unique<Array>(x.dtype(), x.shape()),
                std::make_unique<Array>(accumulate_dtype(x.dtype()), rows)};
  Array packed(x.dtype(), x.shape());
  packed.copy_from(x);
  run(packed, weight, options, *result.out, result.rstd.get());
  return result;
}

}  // namespace

TEST_CASE("rms_norm: every dtype, weight dtype, rounding and width against the reference") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed << ", isa " << std::string(cpu_isa()));
  for (DType dtype : kFloating) {
    for (int weight_kind = -1; weight_kind < 4; ++weight_kind) {
      for (std::int64_t cols : {1,  2,   3,   7,   15,  16,  17,   31,   33,   63,   64,   65,  80,
                                96, 127, 128, 129, 257, 511, 1000, 4095, 4096, 4097, 8192, 9001}) {
        // Five rows exceed a group of narrow rows; 19 are one full group and a remainder.
        const std::int64_t rows = cols <= 129 ? 19 : 3;
        Array x(dtype, {rows, cols});
        x.fill_normal(seed + static_cast<std::uint32_t>(cols), 3.0);
        std::unique_ptr<Array> weight;
        if (weight_kind >= 0) {
          weight = std::make_unique<Array>(kFloating[weight_kind], Array::Extents{cols});
          weight->fill_normal(seed + 1);
        }
        for (Rounding rounding : {Rounding::kOnce, Rounding::kBeforeWeight}) {
          for (double offset : {0.0, 1.0}) {
            if (offset != 0 && !weight) continue;
            CAPTURE(std::string(dtype_name(dtype)));
            CAPTURE(weight_kind);
            CAPTURE(cols);
            CAPTURE(offset);
            const RmsNormOptions options{1e-6, offset, rounding};
            const Result result = contiguous_result(x, weight.get(), options);
            check_against_reference(x, weight.get(), options, *result.out, *result.rstd);
          }
        }
      }
    }
  }
}

TEST_CASE("rms_norm: wide rows stay within 4 ulp") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed << ", isa " << std::string(cpu_isa()));
  for (DType dtype : kFloating) {
    for (std::int64_t cols : {65536, 70001}) {
      Array x(dtype, {2, cols});
      x.fill_normal(seed);
      Array out(dtype, {2, cols}), rstd(accumulate_dtype(dtype), {2});
      run(x, nullptr, {}, out, &rstd);
      CAPTURE(std::string(dtype_name(dtype)));
      CAPTURE(cols);
      const double exact = static_cast<double>(exact_rstd(x, 1, 1e-6));
      CHECK(std::abs(rstd.get(1) - exact) <= 2 * ulp(exact, rstd.dtype()));
      for (std::int64_t i = cols; i < 2 * cols; ++i) {
        const double truth = x.get(i) * exact;
        REQUIRE(std::abs(out.get(i) - truth) <= 4 * ulp(truth, dtype));
      }
    }
  }
}

TEST_CASE("rms_norm: strides, alignment, order and place change no bit") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed << ", isa " << std::string(cpu_isa()));
  for (DType dtype : kFloating) {
    for (std::int64_t cols : {1, 5, 64, 100, 129, 4500}) {
      const Array::Extents shape{2, 3, cols};
      Array weight(dtype, {cols});
      weight.fill_normal(seed + 7);
      Array model(dtype, shape);
      model.fill_normal(seed);
      const Result expected = contiguous_result(model, &weight, {});

      const std::vector<Layout> layouts = layouts_of(cols);
      for (const Layout& in : layouts) {
        Array x(dtype, shape, in.strides, in.lead);
        x.copy_from(model);
        for (const Layout& to : layouts) {
          CAPTURE(std::string(dtype_name(dtype)));
          CAPTURE(cols);
          CAPTURE(std::string(in.name));
          CAPTURE(std::string(to.name));
          Array out(dtype, shape, to.strides, to.lead);
          Array rstd(accumulate_dtype(dtype), {2, 3}, {1, 2}, 1);
          run(x, &weight, {}, out, &rstd);
          REQUIRE(out.first_difference(*expected.out) == -1);
          REQUIRE(rstd.first_difference(*expected.rstd) == -1);
        }
        run(x, &weight, {}, x, nullptr);
        REQUIRE(x.first_difference(*expected.out) == -1);
      }
      Array apart(dtype, {cols}, {-2}, 1);
      apart.copy_from(weight);
      Array out(dtype, shape);
      run(model, &apart, {}, out, nullptr);
      CHECK(out.first_difference(*expected.out) == -1);
    }
  }
}

TEST_CASE("rms_norm: one row broadcast over many, one value over all columns") {
  for (DType dtype : kFloating) {
    Array row(dtype, {5, 300}, {0, 1});
    row.fill_normal(test_seed());
    Array constant(dtype, {5, 300}, {1, 0});
    for (std::int64_t i = 0; i < 1500; i += 300) constant.set(i, 3.0);
    Array weight(dtype, {300}, {0});
    weight.set(0, 0.5);
    for (const Array* x : {&row, &constant}) {
      Array out(dtype, {5, 300});
      run(*x, &weight, {}, out, nullptr);
      CHECK(out.first_difference(*contiguous_result(*x, &weight, {}).out) == -1);
    }
  }
}

TEST_CASE("rms_norm: a row's bits do not depend on its batch") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed);
  for (DType dtype : kFloating) {
    for (std::int64_t cols : {48, 128, 1024, 5000}) {
      const std::int64_t rows = 40;
      Array x(dtype, {rows, cols});
      x.fill_normal(seed);
      const Result all = contiguous_result(x, nullptr, {});
      for (std::int64_t row : {0, 1, 15, 16, 31, 39}) {
        Array alone(dtype, {1, cols});
        for (std::int64_t i = 0; i < cols; ++i) alone.set(i, x.get(row * cols + i));
        const Result one = contiguous_result(alone, nullptr, {});
        for (std::int64_t i = 0; i < cols; ++i) {
          REQUIRE(std::memcmp(one.out->at(i), all.out->at(row * cols + i), dtype_size(dtype)) == 0);
        }
      }
    }
  }
}

TEST_CASE("rms_norm: errors leave the output alone") {
  Array x(DType::kFloat32, {2, 8}), out(DType::kFloat32, {2, 8}), narrow(DType::kFloat32, {2, 7});
  x.fill_normal(test_seed());
  out.set(0, 42.0);
  CHECK_THROWS_AS(run(x, nullptr, {}, narrow, nullptr), InvalidArgument);
  CHECK_THROWS_AS(run(x, nullptr, {-1.0}, out, nullptr), InvalidArgument);
  CHECK_THROWS_AS(run(x, nullptr, {NAN}, out, nullptr), InvalidArgument);
  CHECK_THROWS_AS(run(x, nullptr, {1e-6, NAN}, out, nullptr), InvalidArgument);
  Array whole(DType::kInt32, {2, 8});
  CHECK_THROWS_AS(run(x, nullptr, {}, whole, nullptr), TypeMismatch);
  Array rstd(DType::kFloat64, {2});
  CHECK_THROWS_AS(run(x, nullptr, {}, out, &rstd), TypeMismatch);
  CHECK(out.get(0) == 42.0);
}

TEST_CASE("rms_norm: no rows is no work") {
  ConstTensorView x(nullptr, DType::kFloat32, Device::cpu(), {0, 16});
  TensorView out(nullptr, DType::kFloat32, Device::cpu(), {0, 16});
  CHECK_NOTHROW(rms_norm(x, nullptr, {}, out, nullptr, StreamView::legacy_default()));
}
