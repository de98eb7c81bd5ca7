// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Groups tokens by table row, in token order: a stable LSD radix sort by row, and the start of each
// row. Integers only; no result depends on the order of blocks.
#include "cuda/activation/gate_tile.cuh"
#include "cuda/embedding/embedding_backward_config.hpp"
#include "ops/embedding_backward.hpp"

namespace membound::cuda {

inline constexpr int kSortWarps = tuning::kSortThreads / 32;

struct TokenGroups {
  // Sorted in [0]. [1] is the other ping-pong buffer; finally it has the starts of the rows that
  // occur.
  std::uint32_t *rows[2], *tokens[2];
  std::uint32_t* first;   // first token of each row, and of none; ends where the next begins
  std::uint32_t* counts;  // of digits, per tile
  tuning::SortConfig config;
};

// Zero fill for extra blocks of a kernel: the 16-byte vectors [first, last).
struct ZeroVectors {
  void* data = nullptr;
  std::int64_t first = 0, last = 0;

  std::int64_t blocks() const { return last > first ? tuning::kZeroBlocks : 0; }
  __device__ void write(unsigned block) const {
    auto* const to = static_cast<uint4*>(data);
    const unsigned step = tuning::kZeroBlocks * blockDim.x;
#pragma unroll 1
    for (std::int64_t at = first + block * blockDim.x + threadIdx.x; at < last; at += step) {
      to[at] = uint4{0, 0, 0, 0};
    }
  }
};

struct TokenGroupsParams {
  EmbeddingBackwardProblem problem;
  TokenGroups groups;
  int pass;
  ZeroVectors zeros;
};

// One pass over all tokens. The first pass reads the ids; an extra pass after the last digit, for
// sparse gradients only, moves the first token of each row to the front.
struct SortPass {
  const TokenGroupsParams& p;
  std::uint32_t first, last;  // tokens of this block

  struct Item {
    std::uint32_t key, token;
  };

  __device__ explicit SortPass(const TokenGroupsParams& params) : p(params) {
    const auto tokens = static_cast<std::uint32_t>(p.problem.tokens);
    const auto tile = static_cast<std::uint32_t>(p.groups.config.tile_tokens);
    first = blockIdx.x * tile;
    last = tokens - first < tile ? tokens : first + tile;
  }
  __device__ bool finds_rows() const { return p.pass == p.groups.config.passes; }
  __device__ int from() const { return (p.groups.config.passes - p.pass) & 1; }
  __device__ int to() const { return from() ^ 1; }

  __device__ void read_ids() const {
    if (p.pass > 0) return;
    const TokenIntegers& ids = p.problem.ids;
    constexpr int kAtOnce = 4;  // in flight: loads are not hoisted above a store
    constexpr std::uint32_t kStep = tuning::kSortThreads;
#pragma unroll 1
    for (std::uint32_t at = first + threadIdx.x; at < last; at += kAtOnce * kStep) {
      std::uint32_t rows[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (at + i * kStep >= last) continue;
        rows[i] = p.problem.row_of(ids.at(token_offset(ids.tokens, at + i * kStep)));
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (at + i * kStep < last) p.groups.rows[from()][at + i * kStep] = rows[i];
      }
    }
    __syncthreads();
  }
  __device__ Item load(std::uint32_t at) const {
    const std::uint32_t* const rows = p.groups.rows[from()];
    const std::uint32_t key = rows[at];
    if (!finds_rows()) return {key, p.pass == 0 ? at : p.groups.tokens[from()][at]};
    return {key < p.problem.vocab && (at == 0 || rows[at - 1] != key) ? 0u : 1u, at};
  }
  __device__ std::uint32_t digit(std::uint32_t key) const {
    const int bits = p.groups.config.digit_bits;
    return finds_rows() ? key : key >> p.pass * bits & ((1u << bits) - 1);
  }
};

struct SortMemory {
  std::uint16_t of_warp[kSortWarps][tuning::kDigits];  // of one round
  std::uint32_t starts[tuning::kDigits];               // where the next token of a digit goes
  std::uint32_t warps[kSortWarps];
};

// Bit mask of the warp's threads with the same digit. Threads without a token match only each
// other.
__device__ inline unsigned peers_of(std::uint32_t digit, bool has_token) {
  return __match_any_sync(~0u, has_token ? digit : ~0u);
}

// Exclusive prefix sum over the threads of a block. All threads must call it.
__device__ inline std::uint32_t sum_before(std::uint32_t count, SortMemory& memory) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  std::uint32_t sum = count;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const std::uint32_t before = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += before;
  }
  if (lane == 31) memory.warps[warp] = sum;
  __syncthreads();
#pragma unroll 1
  for (int i = 0; i < warp; ++i) sum += memory.warps[i];
  return sum - count;
}

// The thread of each digit sets its start. In the extra pass, the start of digit 1 is the number of
// rows that occur.
__device__ inline void set_starts(const SortPass& pass, std::uint32_t start, SortMemory& memory) {
  if (threadIdx.x < tuning::kDigits) memory.starts[threadIdx.x] = start;
  if (pass.finds_rows() && blockIdx.x == 0 && threadIdx.x == 1) {
    *pass.p.problem.rows_count = start;
  }
}

// A block counts the digits of one tile in 2 KB of shared memory. Latency-bound.
__global__ void __launch_bounds__(tuning::kSortThreads)
    token_counts_kernel(const __grid_constant__ TokenGroupsParams p) {
  pdl_wait_and_launch();
  __shared__ std::uint32_t counts[tuning::kDigits];
  const std::uint32_t thread = threadIdx.x;
  if (thread < tuning::kDigits) counts[thread] = 0;
  __syncthreads();
  const SortPass pass(p);
  pass.read_ids();
#pragma unroll 2
  for (std::uint32_t round = pass.first; round < pass.last; round += tuning::kSortThreads) {
    const bool has_token = round + thread < pass.last;
    const std::uint32_t digit = has_token ? pass.digit(pass.load(round + thread).key) : 0;
    const unsigned peers = peers_of(digit, has_token);
    if (has_token && (peers & ((1u << thread % 32) - 1)) == 0) {
      atomicAdd(&counts[digit], static_cast<std::uint32_t>(__popc(peers)));
    }
  }
  __syncthreads();
  if (thread < tuning::kDigits) {
    p.groups.counts[blockIdx.x * tuning::kDigits + thread] = counts[thread];
  }
}

// Tokens with this thread's digit, in all tiles and in the tiles before this one.
struct DigitCounts {
  std::uint32_t total = 0, earlier = 0;
};
__device__ inline DigitCounts counts_of_tiles(const TokenGroups& groups) {
  DigitCounts counts;
  if (threadIdx.x >= tuning::kDigits) return counts;
#pragma unroll 8
  for (int i = 0; i < groups.config.tiles; ++i) {
    const std::uint32_t count = groups.counts[i * tuning::kDigits + threadIdx.x];
    counts.total += count;
    if (i < static_cast<int>(blockIdx.x)) counts.earlier += count;
  }
  return counts;
}

// A block scatters the tokens of a tile to the positions of their digits. In a round a warp has
// consecutive tokens, and a thread every 32nd of them; 35 KB of shared memory hold the per-warp
// digit counts. Limited by barriers and L2 latency.
__global__ void __launch_bounds__(tuning::kSortThreads)
    token_scatter_kernel(const __grid_constant__ TokenGroupsParams p) {
  pdl_wait_and_launch();
  constexpr int kItems = tuning::kSortItems;
  const auto tiles = static_cast<unsigned>(p.groups.config.tiles);
  if (blockIdx.x >= tiles) return p.zeros.write(blockIdx.x - tiles);
  __shared__ SortMemory memory;
  const SortPass pass(p);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const bool single_tile =
      p.groups.config.tiles == 1;  // a single round, which makes the counts itself
  DigitCounts counts;
  if (single_tile) {
    pass.read_ids();
  } else {
    counts = counts_of_tiles(p.groups);
  }
  std::uint32_t round = pass.first;
#pragma unroll 1
  do {
    auto* const words = reinterpret_cast<std::uint32_t*>(memory.of_warp);
#pragma unroll 1
    for (int i = thread; i < kSortWarps * tuning::kDigits / 2; i += tuning::kSortThreads) {
      words[i] = 0;
    }
    __syncthreads();
    const std::uint32_t mine = round + warp * 32 * kItems + lane;
    SortPass::Item items[kItems] = {};
    std::uint32_t ranks[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (mine + i * 32 < pass.last) items[i] = pass.load(mine + i * 32);
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const bool has_token = mine + i * 32 < pass.last;
      const std::uint32_t digit = pass.digit(items[i].key);
      const unsigned peers = peers_of(digit, has_token);
      const int before = __popc(peers & ((1u << lane) - 1));
      const std::uint32_t counted = has_token ? memory.of_warp[warp][digit] : 0;
      __syncwarp();
      if (has_token && before == 0) {
        memory.of_warp[warp][digit] = static_cast<std::uint16_t>(counted + __popc(peers));
      }
      __syncwarp();
      ranks[i] = counted + before;
    }
    __syncthreads();
    std::uint32_t total = 0;  // of this thread's digit
    if (thread < tuning::kDigits) {
#pragma unroll 4
      for (int i = 0; i < kSortWarps; ++i) {
        const std::uint16_t count = memory.of_warp[i][thread];
        memory.of_warp[i][thread] = static_cast<std::uint16_t>(total);
        total += count;
      }
    }
    if (round == pass.first) {
      const std::uint32_t lower = sum_before(single_tile ? total : counts.total, memory);
      set_starts(pass, lower + counts.earlier, memory);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (mine + i * 32 >= pass.last) continue;
      const std::uint32_t digit = pass.digit(items[i].key);
      const std::uint32_t destination =
          memory.starts[digit] + memory.of_warp[warp][digit] + ranks[i];
      p.groups.rows[pass.to()][destination] = items[i].key;
      p.groups.tokens[pass.to()][destination] = items[i].token;
    }
    __syncthreads();
    if (thread < tuning::kDigits) memory.starts[thread] += total;
    round += tuning::kSortRound;
  } while (round < pass.last);
}

// A thread finds the start of one row's tokens by binary search.
inline constexpr int kStartThreads = 256;
__global__ void __launch_bounds__(kStartThreads)
    row_starts_kernel(const __grid_constant__ TokenGroupsParams p) {
  pdl_wait_and_launch();
  const std::int64_t row = std::int64_t{blockIdx.x} * kStartThreads + threadIdx.x;
  if (row > p.problem.vocab) return;
  std::uint32_t low = 0, high = static_cast<std::uint32_t>(p.problem.tokens);  // below 2^31
  while (low < high) {
    const std::uint32_t middle = (low + high) / 2;
    p.groups.rows[0][middle] < row ? low = middle + 1 : high = middle;
  }
  p.groups.first[row] = low;
}

}  // namespace membound::cuda
