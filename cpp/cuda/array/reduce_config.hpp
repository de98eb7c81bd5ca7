// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace membound::cuda::tuning {

inline constexpr int kReduceThreads = 256;

// How a reduction is shared out. It depends on the problem alone, so that the order of the
// additions, and with it each bit, is the same on GPUs with any number of SMs.
struct ReduceConfig {
  int lanes;            // threads for one result (rows), or one unit of results (columns)
  int width;            // results, or units of them, of a block
  std::int64_t chunks;  // parts of the reduced elements, each with partial results of its own
  std::int64_t chunk;   // loads (rows) or elements (columns) of a part
};

constexpr int power_of_two(std::int64_t least, int most) {
  int power = 1;
  while (power < least && power < most) power *= 2;
  return power;
}

// steps: what is reduced, one load each. results: what one thread makes at a time, results or units
// of results. Blocks of kReduceThreads threads; when there are fewer of them than `enough` for a
// GPU, the reduced elements are split, but not into parts of less than 16 loads a thread.
constexpr ReduceConfig reduce_config(std::int64_t results, std::int64_t steps, int lanes,
                                     std::int64_t enough) {
  constexpr std::int64_t kFewestLoads = 16;
  const std::int64_t blocks = (results * lanes + kReduceThreads - 1) / kReduceThreads;
  const std::int64_t wanted = std::max<std::int64_t>(enough / blocks, blocks < enough ? 2 : 1);
  const std::int64_t most = std::max<std::int64_t>(1, steps / (kFewestLoads * lanes));
  const std::int64_t chunks = std::min(wanted, most);
  const std::int64_t chunk = (steps + chunks - 1) / chunks;
  return {lanes, kReduceThreads / lanes, chunk == 0 ? 1 : (steps + chunk - 1) / chunk, chunk};
}

// Units of a load of a row, as a power of two: 16 bytes at least.
constexpr int load_unit_bits(std::size_t item_bytes) {
  return item_bytes == 1 ? 2 : item_bytes == 2 ? 1 : 0;
}

// Along adjacent elements: sixteen loads for each of the threads of a result, but a warp for it
// where that leaves four, and more threads while there are too few for a GPU.
constexpr ReduceConfig reduce_rows_config(std::int64_t results, std::int64_t loads) {
  constexpr std::int64_t kFewestThreads = 1 << 18;
  const int most = power_of_two((loads + 3) / 4, kReduceThreads);
  int lanes = std::max(power_of_two((loads + 15) / 16, most), std::min(most, 32));
  while (lanes < most && results * lanes < kFewestThreads) lanes *= 2;
  return reduce_config(results, loads, lanes, 2048);
}

// Across adjacent results: a block is 32 units wide if there are so many. Its chunks have more
// results to be merged than those of rows.
constexpr ReduceConfig reduce_columns_config(std::int64_t units, std::int64_t steps) {
  return reduce_config(units, steps, kReduceThreads / power_of_two(units, 32), 512);
}

// Threads for the partial results of one result: eight of them for each, or one of few.
constexpr int chunk_lanes(std::int64_t chunks) {
  return power_of_two((chunks + 7) / 8, kReduceThreads);
}

}  // namespace membound::cuda::tuning
