// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace membound {

// The reduction tree for one row of an embedding table's gradient: blocks of kGradientBlock tokens
// are summed in order, block i is added to partial sum i % kGradientSums, and the partial sums are
// added in order. Longer blocks would leave most of a GPU idle when one id has thousands of tokens;
// shorter ones move more partial sums, which already take 1/16 of the bytes of bfloat16.
inline constexpr std::int64_t kGradientBlock = 32;
inline constexpr int kGradientSums = 16;

}  // namespace membound
