// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "membound/ops/add_layer_norm.hpp"
#include "membound/ops/add_layer_norm_backward.hpp"
#include "membound/ops/add_rms_norm.hpp"
#include "membound/ops/add_rms_norm_backward.hpp"
#include "membound/ops/add_rms_norm_quant.hpp"
#include "membound/ops/layer_norm.hpp"
#include "membound/ops/layer_norm_backward.hpp"
#include "membound/ops/rms_norm.hpp"
#include "membound/ops/rms_norm_backward.hpp"
#include "membound/ops/rms_norm_gated.hpp"
#include "membound/ops/rms_norm_gated_backward.hpp"
#include "membound/ops/rms_norm_quant.hpp"
#include "sweep.hpp"

namespace membound_test {

namespace {

// The optional arguments of a norm.
struct Options {
  bool weight = true;
  bool wide_weight = false;  // in float32
  double weight_offset = 0.0;
  Rounding rounding = Rounding::kOnce;
};
constexpr Options kOptions[] = {
    {},
    {.weight = false},
    {.wide_weight = true},
    {.weight_offset = 1.0},
    {.rounding = Rounding::kBeforeWeight},
};

// Every layout of x, with and without parameters.
template <class Call>
void for_each_norm(Call call) {
  for_each_problem(kRows, kCols, [&](const Problem& p) {
    for (const Options& o : kOptions) {
      const bool wide = o.wide_weight && p.dtype != DType::kFloat64;
      call(p, o, wide ? DType::kFloat32 : p.dtype);
    }
  });
}

}  // namespace

TEST_CASE("rms_norm, with a residual and with a gate") {
  for_each_norm([](const Problem& p, const Options& o, DType columns) {
    const auto weight = given(o.weight, p.columns(columns));
    const auto* w = pointer(weight);
    const RmsNormOptions options{1e-6, o.weight_offset, o.rounding};
    const TensorView rstd = p.statistic();
    name_op("rms_norm");
    rms_norm(p.matrix(), w, options, p.matrix(), &rstd, p.stream());
    name_op("add_rms_norm");
    add_rms_norm(p.matrix(), p.matrix(), w, options, p.matrix(), p.matrix(), &rstd, p.stream());
    const TensorView x = p.matrix(), residual = p.matrix();
    add_rms_norm(x, residual, w, options, x, residual, nullptr, p.stream());
    name_op("rms_norm_gated");
    for (bool first : {true, false}) {
      rms_norm_gated(p.matrix(), p.matrix(), w, {1e-6, o.weight_offset, o.rounding, first},
                     p.matrix(), &rstd, p.stream());
    }
  });
  look_for_faults();
}

TEST_CASE("layer_norm, and with a residual") {
  for_each_norm([](const Problem& p, const Options& o, DType columns) {
    if (o.rounding != Rounding::kOnce) return;
    const auto weight = given(o.weight, p.columns(columns));
    const auto bias = given(o.weight, p.columns(columns));
    const LayerNormOptions options{1e-5, o.weight_offset};
    const TensorView mean = p.statistic(), rstd = p.statistic();
    name_op("layer_norm");
    layer_norm(p.matrix(), pointer(weight), pointer(bias), options, p.matrix(), &mean, &rstd,
               p.stream());
    name_op("add_layer_norm");
    add_layer_norm(p.matrix(), p.matrix(), pointer(weight), pointer(bias), options, p.matrix(),
                   p.matrix(), &mean, &rstd, p.stream());
  });
  look_for_faults();
}

TEST_CASE("rms_norm_quant, and with a residual") {
  for_each_norm([](const Problem& p, const Options& o, DType columns) {
    const auto weight = given(o.weight, p.columns(columns));
    const auto* w = pointer(weight);
    for (std::int64_t group : {0, 64, 128}) {
      if (group > 0 && p.cols % group != 0) continue;
      const RmsNormQuantOptions options{1e-6, o.weight_offset, o.rounding, group};
      const DType codes = group == 64 ? DType::kInt8 : DType::kFloat8E4M3;
      const TensorView scale = p.statistic(DType::kFloat32, group > 0 ? p.cols / group : 0);
      name_op("rms_norm_quant");
      rms_norm_quant(p.matrix(), w, options, p.matrix(codes), nullptr, &scale, p.stream());
      name_op("add_rms_norm_quant");
      add_rms_norm_quant(p.matrix(), p.matrix(), w, options, p.matrix(codes), p.matrix(), nullptr,
                         &scale, p.stream());
    }
    const ConstTensorView scale = p.array(DType::kFloat32, {});
    name_op("rms_norm_quant");
    rms_norm_quant(p.matrix(), w, {1e-6, o.weight_offset, o.rounding}, p.matrix(DType::kInt8),
                   &scale, nullptr, p.stream());
  });
  look_for_faults();
}

TEST_CASE("gradients of rms_norm, with a residual and with a gate") {
  for_each_norm([](const Problem& p, const Options& o, DType columns) {
    const auto weight = given(o.weight, p.columns(columns));
    const auto* w = pointer(weight);
    const RmsNormBackwardOptions options{o.weight_offset, o.rounding, false};
    const TensorView rstd = p.statistic();
    for (bool wants_dx : {true, false}) {
      for (bool wants_dweight : {true, false}) {
        if (wants_dweight && !o.weight) continue;
        const auto dx = when(wants_dx, p.matrix()), dgate = when(wants_dx, p.matrix());
        const auto dweight = when(wants_dweight, p.columns(columns));
        const auto* dw = pointer(dweight);
        name_op("rms_norm_backward");
        rms_norm_backward(p.matrix(), p.matrix(), w, rstd, options, pointer(dx), dw, nullptr,
                          p.stream());
        name_op("rms_norm_gated_backward");
        for (bool first : {true, false}) {
          rms_norm_gated_backward(p.matrix(), p.matrix(), p.matrix(), w, rstd,
                                  {o.weight_offset, o.rounding, first, false}, pointer(dx),
                                  pointer(dgate), dw, nullptr, p.stream());
        }
        if (!wants_dx) continue;
        name_op("add_rms_norm_backward");
        const ConstTensorView dsum = p.matrix();
        add_rms_norm_backward(p.matrix(), &dsum, p.matrix(), w, rstd, options, pointer(dx), nullptr,
                              dw, nullptr, p.stream());
        const TensorView dy = p.matrix();
        name_op("rms_norm_backward in place");
        rms_norm_backward(dy, p.matrix(), w, rstd, options, &dy, dw, nullptr, p.stream());
      }
    }
  });
  look_for_faults();
}

TEST_CASE("gradients of layer_norm, and with a residual") {
  for_each_norm([](const Problem& p, const Options& o, DType columns) {
    if (o.rounding != Rounding::kOnce) return;
    const auto weight = given(o.weight, p.columns(columns));
    const auto* w = pointer(weight);
    const LayerNormBackwardOptions options{o.weight_offset, false};
    const TensorView mean = p.statistic(), rstd = p.statistic();
    for (bool wants_dx : {true, false}) {
      for (bool wants_columns : {true, false}) {
        if (wants_columns && !o.weight) continue;
        const auto dx = when(wants_dx, p.matrix());
        const auto dweight = when(wants_columns, p.columns(columns));
        const auto dbias = when(wants_columns, p.columns(columns));
        name_op("layer_norm_backward");
        layer_norm_backward(p.matrix(), p.matrix(), w, mean, rstd, options, pointer(dx),
                            pointer(dweight), pointer(dbias), nullptr, p.stream());
        if (!wants_dx) continue;
        name_op("add_layer_norm_backward");
        const ConstTensorView dsum = p.matrix();
        add_layer_norm_backward(p.matrix(), &dsum, p.matrix(), w, mean, rstd, options, pointer(dx),
                                nullptr, pointer(dweight), pointer(dbias), nullptr, p.stream());
      }
    }
  });
  look_for_faults();
}

TEST_CASE("norms over arrays of several dtypes, and their gradients") {
  for_each_problem(kRows, kCols, [](const Problem& p) {
    const DType other = p.dtype == DType::kFloat32 ? DType::kBFloat16 : DType::kFloat32;
    const ConstTensorView w = p.columns(p.dtype), b = p.columns(other), dsum = p.matrix(other);
    const TensorView statistic = p.statistic();
    name_op("add_layer_norm of several dtypes");
    add_layer_norm(p.matrix(), p.matrix(other), &w, &b, {}, p.matrix(), p.matrix(other), nullptr,
                   &statistic, p.stream());
    name_op("rms_norm into another dtype");
    rms_norm(p.matrix(), &w, {}, p.matrix(other), nullptr, p.stream());
    const TensorView dx = p.matrix(), dresidual = p.matrix(other);
    const TensorView dweight = p.columns(p.dtype), dbias = p.columns(other);
    name_op("add_layer_norm_backward of several dtypes");
    add_layer_norm_backward(p.matrix(), &dsum, p.matrix(other), &w, statistic, statistic, {}, &dx,
                            &dresidual, &dweight, &dbias, nullptr, p.stream());
  });
  look_for_faults();
}

}  // namespace membound_test
