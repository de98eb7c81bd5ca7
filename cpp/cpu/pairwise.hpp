// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// The tree in which arrays are reduced; it depends on the number of elements alone. Blocks of
// kTreeBlock elements are taken together in kTreeLanes lanes (element i in lane i % kTreeLanes),
// the lanes by halving, and the blocks pairwise, as a binary counter adds them up. No std:: header
// here: kernels include this one.
namespace membound::cpu {

inline constexpr std::int64_t kTreeLanes = 32, kTreeBlock = 512;
// Complete subtrees that threads share out.
inline constexpr std::int64_t kChunk = 64 * kTreeBlock;
inline constexpr int kTreeLevels = 48;

// Which entries of a stack to take together: push() says how many times the new entry takes in the
// one before it.
struct PairwiseCounter {
  std::int64_t pushed = 0;

  int merges_of_next() { return __builtin_ctzll(static_cast<unsigned long long>(++pushed)); }
  int depth() const { return __builtin_popcountll(static_cast<unsigned long long>(pushed)); }
};

}  // namespace membound::cpu
