// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include "membound/ops/add_layer_norm.hpp"
#include "membound/staging.hpp"
#include "norm.hpp"

// layer_norm and add_layer_norm are tested by the same code; a residual selects add_layer_norm.
namespace membound_test {

struct LayerInputs {
  const Array* x;
  const Array* residual;  // null: layer_norm
  const Array* weight;
  const Array* bias;

  double value(std::int64_t i) const { return residual ? sum_of(*x, *residual, i) : x->get(i); }
};

struct LayerOutputs {
  LayerOutputs(DType dtype, const Array::Extents& shape)
      : out(dtype, shape),
        sum(dtype, shape),
        mean(accumulate_dtype(dtype), Array::Extents(shape.begin(), shape.end() - 1)),
        rstd(mean.dtype(), mean.shape()) {}
  Array out, sum, mean, rstd;

  // The name of the first array with a differing bit, or null.
  const char* first_difference(const LayerOutputs& other, bool adds) const {
    if (out.first_difference(other.out) != -1) return "out";
    if (adds && sum.first_difference(other.sum) != -1) return "residual_out";
    if (mean.first_difference(other.mean) != -1) return "mean";
    return rstd.first_difference(other.rstd) != -1 ? "rstd" : nullptr;
  }
};

// `where`: a stream, or the device through which arrays are staged.
template <class Where>
void run_layer(const LayerInputs& in, const LayerNormOptions& options, const Array& out,
               const Array& sum, const Array* mean, const Array* rstd, Where where) {
  const Optional<ConstTensorView> weight(in.weight), bias(in.bias);
  const Optional<TensorView> mean_view(mean), rstd_view(rstd);
  if (in.residual == nullptr) {
    layer_norm(in.x->view(), weight.get(), bias.get(), options, out.view(), mean_view.get(),
               rstd_view.get(), where);
  } else {
    add_layer_norm(in.x->view(), in.residual->view(), weight.get(), bias.get(), options, out.view(),
                   sum.view(), mean_view.get(), rstd_view.get(), where);
  }
}
inline void run_layer(const LayerInputs& in, const LayerNormOptions& options,
                      const LayerOutputs& to) {
  run_layer(in, options, to.out, to.sum, &to.mean, &to.rstd, StreamView::legacy_default());
}

// Random inputs. kind: index of the dtype of weight and bias in kFloating, -1 for none.
struct LayerCase {
  LayerCase(DType dtype, Array::Extents shape, int weight_kind, int bias_kind, bool adds,
            std::uint32_t seed, double mean = 0.5)
      : x(dtype, shape), residual(dtype, shape), adds_(adds) {
    x.fill_normal(seed, 3.0);
    for (std::int64_t i = 0; i < x.size(); ++i) x.set(i, x.get(i) + mean);
    residual.fill_normal(seed + 1);
    const auto parameter = [&](int kind, std::uint32_t at) {
      if (kind < 0) return std::unique_ptr<Array>();
      auto array = std::make_unique<Array>(kFloating[kind], Array::Extents{shape.back()});
      array->fill_normal(at);
      return array;
    };
    weight = parameter(weight_kind, seed + 2);
    bias = parameter(bias_kind, seed + 3);
  }
  LayerInputs inputs() const { return {&x, adds_ ? &residual : nullptr, weight.get(), bias.get()}; }

  Array x, residual;
  std::unique_ptr<Array> weight, bias;

 private:
  bool adds_;
};

// Compares all results with long double. Errors are in units of the accumulator's precision,
// relative to the terms of an element: h has the error of its row's standard deviation and, where
// the mean is not corrected (16-bit dtypes), of the mean's rounding. The rounding of the result
// adds half a unit.
inline void check_layer(const LayerInputs& in, const LayerNormOptions& options,
                        const LayerOutputs& got, double units = 4) {
  const DType dtype = in.x->dtype();
  const std::int64_t cols = in.x->shape().back();
  const double unit = std::ldexp(1.0, accumulate_dtype(dtype) == DType::kFloat64 ? -53 : -24);
  const bool corrected = dtype_size(dtype) > 2;
  for (std::int64_t row = 0; row < in.x->size() / cols; ++row) {
    CAPTURE(row);
    const auto value = [&](std::int64_t col) { return in.value(row * cols + col); };
    const Moments exact = exact_moments_of(cols, options.eps, value);
    const double mean = static_cast<double>(exact.mean), rstd = static_cast<double>(exact.rstd);
    const double off = corrected ? 0 : std::abs(mean);
    REQUIRE(std::abs(static_cast<double>(got.mean.get(row) - exact.mean)) <=
            0.51 * ulp(mean, got.mean.dtype()) + units * unit * (off + 1 / rstd));
    REQUIRE(std::abs(static_cast<double>(got.rstd.get(row) - exact.rstd)) <=
            4 * ulp(rstd, got.rstd.dtype()));
    for (std::int64_t col = 0; col < cols; ++col) {
      CAPTURE(col);
      const std::int64_t i = row * cols + col;
      const double weight = factor_of(in.weight, col, options.weight_offset, dtype);
      const double bias = in.bias ? rounded(in.bias->get(col), accumulate_dtype(dtype)) : 0.0;
      const long double h = exact.deviation(value(col)) * exact.rstd;
      const long double truth = h * weight + bias;
      const double size =
          std::abs(weight) * (static_cast<double>(fabsl(h)) + 1 + off * rstd) + std::abs(bias);
      const double allowed = 0.51 * ulp(static_cast<double>(truth), dtype) + units * unit * size;
      REQUIRE(std::abs(static_cast<double>(got.out.get(i) - truth)) <= allowed);
      if (in.residual) REQUIRE(got.sum.get(i) == rounded(value(col), dtype));
    }
  }
}

// Every dtype of x, every dtype of weight and bias (or one or none of them), offsets and widths.
inline void test_layer_values(bool adds) {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed << ", isa " << std::string(cpu_isa()));
  for (DType dtype : kFloating) {
    for (int weight_kind = -1; weight_kind < 4; ++weight_kind) {
      for (int bias_kind = -1; bias_kind < 4; ++bias_kind) {
        for (std::int64_t cols : {1, 2, 3, 7, 15, 31, 64, 65, 127, 128, 1000, 4096, 4097}) {
          // 19 rows are one full group and a remainder.
          const std::int64_t rows = cols <= 128 ? 19 : 2;
          const LayerCase c(dtype, {rows, cols}, weight_kind, bias_kind, adds,
                            seed + static_cast<std::uint32_t>(cols));
          for (double offset : {0.0, 1.0}) {
            if (offset != 0 && !c.weight) continue;
            CAPTURE(std::string(dtype_name(dtype)));
            CAPTURE(weight_kind);
            CAPTURE(bias_kind);
            CAPTURE(cols);
            CAPTURE(offset);
            LayerOutputs got(dtype, {rows, cols});
            run_layer(c.inputs(), {1e-5, offset}, got);
            check_layer(c.inputs(), {1e-5, offset}, got);
          }
        }
      }
    }
  }
}

// A mean of many standard deviations: errors are a few units of the results, not of the mean.
inline void test_layer_far_mean(bool adds) {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed << ", isa " << std::string(cpu_isa()));
  for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
    for (double mean : {1e4, -3e5, 1e7, dtype == DType::kFloat64 ? 1e12 : 1e6}) {
      for (std::int64_t cols : {2, 100, 4096, 9001, 70001}) {
        CAPTURE(std::string(dtype_name(dtype)));
        CAPTURE(mean);
        CAPTURE(cols);
        const LayerCase c(dtype, {3, cols}, 2, 2, adds, seed, mean);
        LayerOutputs got(dtype, {3, cols});
        run_layer(c.inputs(), {1e-5}, got);
        check_layer(c.inputs(), {1e-5}, got);
      }
    }
    // One element differs from all others by one unit of the precision.
    for (std::int64_t cols : {3, 100, 4096, 5000}) {
      LayerCase c(dtype, {1, cols}, -1, -1, adds, seed);
      const double one = 1 + ulp(1.0, dtype);
      for (std::int64_t i = 0; i < cols; ++i) {
        c.x.set(i, i == cols / 2 ? one : 1.0);
        c.residual.set(i, 0.0);
      }
      LayerOutputs got(dtype, {1, cols});
      CAPTURE(cols);
      run_layer(c.inputs(), {0.0}, got);
      check_layer(c.inputs(), {0.0}, got, 8);
    }
  }
}

// Each array has each layout in turn, combined with other layouts, and outputs alias inputs.
inline void test_layer_layouts(bool adds) {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed << ", isa " << std::string(cpu_isa()));
  for (int kind = 0; kind < 4; ++kind) {
    const DType dtype = kFloating[kind];
    // Blocks of strided columns (1024 of float64, 2048 of others) end with one of 128, the width of
    // heads, at 1152 and 2176.
    for (std::int64_t cols : {1, 5, 64, 129, 1152, 2176, 4500}) {
      const Array::Extents shape{2, 3, cols};
      const LayerCase c(dtype, shape, kind, kind, adds, seed);
      LayerOutputs expected(dtype, shape);
      run_layer(c.inputs(), {}, expected);
      Array weight(dtype, {cols}, {-2}, 1), bias(dtype, {cols}, {3}, 2);
      weight.copy_from(*c.weight);
      bias.copy_from(*c.bias);
      const std::vector<Layout> layouts = layouts_of(cols);
      for (std::size_t i = 0; i < layouts.size(); ++i) {
        for (std::size_t shift = 0; shift < layouts.size(); ++shift) {
          const auto array = [&](std::size_t part) {
            const Layout& layout = layouts[(i + part * shift) % layouts.size()];
            return std::make_unique<Array>(dtype, shape, layout.strides, layout.lead);
          };
          const auto out = array(2), sum = array(3);
          Array mean(accumulate_dtype(dtype), {2, 3}, {1, 2}, 1);
          Array rstd(accumulate_dtype(dtype), {2, 3}, {-3, -1}, 1);
          // 0: separate; 1: out = x, sum = residual; 2: out = residual, sum = x.
          for (int place = 0; place < (adds ? 3 : 2); ++place) {
            CAPTURE(std::string(dtype_name(dtype)));
            CAPTURE(cols);
            CAPTURE(std::string(layouts[i].name));
            CAPTURE(shift);
            CAPTURE(place);
            const auto x = array(0), residual = array(1);
            x->copy_from(c.x);
            residual->copy_from(c.residual);
            const Array& to = place == 1 ? *x : place == 2 ? *residual : *out;
            const Array& sum_to = place == 1 ? *residual : place == 2 ? *x : *sum;
            run_layer({x.get(), adds ? residual.get() : nullptr, &weight, &bias}, {}, to, sum_to,
                      &mean, &rstd, StreamView::legacy_default());
            REQUIRE(to.first_difference(expected.out) == -1);
            REQUIRE(mean.first_difference(expected.mean) == -1);
            REQUIRE(rstd.first_difference(expected.rstd) == -1);
            if (adds) REQUIRE(sum_to.first_difference(expected.sum) == -1);
            if (place == 0) REQUIRE(x->first_difference(c.x) == -1);
          }
        }
      }
    }
  }
}

// One thread and two, with non-temporal stores (17 MiB in one case) and, in place, ordinary ones.
inline void test_layer_threads(bool adds) {
  for (int kind = 0; kind < 4; ++kind) {
    const DType dtype = kFloating[kind];
    for (std::int64_t cols : {128, 5000, 4096, 1001}) {
      // 1001: within lines, 17 MiB of all arrays with a residual.
      const bool around = dtype == DType::kFloat32 && (cols == 4096 || cols == 1001);
      const std::int64_t rows = around ? 1100 : 150;
      LayerCase c(dtype, {rows, cols}, kind, kind, adds, test_seed());
      CAPTURE(std::string(dtype_name(dtype)));
      CAPTURE(cols);
      LayerOutputs one(dtype, {rows, cols}), two(dtype, {rows, cols}), place(dtype, {rows, cols});
      set_cpu_threads(1);
      run_layer(c.inputs(), {}, one);
      set_cpu_threads(2);
      run_layer(c.inputs(), {}, two);
      run_layer(c.inputs(), {}, c.x, c.residual, &place.mean, &place.rstd,
                StreamView::legacy_default());
      set_cpu_threads(0);
      CHECK(one.first_difference(two, adds) == nullptr);
      CHECK(one.out.first_difference(c.x) == -1);
      CHECK(one.mean.first_difference(place.mean) == -1);
      if (adds) CHECK(one.sum.first_difference(c.residual) == -1);
    }
  }
}

// A row's bits depend only on its values.
inline void test_layer_batch(bool adds) {
  for (int kind = 0; kind < 4; ++kind) {
    const DType dtype = kFloating[kind];
    for (std::int64_t cols : {48, 128, 1024, 5000}) {
      const LayerCase c(dtype, {40, cols}, kind, kind, adds, test_seed());
      LayerOutputs all(dtype, {40, cols});
      run_layer(c.inputs(), {}, all);
      for (std::int64_t row : {0, 1, 15, 16, 31, 39}) {
        Array x(dtype, {1, cols}), residual(dtype, {1, cols});
        for (std::int64_t i = 0; i < cols; ++i) {
          x.set(i, c.x.get(row * cols + i));
          residual.set(i, c.residual.get(row * cols + i));
        }
        LayerOutputs one(dtype, {1, cols});
        run_layer({&x, adds ? &residual : nullptr, c.weight.get(), c.bias.get()}, {}, one);
        CHECK(one.mean.get(0) == all.mean.get(row));
        CHECK(one.rstd.get(0) == all.rstd.get(row));
        for (std::int64_t i = 0; i < cols; ++i)
          REQUIRE(std::memcmp(one.out.at(i), all.out.at(row * cols + i), dtype_size(dtype)) == 0);
      }
    }
  }
}

// In chunks through the staging slots, with the CPU as the device.
inline void test_layer_staged(bool adds) {
  StagingOptions small;
  small.slot_bytes = 4096;
  set_staging_options(small);
  for (int kind = -1; kind < 4; ++kind) {
    for (std::int64_t cols : {7, 300, 5000}) {
      CAPTURE(kind);
      CAPTURE(cols);
      const DType dtype = kFloating[kind < 0 ? 2 : kind];
      const LayerCase c(dtype, {70, cols}, kind, kind, adds, test_seed());
      LayerOutputs direct(dtype, {70, cols}), staged(dtype, {70, cols});
      run_layer(c.inputs(), {}, direct);
      run_layer(c.inputs(), {}, staged.out, staged.sum, &staged.mean, &staged.rstd, Device::cpu());
      CHECK(staged.first_difference(direct, adds) == nullptr);
      // Fewer arrays, so that none has the slot of another.
      LayerOutputs fewer(dtype, {70, cols});
      const LayerInputs in{c.inputs().x, c.inputs().residual, nullptr, c.bias.get()};
      run_layer(in, {}, direct.out, direct.sum, nullptr, nullptr, StreamView::legacy_default());
      run_layer(in, {}, fewer.out, fewer.sum, nullptr, &fewer.rstd, Device::cpu());
      CHECK(fewer.out.first_difference(direct.out) == -1);
      CHECK(fewer.rstd.first_difference(direct.rstd) == -1);
    }
  }
  set_staging_options(StagingOptions());
}

}  // namespace membound_test
