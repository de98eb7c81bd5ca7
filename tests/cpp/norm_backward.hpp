// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include "membound/ops/add_layer_norm_backward.hpp"
#include "membound/ops/add_rms_norm_backward.hpp"
#include "membound/ops/layer_norm_backward.hpp"
#include "membound/ops/rms_norm_backward.hpp"
#include "norm.hpp"

// The four backwards of norms are tested by the same code: dsum selects an added norm, mean selects
// layer_norm.
namespace membound_test {

struct BackwardInputs {
  const Array* dy;
  const Array* dsum;  // null: not an added norm
  const Array* x;
  const Array* weight;
  const Array* rstd;
  const Array* mean = nullptr;  // null: rms_norm
};

// The op's name.
struct BackwardOp {
  bool adds, centred;
};

inline void run_backward(const BackwardInputs& in, const RmsNormBackwardOptions& options,
                         const Array* dx, const Array* dweight, const Array* dbias = nullptr) {
  const Optional<ConstTensorView> weight(in.weight), dsum(in.dsum);
  const Optional<TensorView> dx_view(dx), dweight_view(dweight), dbias_view(dbias);
  const ConstTensorView dy = in.dy->view(), x = in.x->view(), rstd = in.rstd->view();
  const StreamView stream = StreamView::legacy_default();
  const LayerNormBackwardOptions centred{options.weight_offset, options.accumulate};
  if (in.mean != nullptr && in.dsum != nullptr) {
    add_layer_norm_backward(dy, dsum.get(), x, weight.get(), in.mean->view(), rstd, centred,
                            dx_view.get(), nullptr, dweight_view.get(), dbias_view.get(), nullptr,
                            stream);
  } else if (in.mean != nullptr) {
    layer_norm_backward(dy, x, weight.get(), in.mean->view(), rstd, centred, dx_view.get(),
                        dweight_view.get(), dbias_view.get(), nullptr, stream);
  } else if (in.dsum != nullptr) {
    add_rms_norm_backward(dy, dsum.get(), x, weight.get(), rstd, options, dx_view.get(), nullptr,
                          dweight_view.get(), nullptr, stream);
  } else {
    rms_norm_backward(dy, x, weight.get(), rstd, options, dx_view.get(), dweight_view.get(),
                      nullptr, stream);
  }
}

// Random inputs of one shape, with the forward's mean and rstd.
struct BackwardCase {
  BackwardCase(DType dtype, Array::Extents shape, int weight_kind, BackwardOp op,
               std::uint32_t seed)
      : dy(dtype, shape),
        dsum(dtype, shape),
        x(dtype, shape),
        mean(accumulate_dtype(dtype), Array::Extents(shape.begin(), shape.end() - 1)),
        rstd(mean.dtype(), mean.shape()),
        op_(op) {
    const std::int64_t cols = shape.back();
    dy.fill_normal(seed);
    dsum.fill_normal(seed + 1);
    x.fill_normal(seed + 2, 3.0);
    for (std::int64_t i = 0; op.centred && i < x.size(); ++i) x.set(i, x.get(i) + 2.0);
    for (std::int64_t row = 0; row < rstd.size(); ++row) set_statistics(row, 1e-6);
    if (weight_kind >= 0) {
      weight = std::make_unique<Array>(kFloating[weight_kind], Array::Extents{cols});
      weight->fill_normal(seed + 3);
    }
  }
  void set_statistics(std::int64_t row, double eps) {
    const std::int64_t cols = x.shape().back();
    const auto value = [&](std::int64_t col) { return x.get(row * cols + col); };
    const Moments exact = exact_moments_of(cols, eps, value);
    mean.set(row, static_cast<double>(exact.mean));
    rstd.set(row, static_cast<double>(op_.centred ? exact.rstd : exact_rstd_of(cols, eps, value)));
  }
  BackwardInputs inputs() const {
    return {&dy,   op_.adds ? &dsum : nullptr,   &x, weight.get(),
            &rstd, op_.centred ? &mean : nullptr};
  }

  Array dy, dsum, x, mean, rstd;
  std::unique_ptr<Array> weight;

 private:
  BackwardOp op_;
};

// Compares gradients (null: not computed) with long double. Allowed are `sums` units of the
// accumulator's precision, relative to the magnitudes of the terms, plus half a unit of the result.
inline void check_gradients(const BackwardInputs& in, const RmsNormBackwardOptions& options,
                            const Array* dx, const Array* dweight, const Array* before = nullptr,
                            const Array* dbias = nullptr) {
  const DType dtype = in.x->dtype();
  const std::int64_t cols = in.x->shape().back(), rows = in.x->size() / cols;
  const double unit = std::ldexp(1.0, dtype == DType::kFloat64 ? -53 : -24);
  constexpr double kSums = 8;
  std::vector<long double> total(cols), size(cols), dy_total(cols), dy_size(cols);
  for (std::int64_t row = 0; row < rows; ++row) {
    const long double rstd = in.rstd->get(row), mean = in.mean ? in.mean->get(row) : 0.0;
    long double dot = 0, magnitude = 0, sum = 0, sum_magnitude = 0;
    for (std::int64_t col = 0; col < cols; ++col) {
      const std::int64_t i = row * cols + col;
      const long double dy = in.dy->get(i), h = (in.x->get(i) - mean) * rstd;
      const long double g = dy * factor_of(in.weight, col, options.weight_offset, dtype);
      dot += g * h;
      magnitude += fabsl(g * h);
      if (in.mean) sum += g;
      if (in.mean) sum_magnitude += fabsl(g);
      dy_total[col] += dy;
      dy_size[col] += fabsl(dy);
      long double seen = h;
      if (options.rounding == Rounding::kBeforeWeight && dtype != DType::kFloat64)
        seen = rounded(static_cast<float>(in.x->get(i)) * static_cast<float>(rstd), dtype);
      total[col] += dy * seen;
      size[col] += fabsl(dy * seen);
    }
    for (std::int64_t col = 0; dx != nullptr && col < cols; ++col) {
      const std::int64_t i = row * cols + col;
      const long double h = (in.x->get(i) - mean) * rstd;
      const long double g = in.dy->get(i) * static_cast<long double>(factor_of(
                                                in.weight, col, options.weight_offset, dtype));
      const long double more = in.dsum ? in.dsum->get(i) : 0.0;
      const long double truth = rstd * (g - sum / cols - h * dot / cols) + more;
      const double allowed = 0.51 * ulp(static_cast<double>(truth), dtype) +
                             kSums * unit *
                                 static_cast<double>(rstd * (fabsl(g) + sum_magnitude / cols +
                                                             fabsl(h) * magnitude / cols) +
                                                     fabsl(more));
      CAPTURE(row);
      CAPTURE(col);
      REQUIRE(std::abs(static_cast<double>(dx->get(i) - truth)) <= allowed);
    }
  }
  const auto check_columns = [&](const Array& got, const std::vector<long double>& totals,
                                 const std::vector<long double>& sizes) {
    for (std::int64_t col = 0; col < cols; ++col) {
      const long double truth = totals[col] + (before ? before->get(col) : 0.0);
      const double allowed = 0.51 * ulp(static_cast<double>(truth), got.dtype()) +
                             kSums * unit * static_cast<double>(sizes[col]);
      CAPTURE(col);
      REQUIRE(std::abs(static_cast<double>(got.get(col) - truth)) <= allowed);
    }
  };
  if (dweight != nullptr) check_columns(*dweight, total, size);
  if (dbias != nullptr) check_columns(*dbias, dy_total, dy_size);
}

// Checks that all gradients at once and each alone have the same bits.
inline void check_wanted(const BackwardCase& c, const RmsNormBackwardOptions& options,
                         BackwardOp op) {
  const DType dtype = c.x.dtype();
  const std::int64_t cols = c.x.shape().back();
  const auto columns = [&](bool wanted) {
    const DType of = c.weight ? c.weight->dtype() : dtype;
    return wanted ? std::make_unique<Array>(of, Array::Extents{cols}) : nullptr;
  };
  Array dx(dtype, c.x.shape()), dx_alone(dtype, c.x.shape());
  const auto dweight = columns(c.weight != nullptr), dbias = columns(op.centred);
  run_backward(c.inputs(), options, &dx, dweight.get(), dbias.get());
  check_gradients(c.inputs(), options, &dx, dweight.get(), nullptr, dbias.get());
  run_backward(c.inputs(), options, &dx_alone, nullptr);
  REQUIRE(dx_alone.first_difference(dx) == -1);
  if (dweight) {
    const auto alone = columns(true);
    run_backward(c.inputs(), options, nullptr, alone.get());
    REQUIRE(alone->first_difference(*dweight) == -1);
  }
  if (dbias) {
    const auto alone = columns(true);
    run_backward(c.inputs(), options, nullptr, nullptr, alone.get());
    REQUIRE(alone->first_difference(*dbias) == -1);
  }
}

// Every dtype, weight dtype, rounding and offset.
inline void test_backward_values(BackwardOp op) {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed << ", isa " << std::string(cpu_isa()));
  for (DType dtype : kFloating) {
    for (int weight_kind = -1; weight_kind < 4; ++weight_kind) {
      for (std::int64_t cols : {1, 2, 3, 7, 8, 31, 64, 65, 127, 128, 1000, 4096, 4097}) {
        const std::int64_t rows = cols <= 128 ? 37 : 5;
        const BackwardCase c(dtype, {rows, cols}, weight_kind, op,
                             seed + static_cast<std::uint32_t>(cols));
        for (Rounding rounding : {Rounding::kOnce, Rounding::kBeforeWeight}) {
          if (rounding != Rounding::kOnce && op.centred) continue;
          for (double offset : {0.0, 1.0}) {
            if (offset != 0 && !c.weight) continue;
            CAPTURE(std::string(dtype_name(dtype)));
            CAPTURE(weight_kind);
            CAPTURE(cols);
            CAPTURE(offset);
            check_wanted(c, {offset, rounding, false}, op);
          }
        }
      }
    }
  }
}

// Each array has each layout in turn, combined with other layouts, and dx aliases each input.
inline void test_backward_layouts(BackwardOp op) {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed << ", isa " << std::string(cpu_isa()));
  for (int kind = 0; kind < 4; ++kind) {
    const DType dtype = kFloating[kind];
    for (std::int64_t cols : {1, 5, 64, 100, 129, 250, 256, 4500}) {
      const Array::Extents shape{2, 3, cols};
      const BackwardCase c(dtype, shape, kind, op, seed);
      Array dx_model(dtype, shape), dweight_model(dtype, {cols}), dbias_model(dtype, {cols});
      run_backward(c.inputs(), {}, &dx_model, &dweight_model, &dbias_model);
      const std::vector<Layout> layouts = layouts_of(cols);
      for (std::size_t i = 0; i < layouts.size(); ++i) {
        for (std::size_t shift = 0; shift < layouts.size(); ++shift) {
          const auto like = [&](const Array& model, std::size_t part) {
            const Layout& layout = layouts[(i + part * shift) % layouts.size()];
            auto array = std::make_unique<Array>(dtype, shape, layout.strides, layout.lead);
            array->copy_from(model);
            return array;
          };
          const auto out = like(c.dy, 3);
          Array rstd(accumulate_dtype(dtype), {2, 3}, {1, 2}, 1);
          rstd.copy_from(c.rstd);
          Array mean(accumulate_dtype(dtype), {2, 3}, {-3, -1}, 1);
          mean.copy_from(c.mean);
          Array weight(dtype, {cols}, {-2}, 1), dweight(dtype, {cols}, {3}, 1);
          Array dbias(dtype, {cols}, {-1}, 1);
          weight.copy_from(*c.weight);
          for (int place = 0; place < (op.adds ? 4 : 3); ++place) {
            CAPTURE(std::string(dtype_name(dtype)));
            CAPTURE(cols);
            CAPTURE(std::string(layouts[i].name));
            CAPTURE(shift);
            CAPTURE(place);
            const auto dy = like(c.dy, 0), x = like(c.x, 1), dsum = like(c.dsum, 2);
            const Array* places[] = {out.get(), dy.get(), x.get(), dsum.get()};
            const Array& dx = *places[place];
            run_backward({dy.get(), op.adds ? dsum.get() : nullptr, x.get(), &weight, &rstd,
                          op.centred ? &mean : nullptr},
                         {}, &dx, &dweight, &dbias);
            REQUIRE(dx.first_difference(dx_model) == -1);
            REQUIRE(dweight.first_difference(dweight_model) == -1);
            if (op.centred) REQUIRE(dbias.first_difference(dbias_model) == -1);
          }
        }
      }
    }
  }
}

// One thread and two; non-temporal stores and, in place, ordinary ones.
inline void test_backward_threads(BackwardOp op) {
  for (int kind = 0; kind < 4; ++kind) {
    const DType dtype = kFloating[kind];
    for (std::int64_t cols : {128, 5000, 4096, 4097, 1001}) {
      // Also rows that start within a cache line.
      const bool around = dtype == (cols == 1001 ? DType::kFloat64 : DType::kFloat32);
      const std::int64_t rows = !around || cols % 1000 == 0 ? 150
                                : cols == 4096              ? 1100
                                : cols == 4097              ? 400
                                                            : 800;
      BackwardCase c(dtype, {rows, cols}, kind, op, test_seed());
      CAPTURE(std::string(dtype_name(dtype)));
      CAPTURE(cols);
      Array dx_one(dtype, {rows, cols}), dx_two(dtype, {rows, cols});
      Array dweight_one(dtype, {cols}), dweight_two(dtype, {cols}), dweight_place(dtype, {cols});
      Array dbias_one(dtype, {cols}), dbias_two(dtype, {cols});
      set_cpu_threads(1);
      run_backward(c.inputs(), {}, &dx_one, &dweight_one, &dbias_one);
      set_cpu_threads(2);
      run_backward(c.inputs(), {}, &dx_two, &dweight_two, &dbias_two);
      run_backward(c.inputs(), {}, &c.x, &dweight_place);
      set_cpu_threads(0);
      CHECK(dx_one.first_difference(dx_two) == -1);
      CHECK(dx_one.first_difference(c.x) == -1);
      CHECK(dweight_one.first_difference(dweight_two) == -1);
      CHECK(dweight_one.first_difference(dweight_place) == -1);
      if (op.centred) CHECK(dbias_one.first_difference(dbias_two) == -1);
    }
  }
}

// dx and dweight against finite differences of sum(out * dy) (+ sum * dsum), in float64.
template <class Loss>
void test_backward_by_differences(BackwardOp op, Loss loss) {
  for (double offset : {0.0, 1.0}) {
    for (std::int64_t cols : {1, 5, 33}) {
      const BackwardCase c(DType::kFloat64, {3, cols}, 3, op, test_seed());
      const RmsNormBackwardOptions options{offset, Rounding::kOnce, false};
      Array dx(DType::kFloat64, {3, cols}), dweight(DType::kFloat64, {cols});
      run_backward(c.inputs(), options, &dx, &dweight);
      const auto difference = [&](Array& by, std::int64_t i) {
        constexpr double kStep = 1e-5;
        const double at = by.get(i);
        by.set(i, at + kStep);
        const double above = loss(c, offset);
        by.set(i, at - kStep);
        const double below = loss(c, offset);
        by.set(i, at);
        return (above - below) / (2 * kStep);
      };
      CAPTURE(cols);
      CAPTURE(offset);
      auto& x = const_cast<Array&>(c.x);
      for (std::int64_t i = 0; i < dx.size(); ++i)
        REQUIRE(std::abs(dx.get(i) - difference(x, i)) <= 1e-8);
      for (std::int64_t i = 0; i < cols; ++i)
        REQUIRE(std::abs(dweight.get(i) - difference(*c.weight, i)) <= 1e-8);
    }
  }
}

}  // namespace membound_test
