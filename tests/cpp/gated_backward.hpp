// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gated.hpp"
#include "membound/ops/rms_norm_gated_backward.hpp"

// Gradients of rms_norm_gated and their reference.
namespace membound_test {

struct GatedInputs {
  const Array *dy, *x, *z, *weight, *rstd;
};

inline void run_gated_backward(const GatedInputs& in, const RmsNormGatedBackwardOptions& options,
                               const Array* dx, const Array* dz, const Array* dweight) {
  rms_norm_gated_backward(
      in.dy->view(), in.x->view(), in.z->view(), Optional<ConstTensorView>(in.weight).get(),
      in.rstd->view(), options, Optional<TensorView>(dx).get(), Optional<TensorView>(dz).get(),
      Optional<TensorView>(dweight).get(), nullptr, StreamView::legacy_default());
}

// Random inputs of one shape, with the forward's rstd.
struct GatedBackwardCase {
  GatedBackwardCase(DType dtype, Array::Extents shape, int weight_kind, bool norm_before_gate,
                    std::uint32_t seed)
      : dy(dtype, shape),
        x(dtype, shape),
        z(dtype, shape),
        rstd(accumulate_dtype(dtype), Array::Extents(shape.begin(), shape.end() - 1)) {
    dy.fill_normal(seed);
    x.fill_normal(seed + 1, 3.0);
    z.fill_normal(seed + 2, 3.0);
    if (weight_kind >= 0) {
      weight = std::make_unique<Array>(kFloating[weight_kind], Array::Extents{shape.back()});
      weight->fill_normal(seed + 3);
    }
    for (std::int64_t row = 0; row < rstd.size(); ++row) {
      rstd.set(row, static_cast<double>(exact_gated_rstd(x, z, norm_before_gate, 1e-6, row)));
    }
  }
  GatedInputs inputs() const { return {&dy, &x, &z, weight.get(), &rstd}; }

  Array dy, x, z, rstd;
  std::unique_ptr<Array> weight;
};

// The gradients of one element in long double, and the magnitudes of their terms.
struct GatedElement {
  long double dy, x, z, silu, slope, h, factor, arriving, g;

  GatedElement(const GatedInputs& in, const RmsNormGatedBackwardOptions& options, std::int64_t i) {
    const std::int64_t cols = in.x->shape().back();
    dy = in.dy->get(i), x = in.x->get(i), z = in.z->get(i);
    silu = exact_silu(z), slope = exact_slope(z);
    const bool first = options.norm_before_gate;
    h = (first ? x : x * silu) * in.rstd->get(i / cols);
    factor = factor_of(in.weight, i % cols, options.weight_offset, in.x->dtype());
    arriving = first ? dy * silu : dy;
    g = arriving * factor;
  }
};

// The forward's rounded h, and its product with the weight; and their slack: h is inexact, so it
// may be rounded the other way.
struct SeenByForward {
  long double value, slack;
};
inline SeenByForward seen_by_forward(long double h, long double factor,
                                     const RmsNormGatedBackwardOptions& options, DType dtype) {
  const auto step = [&](long double value) {
    const bool rounds = options.rounding == Rounding::kBeforeWeight && dtype_size(dtype) == 2;
    return rounds ? rounded(static_cast<double>(value), dtype) : value;
  };
  const auto at = [&](double off) { return step(step(h * (1 + off)) * factor * (1 + off)); };
  if (options.rounding == Rounding::kOnce || dtype_size(dtype) != 2) return {at(0), 0};
  return {at(0), std::max(fabsl(at(0x1p-21) - at(0)), fabsl(at(-0x1p-21) - at(0)))};
}

// Compares gradients (null: not computed) with long double. Allowed are `kUnits` units of the
// accumulator's precision, relative to the magnitudes of the terms, plus half a unit of the result.
inline void check_gated_gradients(const GatedInputs& in, const RmsNormGatedBackwardOptions& options,
                                  const Array* dx, const Array* dz, const Array* dweight,
                                  const Array* before = nullptr) {
  const DType dtype = in.x->dtype();
  const std::int64_t cols = in.x->shape().back(), rows = in.x->size() / cols;
  const double unit = std::ldexp(1.0, dtype == DType::kFloat64 ? -53 : -24);
  constexpr double kUnits = 16;
  const auto require_near = [&](const Array& got, std::int64_t i, long double truth,
                                long double size, long double slack) {
    const double within = static_cast<double>(kUnits * unit * size + slack);
    const double farthest = static_cast<double>(fabsl(truth)) + within;
    const double allowed = 0.51 * ulp(farthest, got.dtype()) + within;
    CAPTURE(i);
    REQUIRE(std::abs(static_cast<double>(got.get(i) - truth)) <= allowed);
  };
  std::vector<long double> total(cols), size(cols), slack(cols);
  for (std::int64_t row = 0; row < rows; ++row) {
    const long double rstd = in.rstd->get(row);
    long double dot = 0, dot_size = 0;
    for (std::int64_t col = 0; col < cols; ++col) {
      const GatedElement at(in, options, row * cols + col);
      dot += at.g * at.h / cols;
      dot_size += fabsl(at.g * at.h) / cols;
      const SeenByForward h = seen_by_forward(at.h, 1, options, dtype);
      total[col] += at.arriving * h.value;
      size[col] += fabsl(at.arriving * h.value);
      slack[col] += fabsl(at.arriving) * h.slack;
    }
    for (std::int64_t i = row * cols; i < (row + 1) * cols; ++i) {
      const GatedElement at(in, options, i);
      const long double of_norm = rstd * (at.g - at.h * dot);
      const long double of_norm_size = rstd * (fabsl(at.g) + fabsl(at.h) * dot_size);
      const bool first = options.norm_before_gate;
      const long double gate = first ? 1 : at.silu;
      if (dx) require_near(*dx, i, of_norm * gate, of_norm_size * fabsl(gate), 0);
      if (dz == nullptr) continue;
      const SeenByForward norm = seen_by_forward(at.h, at.factor, options, dtype);
      const long double by = first ? at.dy * norm.value : of_norm * at.x;
      const long double by_size = first ? fabsl(by) : of_norm_size * fabsl(at.x);
      require_near(*dz, i, by * at.slope, by_size * slope_size(at.z),
                   first ? fabsl(at.dy * at.slope) * norm.slack : 0);
    }
  }
  for (std::int64_t col = 0; dweight != nullptr && col < cols; ++col)
    require_near(*dweight, col, total[col] + (before ? before->get(col) : 0.0), size[col],
                 slack[col]);
}

// Checks that all gradients at once and each alone have the same bits.
inline void check_gated_wanted(const GatedBackwardCase& c,
                               const RmsNormGatedBackwardOptions& options) {
  const DType dtype = c.x.dtype();
  const auto& shape = c.x.shape();
  Array dx(dtype, shape), dz(dtype, shape), dx_alone(dtype, shape), dz_alone(dtype, shape);
  std::unique_ptr<Array> dweight, dweight_alone;
  if (c.weight) {
    dweight = std::make_unique<Array>(c.weight->dtype(), c.weight->shape());
    dweight_alone = std::make_unique<Array>(c.weight->dtype(), c.weight->shape());
  }
  run_gated_backward(c.inputs(), options, &dx, &dz, dweight.get());
  check_gated_gradients(c.inputs(), options, &dx, &dz, dweight.get());
  run_gated_backward(c.inputs(), options, &dx_alone, nullptr, nullptr);
  run_gated_backward(c.inputs(), options, nullptr, &dz_alone, nullptr);
  REQUIRE(dx_alone.first_difference(dx) == -1);
  REQUIRE(dz_alone.first_difference(dz) == -1);
  if (!dweight) return;
  run_gated_backward(c.inputs(), options, nullptr, nullptr, dweight_alone.get());
  REQUIRE(dweight_alone->first_difference(*dweight) == -1);
}

}  // namespace membound_test
