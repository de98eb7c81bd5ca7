// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "array.hpp"
#include "membound/ops/cross_entropy_backward.hpp"

// Shared by the tests of cross_entropy and of its gradient.
namespace membound_test {

inline const StreamView kStream = StreamView::legacy_default();

// Labels cycle through the columns; the second row is ignored, the third's label is not a column.
inline std::vector<std::int64_t> some_labels(std::int64_t rows, std::int64_t cols) {
  std::vector<std::int64_t> labels;
  for (std::int64_t row = 0; row < rows; ++row) labels.push_back((row * 7 + cols - 1) % cols);
  if (rows > 1) labels[1] = -100;
  if (rows > 2) labels[2] = cols;
  return labels;
}
inline ConstTensorView view_of(const std::vector<std::int64_t>& labels) {
  return ConstTensorView(labels.data(), DType::kInt64, Device::cpu(),
                         {static_cast<std::int64_t>(labels.size())});
}

// The loss, lse and gradient of one row in long double.
struct ExactRow {
  long double loss = 0, lse = 0, z_loss = 0;
  std::vector<long double> gradient;

  ExactRow(const Array& logits, std::int64_t row, std::int64_t cols, std::int64_t label,
           const CrossEntropyOptions& options, long double dloss, const Array* weight = nullptr)
      : gradient(static_cast<std::size_t>(cols), 0.0L) {
    if (label < 0 || label >= cols) {
      if (label == options.ignore_index) return;
      loss = lse = std::numeric_limits<long double>::quiet_NaN();
      std::fill(gradient.begin(), gradient.end(), loss);
      return;
    }
    const bool caps = std::isfinite(options.softcap);
    const long double cap = options.softcap;
    std::vector<long double> l, slopes;
    for (std::int64_t col = 0; col < cols; ++col) {
      const long double x = logits.get(row * cols + col), turned = caps ? std::tanh(x / cap) : 0;
      l.push_back(caps ? cap * turned : x);
      slopes.push_back(caps ? 1 - turned * turned : 1);
    }
    const long double top = *std::max_element(l.begin(), l.end()), count = cols;
    const auto weight_of = [&](std::int64_t col) {
      return weight == nullptr ? 1.0L : static_cast<long double>(weight->get(col));
    };
    long double sum = 0, weights = 0, distances = 0;
    for (const long double one : l) sum += std::exp(one - top);
    lse = top + std::log(sum);
    for (std::int64_t col = 0; col < cols; ++col) {
      weights += weight_of(col);
      distances += weight_of(col) * (lse - l[static_cast<std::size_t>(col)]);
    }
    const long double smoothing = options.label_smoothing, z = options.z_loss;
    const long double here = weight_of(label), kept = (1 - smoothing) * here;
    z_loss = z * here * lse * lse;
    loss =
        kept * (lse - l[static_cast<std::size_t>(label)]) + smoothing / count * distances + z_loss;
    const long double along = kept + smoothing / count * weights + 2 * z * here * lse;
    for (std::int64_t col = 0; col < cols; ++col) {
      const auto at = static_cast<std::size_t>(col);
      gradient[at] = dloss * slopes[at] *
                     (std::exp(l[at] - lse) * along - smoothing / count * weight_of(col) -
                      (col == label ? kept : 0));
    }
  }
};

inline CrossEntropyOptions all_options() {
  CrossEntropyOptions options;
  options.label_smoothing = 0.1;
  options.z_loss = 0.01;
  options.softcap = 3;
  return options;
}

// NaN matches only NaN.
inline bool is_near(double found, double right, double allowed) {
  if (std::isnan(found) || std::isnan(right)) return std::isnan(found) && std::isnan(right);
  return std::abs(found - right) <= allowed;
}

// Slack for the rounding of logits, of their sum and of their differences.
inline double slack_of(DType dtype) { return dtype == DType::kFloat64 ? 0x1p-48 : 0x1p-19; }

}  // namespace membound_test
