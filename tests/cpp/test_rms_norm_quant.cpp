// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "cpu/isa.hpp"
#include "membound/error.hpp"
#include "quant.hpp"

using namespace membound_test;

namespace {

using Options = RmsNormQuantOptions;

void run(const Array& x, const Array* weight, const Options& options, const Array& out,
         const Array* static_scale, const Array* scale) {
  rms_norm_quant(x.view(), Optional<ConstTensorView>(weight).get(), options, out.view(),
                 Optional<ConstTensorView>(static_scale).get(), Optional<TensorView>(scale).get(),
                 StreamView::legacy_default());
}

// The results of rms_norm for the same arguments.
std::unique_ptr<Array> norm_of(const Array& x, const Array* weight, const Options& options) {
  auto y = std::make_unique<Array>(x.dtype(), x.shape());
  rms_norm(x.view(), Optional<ConstTensorView>(weight).get(),
           {options.eps, options.weight_offset, options.rounding}, y->view(), nullptr,
           StreamView::legacy_default());
  return y;
}

// Rows of arbitrary values: without eps ones are normalised to ones, and the values are the weight.
struct Numbers {
  Numbers(DType dtype, const std::vector<double>& values)
      : x(dtype, {2, static_cast<std::int64_t>(values.size())}),
        weight(dtype, {static_cast<std::int64_t>(values.size())}) {
    for (std::int64_t i = 0; i < x.size(); ++i) x.set(i, 1.0);
    for (std::size_t i = 0; i < values.size(); ++i)
      weight.set(static_cast<std::int64_t>(i), values[i]);
  }

  // Compares with the definition, for each kind of scale.
  void check(DType out_dtype, Options options = {}) const {
    options.eps = 0;
    const auto y = norm_of(x, &weight, options);
    for (std::int64_t i = 0; i < weight.size(); ++i)
      REQUIRE(std::memcmp(y->at(i), weight.at(i), dtype_size(x.dtype())) == 0);
    for (std::int64_t group : {0, 64, 128}) {
      options.group_size = group;
      Quantised got(out_dtype, x.shape(), group);
      run(x, &weight, options, got.out, nullptr, &got.scale);
      CAPTURE(group);
      check_quantised(*y, options, got.out, &got.scale, nullptr);
    }
    options.group_size = 0;
    options.scale_upper_bound = INFINITY;
    for (const float scale : {1.0f, 0.3f, -2.0f, 0.0f, 1e-42f, INFINITY, NAN}) {
      Array out(out_dtype, x.shape());
      run(x, &weight, options, out, static_scale_of(scale).get(), nullptr);
      CAPTURE(scale);
      check_quantised(*y, options, out, nullptr, &scale);
    }
  }

  Array x, weight;
};

double next(double value, DType dtype, int by) { return value + by * ulp(value, dtype); }

// The value of every code, the midpoints between codes, and the values next to those.
std::vector<double> boundaries(DType out_dtype, DType dtype) {
  const std::vector<double> numbers = Codes(out_dtype).numbers();
  std::vector<double> values;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    values.push_back(numbers[i]);
    if (i + 1 == numbers.size()) break;
    const double middle = (numbers[i] + numbers[i + 1]) / 2;
    for (int by = -1; by <= 1; ++by) values.push_back(next(middle, dtype, by));
  }
  const std::size_t positive = values.size();
  for (std::size_t i = 0; i < positive; ++i) values.push_back(-values[i]);
  return values;
}

}  // namespace

TEST_CASE("rms_norm_quant: every dtype, scale, group, bound and width against the definition") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed << ", isa " << std::string(cpu_isa()));
  for (DType dtype : kFloating) {
    for (DType out_dtype : kQuantised) {
      for (std::int64_t cols : {1, 2, 17, 63, 64, 65, 100, 128, 129, 320, 1000, 4097}) {
        Array x(dtype, {5, cols}), weight(kFloating[cols % 4], {cols});
        x.fill_normal(seed + static_cast<std::uint32_t>(cols), 3.0);
        weight.fill_normal(seed + 1);
        Options options{.weight_offset = 1.0, .rounding = Rounding::kBeforeWeight};
        const auto y = norm_of(x, &weight, options);
        CAPTURE(std::string(dtype_name(dtype)));
        CAPTURE(std::string(dtype_name(out_dtype)));
        CAPTURE(cols);
        for (std::int64_t group : {0, 64, 128}) {
          for (double bound : {double{INFINITY}, 1.5 / limit_of(out_dtype)}) {
            options.group_size = group;
            options.scale_upper_bound = bound;
            Quantised got(out_dtype, x.shape(), group);
            run(x, &weight, options, got.out, nullptr, &got.scale);
            CAPTURE(group);
            CAPTURE(bound);
            check_quantised(*y, options, got.out, &got.scale, nullptr);
          }
        }
        options.group_size = 0;
        options.scale_upper_bound = INFINITY;
        const float scale = static_cast<float>(2.0 / limit_of(out_dtype));
        Array out(out_dtype, x.shape());
        run(x, &weight, options, out, static_scale_of(scale).get(), nullptr);
        check_quantised(*y, options, out, nullptr, &scale);
      }
    }
  }
}

TEST_CASE("rms_norm_quant: every code comes back, and ties go to the even one") {
  for (DType out_dtype : kQuantised) {
    std::vector<double> all;
    for (int code = 0; code < 256; ++code) {
      const double number = number_of(code, out_dtype);
      if (std::abs(number) <= limit_of(out_dtype)) all.push_back(number);
    }
    for (DType dtype : kFloating) {
      CAPTURE(std::string(dtype_name(dtype)));
      CAPTURE(std::string(dtype_name(out_dtype)));
      const Numbers codes(dtype, all);
      Array out(out_dtype, codes.x.shape());
      run(codes.x, &codes.weight, {.eps = 0}, out, static_scale_of(1).get(), nullptr);
      for (std::size_t i = 0; i < all.size(); ++i) {
        const double got = number_of(code_at(out, static_cast<std::int64_t>(i)), out_dtype);
        REQUIRE(got == all[i]);
        REQUIRE(std::signbit(got) == std::signbit(all[i]));
      }
      Numbers(dtype, boundaries(out_dtype, dtype)).check(out_dtype);
    }
  }
}

TEST_CASE("rms_norm_quant: zeros, extremes, inf and NaN") {
  const auto row = [](std::int64_t cols, double rest, std::int64_t at, double value) {
    std::vector<double> values(static_cast<std::size_t>(cols), rest);
    values[static_cast<std::size_t>(at)] = value;
    return values;
  };
  for (DType dtype : kFloating) {
    const double tiny = ulp(0, dtype), huge = format_of(dtype).largest;
    for (DType out_dtype : kQuantised) {
      CAPTURE(std::string(dtype_name(dtype)));
      CAPTURE(std::string(dtype_name(out_dtype)));
      for (std::int64_t cols : {1, 70, 300}) {
        for (std::int64_t at : {std::int64_t{0}, cols - 1}) {
          CAPTURE(cols);
          CAPTURE(at);
          for (const auto& values :
               {row(cols, 0.0, at, -0.0), row(cols, 1.0, at, huge), row(cols, 0.0, at, -huge),
                row(cols, tiny, at, -3 * tiny), row(cols, 1.0, at, tiny),
                row(cols, 1.0, at, INFINITY), row(cols, 0.0, at, -INFINITY),
                row(cols, -2.0, at, NAN), row(cols, INFINITY, at, NAN)}) {
            const Numbers numbers(dtype, values);
            numbers.check(out_dtype);
            numbers.check(out_dtype, {.scale_upper_bound = 1e-3});
            numbers.check(out_dtype, {.scale_upper_bound = 1e-40});
          }
        }
      }
    }
  }
}

TEST_CASE("rms_norm_quant: strides, alignment and transposed scales change nothing") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed);
  for (DType dtype : kFloating) {
    for (std::int64_t cols : {1, 100, 200, 4500}) {
      const Array::Extents shape{2, 3, cols};
      Array model(dtype, shape), weight(dtype, {cols});
      model.fill_normal(seed);
      weight.fill_normal(seed + 1);
      for (std::int64_t group : {0, 64}) {
        const Options options{.group_size = group};
        Quantised expected(DType::kFloat8E4M3, shape, group);
        run(model, &weight, options, expected.out, nullptr, &expected.scale);
        const Array::Extents scales = expected.scale.shape();
        for (const Layout& layout : layouts_of(cols)) {
          CAPTURE(std::string(dtype_name(dtype)));
          CAPTURE(cols);
          CAPTURE(std::string(layout.name));
          Array x(dtype, shape, layout.strides, layout.lead);
          x.copy_from(model);
          Array out(DType::kFloat8E4M3, shape, layout.strides, layout.lead);
          Array::Extents first_axis_first{1, 2, 6};
          first_axis_first.resize(scales.size());
          Array scale(DType::kFloat32, scales, first_axis_first, 1);
          run(x, &weight, options, out, nullptr, &scale);
          REQUIRE(out.first_difference(expected.out) == -1);
          REQUIRE(scale.first_difference(expected.scale) == -1);
          Array packed(DType::kFloat8E4M3, shape);
          run(x, &weight, options, packed, nullptr, &scale);
          REQUIRE(packed.first_difference(expected.out) == -1);
          run(model, &weight, options, out, nullptr, &scale);
          REQUIRE(out.first_difference(expected.out) == -1);
        }
      }
    }
  }
}

TEST_CASE("rms_norm_quant: a weight for each head") {
  Array x(DType::kBFloat16, {3, 2, 4, 130}), weight(DType::kFloat32, {4, 130});
  x.fill_normal(test_seed());
  weight.fill_normal(test_seed() + 1);
  const auto y = norm_of(x, &weight, {});
  for (std::int64_t group : {0, 64}) {
    const Options options{.group_size = group};
    Quantised got(DType::kInt8, x.shape(), group);
    run(x, &weight, options, got.out, nullptr, &got.scale);
    check_quantised(*y, options, got.out, &got.scale, nullptr);
  }
  const float scale = 0.02f;
  Array out(DType::kInt8, x.shape());
  run(x, &weight, {}, out, static_scale_of(scale).get(), nullptr);
  check_quantised(*y, {}, out, nullptr, &scale);
}

TEST_CASE("rms_norm_quant: one thread and three give the same bits") {
  for (DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    for (std::int64_t cols : {64, 4096, 20000}) {
      const std::int64_t rows = 1000000 / cols;
      Array x(dtype, {rows, cols});
      x.fill_normal(test_seed());
      Quantised one(DType::kFloat8E5M2, x.shape(), 0), three(DType::kFloat8E5M2, x.shape(), 0);
      set_cpu_threads(1);
      run(x, nullptr, {}, one.out, nullptr, &one.scale);
      set_cpu_threads(3);
      run(x, nullptr, {}, three.out, nullptr, &three.scale);
      set_cpu_threads(0);
      CHECK(one.out.first_difference(three.out) == -1);
      CHECK(one.scale.first_difference(three.scale) == -1);
    }
  }
}

TEST_CASE("rms_norm_quant: every instruction set writes the same codes") {
  const cpu::KernelTables tables = cpu::supported_kernels();
  if (tables.count == 1) MESSAGE("skipped: one instruction set only");
  for (DType dtype : kFloating) {
    for (DType out_dtype : kQuantised) {
      Array y(dtype, {3, 333});
      y.fill_normal(test_seed(), 5.0);
      std::memset(y.at(700), 0xff, dtype_size(dtype));  // a NaN with every bit set
      Quantised expected(out_dtype, y.shape(), 64);
      for (int i = 0; i < tables.count; ++i) {
        Quantised got(out_dtype, y.shape(), 64);
        const Quantised& to = i == 0 ? expected : got;
        cpu::RmsNormQuantRows rows{};
        rows.y = y.at(0);
        rows.out = to.out.at(0);
        rows.scale = to.scale.at(0);
        rows.dtype = dtype;
        rows.out_dtype = out_dtype;
        rows.rows = 3;
        rows.cols = rows.y_row_stride = rows.out_row_stride = 333;
        rows.group_size = 64;
        rows.scale_row_stride = 6;
        rows.out_col_stride = rows.scale_col_stride = 1;
        rows.scale_upper_bound = INFINITY;
        tables.tables[i]->rms_norm_quant(rows);
        CAPTURE(std::string(tables.tables[i]->isa));
        CHECK(to.out.first_difference(expected.out) == -1);
        CHECK(to.scale.first_difference(expected.scale) == -1);
      }
      check_quantised(y, {.group_size = 64}, expected.out, &expected.scale, nullptr);
    }
  }
}

TEST_CASE("rms_norm_quant: errors name the argument and leave the outputs alone") {
  Array x(DType::kFloat32, {2, 130}), half(DType::kFloat16, {2, 130});
  Array out(DType::kInt8, {2, 130}), narrow(DType::kInt8, {2, 129});
  Array rows(DType::kFloat32, {2}), groups(DType::kFloat32, {2, 3}), one(DType::kFloat32, {1});
  x.fill_normal(test_seed());
  const auto refused = [&](const char* text, const Options& options, const Array& to,
                           const Array* given, const Array* scale) {
    CHECK_THROWS_WITH(run(x, nullptr, options, to, given, scale), text);
  };
  refused("rms_norm_quant: argument 'out' must be float8_e4m3fn, float8_e5m2 or int8, got float16",
          {}, half, nullptr, &rows);
  refused("rms_norm_quant: argument 'out' must have shape (2, 130), got (2, 129)", {}, narrow,
          nullptr, &rows);
  refused("rms_norm_quant: argument 'scale_out' must have shape (2,), got (2, 3)", {}, out, nullptr,
          &groups);
  refused("rms_norm_quant: argument 'scale_out' must have shape (2, 3), got (2,)",
          {.group_size = 64}, out, nullptr, &rows);
  refused("rms_norm_quant: argument 'group_size' must be 64, 128 or None, got 32",
          {.group_size = 32}, out, nullptr, &rows);
  refused("rms_norm_quant: argument 'scale' must have shape () or (1,), got (2,)", {}, out, &rows,
          nullptr);
  refused("rms_norm_quant: argument 'group_size' must be None with a static scale, got 64",
          {.group_size = 64}, out, &one, nullptr);
  refused("rms_norm_quant: argument 'scale_upper_bound' must be None with a static scale, got 2",
          {.scale_upper_bound = 2}, out, &one, nullptr);
  refused("rms_norm_quant: argument 'scale_upper_bound' must be above 0, got 0",
          {.scale_upper_bound = 0}, out, nullptr, &rows);
  refused("rms_norm_quant: argument 'scale_upper_bound' must be above 0 in float32, got 1e-50",
          {.scale_upper_bound = 1e-50}, out, nullptr, &rows);
  refused("rms_norm_quant: argument 'eps' must be finite and not negative, got -1", {.eps = -1},
          out, nullptr, &rows);
  CHECK_THROWS_AS(run(x, nullptr, {.scale_upper_bound = NAN}, out, nullptr, &rows),
                  InvalidArgument);
  CHECK_THROWS_AS(run(x, nullptr, {}, out, nullptr, nullptr), InvalidArgument);
  CHECK_THROWS_AS(run(x, nullptr, {}, out, &one, &rows), InvalidArgument);
  CHECK_THROWS_AS(run(half, nullptr, {}, out, nullptr, &half), TypeMismatch);
  // The codes overlap x.
  const TensorView inside(x.at(0), DType::kInt8, Device::cpu(), {2, 130});
  const TensorView scale = rows.view();
  CHECK_THROWS_AS(
      rms_norm_quant(x.view(), nullptr, {}, inside, nullptr, &scale, StreamView::legacy_default()),
      InvalidArgument);
  for (std::int64_t i = 0; i < out.size(); ++i) REQUIRE(code_at(out, i) == 0x5a);
}

TEST_CASE("rms_norm_quant: no rows is no work") {
  const ConstTensorView x(nullptr, DType::kFloat32, Device::cpu(), {0, 16});
  const TensorView out(nullptr, DType::kInt8, Device::cpu(), {0, 16});
  const TensorView scale(nullptr, DType::kFloat32, Device::cpu(), {0});
  CHECK_NOTHROW(rms_norm_quant(x, nullptr, {}, out, nullptr, &scale, StreamView::legacy_default()));
}
