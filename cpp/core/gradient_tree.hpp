// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace membound {

// How the gradient of one row of an embedding table is summed: so many tokens, or the rest, are
// added in their order, and piece i is added to sum i % kGradientSums, in order; then those sums,
// in order. Longer pieces would leave most of a GPU idle where one id has thousands of tokens,
// shorter ones move more partial sums: those of 32 are 1/16 of the bytes of bfloat16.
inline constexpr std::int64_t kGradientPiece = 32;
inline constexpr int kGradientSums = 16;

}  // namespace membound
