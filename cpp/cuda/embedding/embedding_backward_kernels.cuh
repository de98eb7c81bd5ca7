// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Sums dy over the tokens of each row, in the tree of core/gradient_tree.hpp: rows with more than
// kGradientPiece tokens are summed piece by piece first, and the pieces are then added up.
#include "cuda/embedding/embedding_backward_forms.cuh"

namespace membound::cuda {

inline constexpr auto kPiece = static_cast<std::int32_t>(kGradientBlock);

// A contiguous range of groups.tokens[0].
struct TokenRun {
  std::int32_t first = 0;
  std::int32_t count = 0;  // 0: none
};

__device__ inline TokenRun run_of_row(const TokenGroups& groups, std::int64_t row) {
  const auto first = static_cast<std::int32_t>(groups.first[row]);
  return {first, static_cast<std::int32_t>(groups.first[row + 1]) - first};
}
// The tokens of the row that the sorted token at `position` belongs to.
__device__ inline TokenRun run_around(const EmbeddingBackwardParams& p, std::int64_t position) {
  if (position >= p.problem.tokens) return {};
  const std::uint32_t row = p.groups.rows[0][position];
  return row < p.problem.vocab ? run_of_row(p.groups, row) : TokenRun{};
}

// Pieces of rows with more than one. A window of kGradientPiece sorted tokens contains the start of
// at most one such row, and of at most one later piece of a row that started before. Two slots per
// window, the later piece's first, thus hold all sums without counting pieces.
__device__ inline TokenRun long_run_from(const EmbeddingBackwardParams& p, std::int64_t window) {
  const std::int64_t position = window * kGradientBlock, next = position + kGradientBlock;
  const TokenRun run = run_around(p, next);  // a long run from the window reaches the next
  const bool starts_here = run.first >= position && run.first < next;
  return starts_here && run.count > kGradientBlock ? run : TokenRun{};
}
__device__ inline TokenRun piece_of(const EmbeddingBackwardParams& p, std::int64_t slot) {
  const std::int64_t window = slot / 2, position = window * kGradientBlock;
  if (slot % 2 == 1) {
    const TokenRun run = long_run_from(p, window);
    return {run.first, run.count > 0 ? kPiece : 0};
  }
  const TokenRun run = run_around(p, position);
  if (run.count <= kGradientBlock || run.first >= position) return {};
  const std::int32_t before =
      (static_cast<std::int32_t>(position) - run.first + kPiece - 1) / kPiece;
  const std::int32_t left = run.count - before * kPiece;
  if (left <= 0) return {};
  return {run.first + before * kPiece, left < kPiece ? left : kPiece};
}
__device__ inline std::int64_t sum_slot(const TokenRun& run, std::int32_t piece) {
  return 2 * (run.first / kPiece + piece) + (piece == 0 ? 1 : 0);
}

// Sums start at minus zero, which changes no number that is added, not even the sign of a zero.
template <class Form>
__device__ inline void clear(typename Form::Sums& sums, typename Form::A number) {
#pragma unroll
  for (int i = 0; i < Form::kUnits; ++i) {
#pragma unroll
    for (int j = 0; j < Form::kWidth; ++j) sums.at[i].at[j] = number;
  }
}

// Sums the tokens of one piece in order, several of them in flight.
template <class Form>
__device__ inline void add_tokens(const EmbeddingBackwardParams& p, const GatePosition& position,
                                  const TokenRun& run, typename Form::Sums& sums) {
  const std::uint32_t* const tokens = p.groups.tokens[0] + run.first;
  const int count = run.count;
#pragma unroll 1
  for (int first = 0; first < count; first += Form::kTokens) {
    typename Form::Loaded loaded[Form::kTokens];
#pragma unroll
    for (int i = 0; i < Form::kTokens; ++i) {
      if (first + i >= count) continue;
      loaded[i] = Form::load(p, position, tokens[first + i]);
    }
#pragma unroll
    for (int i = 0; i < Form::kTokens; ++i) {
      if (first + i < count) Form::add(loaded[i], sums);
    }
  }
}

// A block adds up the pieces of the long rows that start in 32 windows, for a tile of 32 16-byte
// vectors. Warp i makes partial sum i, and the first warp adds these from 8 KB of shared memory.
// The total replaces the sum of the first piece. Limited by L2 latency.
inline constexpr int kTotalThreads = 32 * kGradientSums;
template <class A>
__global__ void __launch_bounds__(kTotalThreads)
    embedding_totals_kernel(const __grid_constant__ EmbeddingBackwardParams p) {
  pdl_wait_and_launch();
  constexpr int kAtOnce = 4;
  __shared__ uint4 shared[kGradientSums][32];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t vectors = p.sum_stride / kPack<A>, tiles = (vectors + 31) / 32;
  const std::int64_t group = blockIdx.x / tiles;
  const std::int64_t vector = (blockIdx.x - group * tiles) * 32 + lane;
  const auto at = [&](std::int64_t slot) {
    return reinterpret_cast<uint4*>(static_cast<A*>(p.sums) + slot * p.sum_stride) + vector;
  };
  const auto add = [](const uint4& from, Numbers<A>& sum) {
    const Numbers<A> numbers = unpack<A>(from);
#pragma unroll
    for (int j = 0; j < kPack<A>; ++j) sum.at[j] += numbers.at[j];
  };
  Numbers<A> zero;
#pragma unroll
  for (int j = 0; j < kPack<A>; ++j) zero.at[j] = -A{0};
  const TokenRun mine = long_run_from(p, group * 32 + lane);
  unsigned left = __ballot_sync(~0u, mine.count > 0);
#pragma unroll 1
  for (; left != 0; left &= left - 1) {
    const int owner = __ffs(static_cast<int>(left)) - 1;
    const TokenRun run{__shfl_sync(~0u, mine.first, owner), __shfl_sync(~0u, mine.count, owner)};
    const std::int32_t pieces = (run.count + kPiece - 1) / kPiece;
    Numbers<A> sum = zero;
#pragma unroll 1
    for (std::int32_t piece = warp; piece < pieces; piece += kAtOnce * kGradientSums) {
      uint4 loaded[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const std::int32_t one = piece + i * kGradientSums;
        if (one < pieces && vector < vectors) loaded[i] = *at(sum_slot(run, one));
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (piece + i * kGradientSums < pieces && vector < vectors) add(loaded[i], sum);
      }
    }
    shared[warp][lane] = pack<A>(sum);
    __syncthreads();
    if (warp == 0 && vector < vectors) {
      Numbers<A> total = zero;
#pragma unroll 1
      for (int i = 0; i < kGradientSums; ++i) add(shared[i][lane], total);
      *at(sum_slot(run, 0)) = pack<A>(total);
    }
    __syncthreads();
  }
}

// What is summed, and where it goes.
struct GradientRow {
  std::int32_t row = -1;    // of the result, or slot of a piece; negative: nothing to write
  TokenRun run;             // count 0: writes zeros
  std::int32_t id_row = 0;  // row of the table
};

__device__ inline GradientRow gradient_row(const EmbeddingBackwardParams& p, std::int64_t slot) {
  const EmbeddingBackwardProblem& problem = p.problem;
  GradientRow found;
  if (slot >= p.slots) return found;
  if (p.pieces) {
    found.run = piece_of(p, slot);
    if (found.run.count > 0) found.row = static_cast<std::int32_t>(slot);
  } else if (problem.sparse()) {
    found.row = static_cast<std::int32_t>(slot);
    found.id_row = static_cast<std::int32_t>(problem.vocab - 1);
    if (slot < *problem.rows_count) {
      found.id_row = static_cast<std::int32_t>(p.groups.rows[0][p.groups.tokens[1][slot]]);
      found.run = run_of_row(p.groups, found.id_row);
    }
  } else if (problem.accumulate) {
    const std::uint32_t row = p.groups.rows[0][slot];
    if (row >= problem.vocab || p.groups.first[row] != slot) return found;
    found.row = static_cast<std::int32_t>(row);
    found.run = run_of_row(p.groups, row);
  } else {
    if (problem.tokens > 0) found.run = run_of_row(p.groups, slot);
    if (found.run.count > 0 || slot >= p.zeroed) found.row = static_cast<std::int32_t>(slot);
  }
  return found;
}

// Scales a sum to the gradient.
template <class Form>
__device__ inline void scale_sums(const EmbeddingBackwardProblem& problem, std::int32_t count,
                                  typename Form::Sums& sums) {
  using A = typename Form::A;
  A factor = static_cast<A>(problem.scale);
  if (problem.by_frequency) factor /= static_cast<A>(count);
#pragma unroll
  for (int i = 0; i < Form::kUnits; ++i) {
#pragma unroll
    for (int j = 0; j < Form::kWidth; ++j) {
      sums.at[i].at[j] = product(sums.at[i].at[j], factor);
    }
  }
}

// A block writes some rows sequentially, a tile of each, or several times as many narrow rows. A
// row is one of the table, of the tokens that come first in their row, or of the rows that occur. A
// launch before computes the sums of pieces; its blocks exit at once if no row has several. The
// next row is looked up while one is summed. No shared memory; memory-bound.
template <class Form>
__global__ void __launch_bounds__(tuning::kGateThreads, tuning::kGradientBlocks)
    embedding_gradient_kernel(const __grid_constant__ EmbeddingBackwardParams p) {
  using A = typename Form::A;
  pdl_wait_and_launch();
  if (blockIdx.x >= p.config.blocks) {
    return p.zeros.write(blockIdx.x - static_cast<unsigned>(p.config.blocks));
  }
  const GatePosition position(p.config);
  const std::int64_t first = position.row * p.rows_per_block;
  GradientRow next = gradient_row(p, first);
#pragma unroll 1
  for (int i = 1; i <= p.rows_per_block; ++i) {
    const GradientRow now = next;
    next = i < p.rows_per_block ? gradient_row(p, first + i) : GradientRow{};
    if (now.row < 0) continue;
    typename Form::Sums sums;
    clear<Form>(sums, now.run.count > 0 ? -A{0} : A{0});
    if (now.run.count > kPiece) {
      Form::read_sums(p, position, sum_slot(now.run, 0), sums);
    } else {
      add_tokens<Form>(p, position, now.run, sums);
    }
    if (p.pieces) {
      Form::write_sums(p, position, now.row, sums);
      continue;
    }
    if (p.problem.sparse() && position.first == 0) p.problem.write_id(now.row, now.id_row);
    if (now.run.count > 0) scale_sums<Form>(p.problem, now.run.count, sums);
    Form::write_row(p, position, now.row, sums);
  }
}

}  // namespace membound::cuda
