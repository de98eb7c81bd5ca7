// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/error.hpp"
#include "membound/ops/add_layer_norm.hpp"
#include "norm_backward.hpp"

using namespace membound_test;

namespace {
constexpr BackwardOp kOp{/*adds=*/true, /*centred=*/true};
}

TEST_CASE("add_layer_norm_backward: every dtype, weight dtype, offset and width") {
  test_backward_values(kOp);
}

TEST_CASE("add_layer_norm_backward: strides, alignment, order and place change no bit") {
  test_backward_layouts(kOp);
}

TEST_CASE("add_layer_norm_backward: one thread and two give the same bits") {
  test_backward_threads(kOp);
}

TEST_CASE("add_layer_norm_backward: finite differences") {
  test_backward_by_differences(kOp, [](const BackwardCase& c, double offset) {
    // x is also residual_out, as the residual is 0.
    Array zero(DType::kFloat64, c.x.shape()), out(DType::kFloat64, c.x.shape());
    Array sum(DType::kFloat64, c.x.shape());
    for (std::int64_t i = 0; i < zero.size(); ++i) zero.set(i, 0.0);
    add_layer_norm(c.x.view(), zero.view(), Optional<ConstTensorView>(c.weight.get()).get(),
                   nullptr, {1e-6, offset}, out.view(), sum.view(), nullptr, nullptr,
                   StreamView::legacy_default());
    double loss = 0;
    for (std::int64_t i = 0; i < out.size(); ++i)
      loss += out.get(i) * c.dy.get(i) + sum.get(i) * c.dsum.get(i);
    return loss;
  });
}

TEST_CASE("add_layer_norm_backward: dx is the plain one plus dresidual_out, the rest is the same") {
  const BackwardCase c(DType::kFloat64, {40, 70}, 3, kOp, test_seed());
  BackwardInputs plain = c.inputs();
  plain.dsum = nullptr;
  Array dx(DType::kFloat64, {40, 70}), dx_plain(DType::kFloat64, {40, 70});
  Array dweight(DType::kFloat64, {70}), dweight_plain(DType::kFloat64, {70});
  Array dbias(DType::kFloat64, {70}), dbias_plain(DType::kFloat64, {70});
  run_backward(c.inputs(), {}, &dx, &dweight, &dbias);
  run_backward(plain, {}, &dx_plain, &dweight_plain, &dbias_plain);
  for (std::int64_t i = 0; i < dx.size(); ++i)
    REQUIRE(dx.get(i) == doctest::Approx(dx_plain.get(i) + c.dsum.get(i)).epsilon(1e-14));
  CHECK(dweight.first_difference(dweight_plain) == -1);
  CHECK(dbias.first_difference(dbias_plain) == -1);
}

TEST_CASE("add_layer_norm_backward: errors name the op and the array") {
  const BackwardCase c(DType::kFloat32, {2, 8}, 2, kOp, test_seed());
  Array dx(DType::kFloat32, {2, 8}), dbias(DType::kFloat32, {8});
  Array narrow(DType::kFloat32, {2, 7}), whole(DType::kInt32, {2, 8});
  BackwardInputs in = c.inputs();
  in.dsum = &narrow;
  CHECK_THROWS_WITH_AS(
      run_backward(in, {}, &dx, nullptr, &dbias),
      "add_layer_norm_backward: argument 'dresidual_out' must have shape (2, 8), got (2, 7)",
      InvalidArgument);
  in.dsum = &whole;
  CHECK_THROWS_AS(run_backward(in, {}, &dx, nullptr, &dbias), TypeMismatch);
  in = c.inputs();
  in.x = &narrow;
  CHECK_THROWS_AS(run_backward(in, {}, &dx, nullptr, &dbias), InvalidArgument);
}
