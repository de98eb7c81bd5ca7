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
        Array loss(wide, {kRows}), lse(wide, {kRows, 2}), dloss(wide, {kRows});
        logits.fill_normal(seed, 2.0);
        dloss.fill_normal(seed + 1);
        const ConstTensorView weights = dloss.view();
        const TensorView lse_view = lse.view(), written = dlogits.view();
        CrossEntropyResults also;
        also.lse = &lse_view;
        also.dlogits = &written;
        cross_entropy(logits.view(), view_of(labels), nullptr, &weights, options, loss.view(), also,
                      kStream);
        for (std::int64_t row = 0; row < kRows; ++row) {
          const ExactRow right(logits, row, cols, labels[static_cast<std::size_t>(row)], options,
                               dloss.get(row));
          CAPTURE(row);
          REQUIRE(is_near(loss.get(row), static_cast<double>(right.loss), slack_of(dtype)));
          const double both = lse.get(2 * row) + lse.get(2 * row + 1);
          REQUIRE(is_near(both, static_cast<double>(right.lse), slack_of(dtype)));
          const double scale = std::abs(dloss.get(row)) * slack_of(dtype);
          for (std::int64_t col = 0; col < cols; ++col) {
            const auto wanted = static_cast<double>(right.gradient[static_cast<std::size_t>(col)]);
            REQUIRE(
                is_near(dlogits.get(row * cols + col), wanted, scale + 0.51 * ulp(wanted, dtype)));
          }
        }
      }
    }
  }
}

TEST_CASE("cross_entropy: class weights, reductions, the z loss and predictions") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed);
  constexpr std::int64_t kRows = 4;
  constexpr double kDloss = 0.75;
  for (DType dtype : kFloating) {
    const DType wide = accumulate_dtype(dtype);
    for (std::int64_t cols : {1, 7, 300, 2500}) {
      const std::vector<std::int64_t> labels{cols - 1, -100, cols / 2, 0};
      Array logits(dtype, {kRows, cols}), dlogits(dtype, {kRows, cols}), weight(wide, {cols});
      logits.fill_normal(seed, 2.0);
      for (std::int64_t col = 0; col < cols; ++col) weight.set(col, 0.25 + 0.5 * (col % 3));
      const ConstTensorView classes = weight.view();
      const double total = weight.get(cols - 1) + weight.get(cols / 2) + weight.get(0);
      for (Reduction reduction : {Reduction::kSum, Reduction::kMean}) {
        CAPTURE(std::string(dtype_name(dtype)));
        CAPTURE(cols);
        CrossEntropyOptions options = all_options();
        options.reduction = reduction;
        options.dloss = kDloss;
        Array loss(wide, {}), z_loss(wide, {}), losses(wide, {kRows}), z_losses(wide, {kRows});
        std::vector<std::int64_t> predicted(kRows, 99);
        const TensorView z_view = z_loss.view(), rows = losses.view(), z_rows = z_losses.view(),
                         written = dlogits.view(),
                         predictions(predicted.data(), DType::kInt64, Device::cpu(), {kRows});
        CrossEntropyResults also;
        also.z_loss = &z_view;
        also.row_losses = &rows;
        also.row_z_losses = &z_rows;
        also.predictions = &predictions;
        also.dlogits = &written;
        cross_entropy(logits.view(), view_of(labels), &classes, nullptr, options, loss.view(), also,
                      kStream);
        const double divisor = reduction == Reduction::kMean ? total : 1.0;
        double right_loss = 0, right_z = 0;
        for (std::int64_t row = 0; row < kRows; ++row) {
          const std::int64_t label = labels[static_cast<std::size_t>(row)];
          const ExactRow right(logits, row, cols, label, options, kDloss / divisor, &weight);
          right_loss += static_cast<double>(right.loss) / divisor;
          right_z += static_cast<double>(right.z_loss) / divisor;
          std::int64_t largest = label < 0 ? -1 : 0;
          for (std::int64_t col = 0; col < cols; ++col) {
            const double logit = logits.get(row * cols + col);
            if (label >= 0 && logit > logits.get(row * cols + largest)) largest = col;
            const auto wanted = static_cast<double>(right.gradient[static_cast<std::size_t>(col)]);
            REQUIRE(is_near(dlogits.get(row * cols + col), wanted,
                            2 * slack_of(dtype) + 0.51 * ulp(wanted, dtype)));
          }
          CHECK(predicted[static_cast<std::size_t>(row)] == largest);
        }
        CHECK(is_near(loss.get(0), right_loss, 8 * slack_of(dtype)));
        CHECK(is_near(z_loss.get(0), right_z, 8 * slack_of(dtype)));
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
      Array plain(dtype, {4, cols}), transposed(dtype, {4, cols}, {1, 4}, 1);
      plain.fill_normal(seed);
      transposed.copy_from(plain);
      Array right(dtype, {4, cols}), out(dtype, {4, cols}, {-2 * cols, 2}, 6 * cols);
      Array loss(wide, {4}), other(wide, {4}, {-3}, 9);
      const auto run = [&](Array& logits, Array& losses, Array& gradient) {
        const TensorView written = gradient.view();
        CrossEntropyResults also;
        also.dlogits = &written;
        cross_entropy(logits.view(), view_of(labels), nullptr, nullptr, all_options(),
                      losses.view(), also, kStream);
      };
      run(plain, loss, right);
      run(transposed, other, out);
      CHECK(out.first_difference(right) == -1);
      CHECK(other.first_difference(loss) == -1);
      run(transposed, other, transposed);
      CHECK(transposed.first_difference(right) == -1);
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
    cross_entropy(logits.view(), view_of(labels), nullptr, nullptr, options, out.view(), {},
                  kStream);
  };
  Array nothing(DType::kFloat32, {0, 4}), none(DType::kFloat32, {0});
  CHECK_NOTHROW(
      cross_entropy(nothing.view(), view_of({}), nullptr, nullptr, {}, none.view(), {}, kStream));
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
