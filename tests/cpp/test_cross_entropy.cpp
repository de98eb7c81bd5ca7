// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "cross_entropy.hpp"
#include "membound/device.hpp"
#include "membound/error.hpp"
#include "membound/ops/cross_entropy.hpp"

using namespace membound_test;

TEST_CASE("cross_entropy: loss, lse and gradient of every dtype and width") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed << ", isa " << std::string(cpu_isa()));
  constexpr std::int64_t kRows = 5;
  for (DType dtype : kFloating) {
    const DType wide = accumulate_dtype(dtype);
    for (std::int64_t cols : {1, 2, 7, 32, 33, 200, 2048, 2049, 9001}) {
      for (const CrossEntropyOptions& options : {CrossEntropyOptions{}, all_options()}) {
        CAPTURE(std::string(dtype_name(dtype)));
        CAPTURE(cols);
        const auto labels = some_labels(kRows, cols);
        Array logits(dtype, {kRows, cols}), dlogits(dtype, {kRows, cols});
        Array loss(wide, {kRows}), lse(wide, {kRows}), dloss(wide, {kRows});
        logits.fill_normal(seed, 2.0);
        dloss.fill_normal(seed + 1);
        const ConstTensorView weights = dloss.view();
        const TensorView lse_view = lse.view(), written = dlogits.view();
        cross_entropy(logits.view(), view_of(labels), &weights, options, loss.view(), &lse_view,
                      &written, kStream);
        for (std::int64_t row = 0; row < kRows; ++row) {
          const ExactRow right(logits, row, cols, labels[static_cast<std::size_t>(row)], options,
                               dloss.get(row));
          CAPTURE(row);
          REQUIRE(std::abs(loss.get(row) - static_cast<double>(right.loss)) <= slack_of(dtype));
          REQUIRE(std::abs(lse.get(row) - static_cast<double>(right.lse)) <= slack_of(dtype));
          const double scale = std::abs(dloss.get(row)) * slack_of(dtype);
          for (std::int64_t col = 0; col < cols; ++col) {
            const auto wanted = static_cast<double>(right.gradient[static_cast<std::size_t>(col)]);
            REQUIRE(std::abs(dlogits.get(row * cols + col) - wanted) <=
                    scale + 0.51 * ulp(wanted, dtype));
          }
        }
      }
    }
  }
}

TEST_CASE("cross_entropy: any strides, and in place, have the bits of contiguous rows") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed);
  for (DType dtype : kFloating) {
    const DType wide = accumulate_dtype(dtype);
    for (std::int64_t cols : {5, 300, 2500}) {
      const auto labels = some_labels(4, cols);
      Array plain(dtype, {4, cols}), upright(dtype, {4, cols}, {1, 4}, 1);
      plain.fill_normal(seed);
      upright.copy_from(plain);
      Array right(dtype, {4, cols}), out(dtype, {4, cols}, {-2 * cols, 2}, 6 * cols);
      Array loss(wide, {4}), other(wide, {4}, {-3}, 9);
      const auto run = [&](Array& logits, Array& losses, Array& gradient) {
        const TensorView written = gradient.view();
        cross_entropy(logits.view(), view_of(labels), nullptr, all_options(), losses.view(),
                      nullptr, &written, kStream);
      };
      run(plain, loss, right);
      run(upright, other, out);
      CHECK(out.first_difference(right) == -1);
      CHECK(other.first_difference(loss) == -1);
      run(upright, other, upright);
      CHECK(upright.first_difference(right) == -1);
      run(plain, other, plain);
      CHECK(plain.first_difference(right) == -1);
    }
  }
}

TEST_CASE("cross_entropy: no rows, and what is refused") {
  Array logits(DType::kFloat32, {2, 4}), loss(DType::kFloat32, {2}), half(DType::kFloat16, {2});
  for (std::int64_t i = 0; i < 8; ++i) logits.set(i, 0.0);
  std::vector<std::int64_t> labels{3, -100};
  const auto call = [&](const CrossEntropyOptions& options, Array& out) {
    cross_entropy(logits.view(), view_of(labels), nullptr, options, out.view(), nullptr, nullptr,
                  kStream);
  };
  Array nothing(DType::kFloat32, {0, 4}), none(DType::kFloat32, {0});
  CHECK_NOTHROW(cross_entropy(nothing.view(), view_of({}), nullptr, {}, none.view(), nullptr,
                              nullptr, kStream));
  CrossEntropyOptions options;
  options.validate = true;
  call(options, loss);
  CHECK(std::abs(loss.get(0) - std::log(4.0)) < 1e-6);
  CHECK(loss.get(1) == 0.0);
  labels[1] = 4;
  CHECK_THROWS_AS(call(options, loss), InvalidArgument);
  CHECK_THROWS_AS(call({}, half), TypeMismatch);
  CHECK_THROWS_AS(call({}, none), InvalidArgument);
  for (const auto spoil : {+[](CrossEntropyOptions& o) { o.label_smoothing = 1.5; },
                           +[](CrossEntropyOptions& o) { o.z_loss = -1; },
                           +[](CrossEntropyOptions& o) { o.softcap = 0; },
                           +[](CrossEntropyOptions& o) { o.dloss = NAN; }}) {
    CrossEntropyOptions bad;
    spoil(bad);
    CHECK_THROWS_AS(call(bad, loss), InvalidArgument);
  }
}
