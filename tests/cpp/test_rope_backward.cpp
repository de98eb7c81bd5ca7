// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/device.hpp"
#include "membound/error.hpp"
#include "rope.hpp"

using namespace membound_test;

namespace {

const StreamView kStream = StreamView::legacy_default();
constexpr std::int64_t kSeq = 300, kHeads = 3, kDim = 64;

struct Backward {
  explicit Backward(DType dtype)
      : q(dtype, {2, kSeq, kHeads, kDim}),
        dq(dtype, {2, kSeq, kHeads, kDim}),
        dq_out(dtype, {2, kSeq, kHeads, kDim}),
        freqs(DType::kFloat64, {kDim / 2}),
        dfreqs(DType::kFloat64, {kDim / 2}) {
    q.fill_normal(test_seed());
    dq.fill_normal(test_seed() + 1);
    for (std::int64_t j = 0; j < kDim / 2; ++j) freqs.set(j, angle_of(1, j, kDim));
  }
  void run(const RopeOptions& options) {
    const ConstTensorView x = q.view(), f = freqs.view();
    const TensorView gradient = dfreqs.view();
    RopeAngles angles;
    angles.freqs = &f;
    rope_backward(dq.view(), nullptr, &x, nullptr, angles, options, dq_out.view(), nullptr,
                  &gradient, nullptr, kStream);
  }
  Array q, dq, dq_out, freqs, dfreqs;
};

}  // namespace

TEST_CASE("rope_backward: the transpose, and the gradient of frequencies by its definition") {
  INFO("seed " << test_seed() << ", isa " << std::string(cpu_isa()));
  for (DType dtype : kFloating) {
    for (bool interleaved : {false, true}) {
      for (bool inverse : {false, true}) {
        RopeOptions options;
        options.interleaved = interleaved;
        options.inverse = inverse;
        Backward one(dtype);
        one.run(options);
        RopeOptions back = options;
        back.inverse = !inverse;
        const Tables tables(DType::kFloat64, kSeq, kDim);
        const Turned right =
            turned(one.dq, tables, back, kDim, [](std::int64_t, std::int64_t s) { return s; });
        const double roundings = 4 * std::ldexp(1.0, -format_of(accumulate_dtype(dtype)).precision);
        for (std::int64_t i = 0; i < one.dq_out.size(); ++i) {
          const auto at = static_cast<std::size_t>(i);
          const double slack = 0.51 * ulp(right.value[at], dtype) + roundings * right.terms[at];
          REQUIRE(std::abs(one.dq_out.get(i) - right.value[at]) <= slack);
        }
        for (std::int64_t pair = 0; pair < kDim / 2; ++pair) {
          const std::int64_t first = interleaved ? 2 * pair : pair;
          const std::int64_t second = first + (interleaved ? 1 : kDim / 2);
          double sum = 0, size = 0;
          for (std::int64_t head = 0; head < 2 * kSeq * kHeads; ++head) {
            const double position = static_cast<double>(head / kHeads % kSeq);
            const double a = one.q.get(head * kDim + first) * one.dq_out.get(head * kDim + second);
            const double b = one.q.get(head * kDim + second) * one.dq_out.get(head * kDim + first);
            sum += position * (a - b);
            size += position * (std::abs(a) + std::abs(b));
          }
          CHECK(std::abs(one.dfreqs.get(pair) - (inverse ? -sum : sum)) <= roundings * size);
        }
      }
    }
  }
}

TEST_CASE("rope_backward: the same bits for any number of threads") {
  Backward one(DType::kFloat32), other(DType::kFloat32);
  set_cpu_threads(1);
  one.run({});
  set_cpu_threads(3);
  other.run({});
  set_cpu_threads(0);
  CHECK(one.dq_out.first_difference(other.dq_out) == -1);
  CHECK(one.dfreqs.first_difference(other.dfreqs) == -1);
}

TEST_CASE("rope_backward: no tokens have a gradient of zeros") {
  Array none(DType::kFloat32, {1, 0, 2, 8}), freqs(DType::kFloat32, {4});
  Array dfreqs(DType::kFloat32, {4});
  for (std::int64_t j = 0; j < 4; ++j) freqs.set(j, 1.0);
  const ConstTensorView x = none.view(), f = freqs.view();
  const TensorView gradient = dfreqs.view();
  RopeAngles angles;
  angles.freqs = &f;
  rope_backward(none.view(), nullptr, &x, nullptr, angles, {}, none.view(), nullptr, &gradient,
                nullptr, kStream);
  for (std::int64_t j = 0; j < 4; ++j) CHECK(dfreqs.get(j) == 0.0);
  angles.freqs = nullptr;
  CHECK_THROWS_AS(rope_backward(none.view(), nullptr, &x, nullptr, angles, {}, none.view(), nullptr,
                                &gradient, nullptr, kStream),
                  InvalidArgument);
}
