// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Every form of the norms through one struct: the bits of the form's own function, and its errors.
#include <cstring>
#include <vector>

#include "doctest/doctest.h"
#include "membound/error.hpp"
#include "membound/norm_call.hpp"
#include "membound/ops/add_layer_norm.hpp"

using namespace membound;

namespace {

constexpr std::int64_t kRows = 5, kCols = 33;

std::vector<float> numbers(std::int64_t count, int seed) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>((static_cast<int>(i) * 7 + seed) % 19) - 8.5f;
  }
  return values;
}

template <class View, class Values>
View matrix(Values& values) {
  return {values.data(), DType::kFloat32, Device::cpu(), {kRows, kCols}};
}

}  // namespace

TEST_CASE("a centred call with a residual is add_layer_norm, bit for bit") {
  const auto x = numbers(kRows * kCols, 1), residual = numbers(kRows * kCols, 2);
  const auto weight = numbers(kCols, 3), bias = numbers(kCols, 4);
  std::vector<float> out[2], sum[2], rstd[2];
  const auto x_view = matrix<ConstTensorView>(x), residual_view = matrix<ConstTensorView>(residual);
  const ConstTensorView weight_view(weight.data(), DType::kFloat32, Device::cpu(), {kCols});
  const ConstTensorView bias_view(bias.data(), DType::kFloat32, Device::cpu(), {kCols});
  for (int way = 0; way < 2; ++way) {
    out[way].assign(kRows * kCols, 0.f);
    sum[way].assign(kRows * kCols, 0.f);
    rstd[way].assign(kRows, 0.f);
    const auto out_view = matrix<TensorView>(out[way]), sum_view = matrix<TensorView>(sum[way]);
    const TensorView rstd_view(rstd[way].data(), DType::kFloat32, Device::cpu(), {kRows});
    if (way == 0) {
      add_layer_norm(x_view, residual_view, &weight_view, &bias_view, {1e-5}, out_view, sum_view,
                     nullptr, &rstd_view, StreamView::legacy_default());
    } else {
      norm({.op = "mine",
            .x = &x_view,
            .residual = &residual_view,
            .weight = &weight_view,
            .bias = &bias_view,
            .options = {.eps = 1e-5},
            .centred = true,
            .out = &out_view,
            .residual_out = &sum_view,
            .rstd = &rstd_view},
           StreamView::legacy_default());
    }
  }
  CHECK(std::memcmp(out[0].data(), out[1].data(), out[0].size() * sizeof(float)) == 0);
  CHECK(sum[0] == sum[1]);
  CHECK(rstd[0] == rstd[1]);
}

TEST_CASE("a call that is no form of a norm is refused under its own name") {
  std::vector<float> x = numbers(kRows * kCols, 1), out(x.size(), 7.f);
  const auto x_view = matrix<ConstTensorView>(x);
  const auto out_view = matrix<TensorView>(out);
  std::vector<float> mean(kRows, 7.f);
  const ConstTensorView row_view(x.data(), DType::kFloat32, Device::cpu(), {kCols});
  const TensorView statistic_view(mean.data(), DType::kFloat32, Device::cpu(), {kRows});
  const StreamView stream = StreamView::legacy_default();
  const NormCall calls[] = {
      {.op = "mine"},
      {.op = "mine", .x = &x_view},
      {.op = "mine", .x = &x_view, .residual = &x_view, .out = &out_view},
      {.op = "mine", .x = &x_view, .out = &out_view, .residual_out = &out_view},
      {.op = "mine",
       .x = &x_view,
       .residual = &x_view,
       .gate = &x_view,
       .out = &out_view,
       .residual_out = &out_view},
  };
  const NormCall left_out[] = {
      {.op = "mine", .x = &x_view, .bias = &row_view, .out = &out_view},
      {.op = "mine", .x = &x_view, .out = &out_view, .mean = &statistic_view},
      {.op = "mine", .x = &x_view, .gate = &x_view, .centred = true, .out = &out_view},
      {.op = "mine",
       .x = &x_view,
       .options = {.rounding = Rounding::kBeforeWeight},
       .centred = true,
       .out = &out_view},
  };
  for (const NormCall& call : left_out) {
    CHECK_THROWS_WITH_AS(norm(call, stream), doctest::Contains("mine"), InvalidArgument);
  }
  for (const NormCall& call : calls) {
    CHECK_THROWS_WITH_AS(norm(call, stream), doctest::Contains("mine"), InvalidArgument);
  }
  const ConstTensorView rstd_view(statistic_view);
  const TensorView columns_view(mean.data(), DType::kFloat32, Device::cpu(), {kCols});
  const NormBackwardCall whole{
      .op = "mine", .dy = &x_view, .x = &x_view, .rstd = &rstd_view, .dx = &out_view};
  std::vector<NormBackwardCall> gradients(8, whole);
  gradients[0].dy = nullptr;
  gradients[1].dgate = &out_view;
  gradients[2].gate = gradients[2].mean = &x_view;
  gradients[3].gate = &x_view;
  gradients[3].is_added = true;
  gradients[4].dsum = &x_view;
  gradients[5].dresidual = &out_view;
  gradients[6].dbias = &columns_view;
  gradients[7].mean = &rstd_view;
  gradients[7].options.rounding = Rounding::kBeforeWeight;
  for (const NormBackwardCall& call : gradients) {
    CHECK_THROWS_WITH_AS(norm_backward(call, stream), doctest::Contains("mine: must"),
                         InvalidArgument);
  }
  CHECK(mean == std::vector<float>(kRows, 7.f));
  CHECK_THROWS_AS(norm_quant({.op = "mine", .x = &x_view}, stream), InvalidArgument);
  CHECK(out == std::vector<float>(x.size(), 7.f));
}

TEST_CASE("gradients of columns alone take a workspace on a GPU, and nothing takes none") {
  const ConstTensorView x(nullptr, DType::kBFloat16, Device::cuda(), {4096, 4096});
  const ConstTensorView weight(nullptr, DType::kBFloat16, Device::cuda(), {4096});
  const TensorView dweight(nullptr, DType::kBFloat16, Device::cuda(), {4096});
  NormBackwardCall call{.dy = &x, .x = &x, .weight = &weight, .rstd = &x};
  CHECK(norm_backward_workspace(call) == 0);
  call.dweight = &dweight;
  CHECK(norm_backward_workspace(call) > 0);
}

TEST_CASE("gradients of columns of no rows are zero, though empty arrays have null pointers") {
  constexpr std::int64_t kCols = 8;
  const ConstTensorView rows(nullptr, DType::kFloat32, Device::cpu(), {0, kCols});
  const ConstTensorView statistic(nullptr, DType::kFloat32, Device::cpu(), {0});
  const std::vector<float> ones(kCols, 1.f);
  std::vector<float> dweight(kCols, 7.f), dbias(kCols, 7.f);
  const ConstTensorView weight(ones.data(), DType::kFloat32, Device::cpu(), {kCols});
  const TensorView dweight_view(dweight.data(), DType::kFloat32, Device::cpu(), {kCols});
  const TensorView dbias_view(dbias.data(), DType::kFloat32, Device::cpu(), {kCols});
  norm_backward({.op = "layer_norm_backward",
                 .dy = &rows,
                 .x = &rows,
                 .weight = &weight,
                 .mean = &statistic,
                 .rstd = &statistic,
                 .dweight = &dweight_view,
                 .dbias = &dbias_view},
                StreamView::legacy_default());
  CHECK(dweight == std::vector<float>(kCols, 0.f));
  CHECK(dbias == std::vector<float>(kCols, 0.f));
}
