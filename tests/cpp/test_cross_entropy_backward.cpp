// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "cross_entropy.hpp"
#include "membound/device.hpp"
#include "membound/error.hpp"
#include "membound/ops/cross_entropy_backward.hpp"

using namespace membound_test;

TEST_CASE("cross_entropy_backward: the bits that the forward writes") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed << ", isa " << std::string(cpu_isa()));
  for (DType dtype : kFloating) {
    const DType wide = accumulate_dtype(dtype);
    for (std::int64_t cols : {1, 7, 32, 33, 200, 2049}) {
      for (const CrossEntropyOptions& options : {CrossEntropyOptions{}, all_options()}) {
        CAPTURE(std::string(dtype_name(dtype)));
        CAPTURE(cols);
        const auto labels = some_labels(4, cols);
        Array logits(dtype, {4, cols}), right(dtype, {4, cols}), dlogits(dtype, {4, cols});
        Array loss(wide, {4}), lse(wide, {4, 2}), dloss(wide, {4});
        logits.fill_normal(seed, 2.0);
        dloss.fill_normal(seed + 1);
        const ConstTensorView weights = dloss.view();
        const TensorView lse_view = lse.view(), written = right.view();
        CrossEntropyResults also;
        also.lse = &lse_view;
        also.dlogits = &written;
        cross_entropy(logits.view(), view_of(labels), nullptr, &weights, options, loss.view(), also,
                      kStream);
        cross_entropy_backward(&weights, logits.view(), view_of(labels), lse_view, nullptr, options,
                               dlogits.view(), nullptr, kStream);
        CHECK(dlogits.first_difference(right) == -1);
        cross_entropy_backward(&weights, logits.view(), view_of(labels), lse_view, nullptr, options,
                               logits.view(), nullptr, kStream);
        CHECK(logits.first_difference(right) == -1);
      }
    }
  }
}

TEST_CASE("cross_entropy: entropies of rows and their gradient") {
  const std::uint32_t seed = test_seed();
  INFO("seed " << seed << ", isa " << std::string(cpu_isa()));
  const auto labels = some_labels(4, 2049);
  Array logits(DType::kFloat64, {4, 2049}), dlogits(DType::kFloat64, {4, 2049});
  Array loss(DType::kFloat64, {4}), lse(DType::kFloat64, {4, 2});
  Array entropy(DType::kFloat64, {4}), dentropy(DType::kFloat64, {4});
  logits.fill_normal(seed, 2.0);
  dentropy.fill_normal(seed + 1);
  const TensorView lse_view = lse.view(), entropy_view = entropy.view();
  const ConstTensorView known = entropy.view(), slopes = dentropy.view();
  CrossEntropyResults also;
  also.lse = &lse_view;
  also.entropy = &entropy_view;
  cross_entropy(logits.view(), view_of(labels), nullptr, nullptr, {}, loss.view(), also, kStream);
  CrossEntropyOptions options;
  options.dloss = 0;
  cross_entropy_backward(nullptr, logits.view(), view_of(labels), lse_view, nullptr, options,
                         dlogits.view(), nullptr, kStream, {&known, &slopes});
  for (std::int64_t row = 0; row < 4; ++row) {
    const std::int64_t label = labels[static_cast<std::size_t>(row)];
    const ExactRow exact(logits, row, 2049, label, {}, 0);
    long double right = label < 0 ? 0 : exact.lse;  // NaN where the label is no column
    for (std::int64_t col = 0; col < 2049 && label >= 0; ++col) {
      const long double l = logits.get(row * 2049 + col);
      right -= std::exp(l - exact.lse) * l;
    }
    CHECK(is_near(entropy.get(row), static_cast<double>(right), 0x1p-44));
    for (std::int64_t col = 0; col < 2049; ++col) {
      const long double log_p = logits.get(row * 2049 + col) - exact.lse;
      const long double slope = -dentropy.get(row) * std::exp(log_p) * (log_p + right);
      const double wanted = static_cast<double>(label == -100 ? 0 : slope);
      if (!is_near(dlogits.get(row * 2049 + col), wanted, 0x1p-48)) FAIL("row ", row, " of ", col);
    }
  }
  CHECK_THROWS_AS(cross_entropy_backward(nullptr, logits.view(), view_of(labels), lse_view, nullptr,
                                         {}, dlogits.view(), nullptr, kStream, {&known, nullptr}),
                  InvalidArgument);
}

TEST_CASE("cross_entropy_backward: no rows, and what is refused") {
  Array logits(DType::kFloat32, {2, 4}), lse(DType::kFloat32, {2}), wrong(DType::kFloat64, {2});
  const std::vector<std::int64_t> labels{3, -100};
  const auto call = [&](const Array& known, const std::vector<std::int64_t>& columns) {
    cross_entropy_backward(nullptr, logits.view(), view_of(columns), known.view(), nullptr, {},
                           logits.view(), nullptr, kStream);
  };
  Array nothing(DType::kFloat32, {0, 4}), none(DType::kFloat32, {0});
  CHECK_NOTHROW(cross_entropy_backward(nullptr, nothing.view(), view_of({}), none.view(), nullptr,
                                       {}, nothing.view(), nullptr, kStream));
  CHECK_NOTHROW(call(lse, labels));
  CHECK_THROWS_AS(call(wrong, labels), TypeMismatch);
  CHECK_THROWS_AS(call(none, labels), InvalidArgument);
  CHECK_THROWS_AS(call(lse, {1}), InvalidArgument);
}
