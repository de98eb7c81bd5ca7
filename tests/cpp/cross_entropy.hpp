// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "array.hpp"
#include "membound/ops/cross_entropy_backward.hpp"

// What the tests of cross_entropy and of its gradient share.
namespace membound_test {

inline const StreamView kStream = StreamView::legacy_default();

// Columns in turn; the second row is ignored, the third has none.
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

// One row in long double: its loss, lse and gradient.
struct ExactRow {
  long double loss = 0, lse = 0;
  std::vector<long double> gradient;

  ExactRow(const Array& logits, std::int64_t row, std::int64_t cols, std::int64_t label,
           const CrossEntropyOptions& options, long double dloss)
      : gradient(static_cast<std::size_t>(cols), 0.0L) {
    if (label < 0 || label >= cols) return;
    const bool caps = std::isfinite(options.softcap);
    const long double cap = options.softcap;
    std::vector<long double> l, slopes;
    for (std::int64_t col = 0; col < cols; ++col) {
      const long double x = logits.get(row * cols + col), turned = caps ? std::tanh(x / cap) : 0;
      l.push_back(caps ? cap * turned : x);
      slopes.push_back(caps ? 1 - turned * turned : 1);
    }
    const long double top = *std::max_element(l.begin(), l.end()), count = cols;
    long double sum = 0, total = 0;
    for (const long double one : l) {
      sum += std::exp(one - top);
      total += one;
    }
    lse = top + std::log(sum);
    const long double smoothing = options.label_smoothing, z = options.z_loss;
    loss = (1 - smoothing) * (lse - l[static_cast<std::size_t>(label)]) +
           smoothing * (lse - total / count) + z * lse * lse;
    for (std::size_t col = 0; col < l.size(); ++col) {
      const bool is_label = static_cast<std::int64_t>(col) == label;
      gradient[col] = dloss * slopes[col] *
                      (std::exp(l[col] - lse) * (1 + 2 * z * lse) - smoothing / count -
                       (is_label ? 1 - smoothing : 0));
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

// Roundings of logits, of their sum and of distances between them.
inline double slack_of(DType dtype) { return dtype == DType::kFloat64 ? 0x1p-48 : 0x1p-19; }

}  // namespace membound_test
