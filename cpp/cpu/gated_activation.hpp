// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <limits>

#include "cpu/kernels/gated_activation.hpp"
#include "cpu/segments.hpp"
#include "ops/gated_activation.hpp"

// What the CPU back ends of gated activations share.
namespace membound::cpu {

inline ActivationNumbers numbers_of(const GatedActivationOptions& options, DType dtype, bool gated,
                                    bool has_row_scale) {
  static_assert(static_cast<int>(ActivationKind::kSitu) == static_cast<int>(Activation::kSitu));
  const bool wide = dtype == DType::kFloat64;
  const double largest = wide ? std::numeric_limits<double>::max()
                              : static_cast<double>(std::numeric_limits<float>::max());
  // Beyond these limits the logistic function is 0 or 1: see cpu/exponential.hpp.
  const double lowest = wide ? -760.0 : -110.0, highest = wide ? 80.0 : 40.0;
  const bool situ = options.kind == Activation::kSitu, caps = situ && options.limit <= largest;
  const double slope = situ ? 1.0 : options.alpha;  // of the logistic function's argument
  return {static_cast<ActivationKind>(options.kind),
          gated && !has_row_scale && options.alpha == 1.0 && options.limit > largest &&
              options.up_offset == 0.0,
          options.alpha,
          situ ? std::numeric_limits<double>::infinity() : options.limit,
          options.up_offset,
          caps ? options.limit : 0.0,
          std::max(lowest / slope, -largest),
          std::min(highest / slope, largest)};
}

// Moves the row scales of `part` to row `at` of `all`.
template <class Rows>
void seek_row_scale(Rows& part, const Rows& all, std::int64_t at) {
  part.row_scale =
      offset_pointer(all.row_scale, at * all.row_scale_row_stride, accumulate_dtype(all.dtype));
}

}  // namespace membound::cpu
