// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of the generic norms: a pure function of the shape, which fixes the
// reduction tree of every sum.
#include <algorithm>
#include <cstdint>

namespace membound::cuda::tuning {

// Quads (four neighbouring columns) that a thread keeps in registers. Gradients hold fewer, because
// they keep column sums in registers, too.
inline constexpr int kGenericQuads = 4;
inline constexpr int kGenericGradientQuads = 2;
inline constexpr int kGenericThreads = 512;  // per row, at most; wider rows are read again
inline constexpr int kGenericWarp = 32;

// Threads per row: the whole warps that hold it, `held` quads per thread.
inline int generic_threads(std::int64_t cols, int held) {
  const std::int64_t quads = (cols + 3) / 4;
  const std::int64_t warps = (quads + held * kGenericWarp - 1) / (held * kGenericWarp);
  return static_cast<int>(std::min<std::int64_t>(warps * kGenericWarp, kGenericThreads));
}

struct GenericConfig {
  int threads;         // per row
  int rows_per_block;  // above 1 only if a row takes one warp
  std::int64_t blocks;
};
inline GenericConfig generic_config(std::int64_t rows, std::int64_t cols) {
  constexpr std::int64_t kMaxBlocks = (std::int64_t{1} << 31) - 1;
  const int threads = generic_threads(cols, kGenericQuads);
  // Rows per block grow where four rows each would exceed the grid limit.
  const int warps = rows <= 4 * kMaxBlocks ? 4 : kGenericThreads / kGenericWarp;
  const int each = threads == kGenericWarp ? warps : 1;
  return {threads, each, (rows + each - 1) / each};
}

// Persistent blocks per head: enough to fill a GPU of 132 SMs with 512 threads each, and few enough
// that their partial sums are a small part of the traffic.
struct GenericBackwardConfig {
  int threads;
  int partial_rows;  // blocks per head
};
inline GenericBackwardConfig generic_backward_config(std::int64_t rows, std::int64_t cols,
                                                     std::int64_t heads, bool sums) {
  constexpr std::int64_t kThreads = 132 * 512, kMinRows = 4, kMost = std::int64_t{1} << 20;
  const int threads = generic_threads(cols, kGenericGradientQuads);
  const std::int64_t of_head = std::max<std::int64_t>(1, rows / std::max<std::int64_t>(1, heads));
  const std::int64_t least = sums ? kMinRows : 1, waves = sums ? 1 : 4;
  const std::int64_t wanted =
      std::max<std::int64_t>(1, waves * kThreads / threads / std::max<std::int64_t>(1, heads));
  const std::int64_t blocks = std::min({wanted, (of_head + least - 1) / least, kMost});
  return {threads, static_cast<int>(blocks)};
}

}  // namespace membound::cuda::tuning
