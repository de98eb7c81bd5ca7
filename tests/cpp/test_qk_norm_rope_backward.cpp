// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/device.hpp"
#include "membound/error.hpp"
#include "qk_norm.hpp"

using namespace membound_test;

namespace {

const StreamView kStream = StreamView::legacy_default();
constexpr std::int64_t kSeq = 70, kHeads = 3, kDim = 48;

struct Backward {
  explicit Backward(DType dtype)
      : q(dtype, {2, kSeq, kHeads, kDim}),
        dq(dtype, {2, kSeq, kHeads, kDim}),
        dq_out(dtype, {2, kSeq, kHeads, kDim}),
        weight(dtype, {kDim}),
        dweight(DType::kFloat64, {kDim}),
        tables(accumulate_dtype(dtype), kSeq, kDim) {
    q.fill_normal(test_seed());
    dq.fill_normal(test_seed() + 1);
    weight.fill_normal(test_seed() + 2);
  }
  void run(bool accumulate = false) {
    const ConstTensorView cos = tables.cos.view(), sin = tables.sin.view(), w = weight.view();
    const ConstTensorView x = q.view(), dy = dq.view();
    const TensorView dx = dq_out.view(), sums = dweight.view();
    RopeAngles angles;
    angles.cos = &cos;
    angles.sin = &sin;
    qk_norm_rope_backward({dy, x, &w, nullptr, dx, &sums}, nullptr, angles, options, accumulate,
                          nullptr, kStream);
  }
  Array q, dq, dq_out, weight, dweight;
  Tables tables;
  QkNormRopeOptions options;
};

// dx, and the sums of dweight with the magnitude of their terms.
struct Right {
  std::vector<double> dx, dweight, size;
};
Right definition(const Backward& one) {
  const Normed h = normed(one.q, one.options.eps);
  std::vector<double> dy;
  for (std::int64_t i = 0; i < one.dq.size(); ++i) dy.push_back(one.dq.get(i));
  RopeOptions back = one.options.rope;
  back.inverse = !back.inverse;
  const std::vector<double> t = turned_numbers(dy, one.dq, one.tables, back);
  Right right{{}, std::vector<double>(kDim), std::vector<double>(kDim)};
  for (std::size_t head = 0; head < h.rstd.size(); ++head) {
    double mean = 0;
    for (std::size_t i = 0; i < kDim; ++i) {
      const std::size_t at = head * kDim + i;
      mean += t[at] * one.weight.get(static_cast<std::int64_t>(i)) * h.value[at] / kDim;
      right.dweight[i] += t[at] * h.value[at];
      right.size[i] += std::abs(t[at] * h.value[at]);
    }
    for (std::size_t i = 0; i < kDim; ++i) {
      const std::size_t at = head * kDim + i;
      const double g = t[at] * one.weight.get(static_cast<std::int64_t>(i));
      right.dx.push_back(h.rstd[head] * (g - h.value[at] * mean));
    }
  }
  return right;
}

}  // namespace

TEST_CASE("qk_norm_rope_backward: its definition, in every dtype and both styles") {
  INFO("seed " << test_seed() << ", isa " << std::string(cpu_isa()));
  for (DType dtype : kFloating) {
    for (bool interleaved : {false, true}) {
      Backward one(dtype);
      one.options.rope.interleaved = interleaved;
      one.run();
      const Right right = definition(one);
      check_near(one.dq_out, right.dx, roundings(dtype));
      for (std::int64_t i = 0; i < kDim; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const double slack = roundings(dtype) * right.size[at];
        REQUIRE(std::abs(one.dweight.get(i) - right.dweight[at]) <= slack);
      }
    }
  }
}

TEST_CASE("qk_norm_rope_backward: sums are added, and the same again") {
  Backward one(DType::kFloat32), again(DType::kFloat32);
  one.run();
  for (std::int64_t i = 0; i < kDim; ++i) again.dweight.set(i, 2.0);
  again.run(/*accumulate=*/true);
  for (std::int64_t i = 0; i < kDim; ++i) {
    REQUIRE(again.dweight.get(i) == doctest::Approx(one.dweight.get(i) + 2.0));
  }
  again.run();
  for (std::int64_t i = 0; i < kDim; ++i) REQUIRE(again.dweight.get(i) == one.dweight.get(i));
}
