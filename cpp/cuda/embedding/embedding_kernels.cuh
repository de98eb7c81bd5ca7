// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/activation/gate_tile.cuh"
#include "cuda/embedding/embedding_config.hpp"
#include "cuda/launch/cache_hint.cuh"
#include "cuda/row/element.cuh"
#include "cuda/row/reader.cuh"
#include "cuda/row/realign.cuh"
#include "ops/embedding.hpp"

namespace membound::cuda {

struct EmbeddingParams {
  EmbeddingProblem problem;
  std::int64_t units;  // of a row
  tuning::GatedActivationConfig config;
  bool copies;
  int words;  // 16-bit words per copied element
};

// Offsets of the rows of a token, in elements.
struct TokenRows {
  std::int64_t weight, position, out;
  bool has_weight, has_position;
};
__device__ inline TokenRows token_rows(const EmbeddingProblem& p, std::int64_t token) {
  TokenRows rows{};
  const std::int64_t row = p.row_of(p.ids.at(token_offset(p.ids.tokens, token)));
  rows.has_weight = p.weight.has(row);
  rows.weight = rows.has_weight ? row * p.weight.row_stride : 0;
  rows.out = token_offset(p.out_rows, token);
  if (p.position_weight.data == nullptr) return rows;
  const std::int64_t position = p.position_ids.data != nullptr
                                    ? p.position_ids.at(token_offset(p.position_ids.tokens, token))
                                    : token % p.sequence;
  rows.has_position = rows.has_weight && p.position_weight.has(position);
  rows.position = rows.has_position ? position * p.position_weight.row_stride : 0;
  return rows;
}

// A block has a tile of a row, or several narrow rows. A thread finds its row and loads all of its
// vectors before it stores one. No shared memory. Memory-bound; few tokens are limited by the
// latency of the id, which the row's loads depend on.
template <class T>
__global__ void __launch_bounds__(tuning::kGateThreads)
    embedding_vectors_kernel(const __grid_constant__ EmbeddingParams p) {
  constexpr int kCount = tuning::kEmbeddingUnits;
  pdl_wait_and_launch();
  const GatePosition position(p.config);
  if (position.row >= p.problem.tokens) return;
  const TokenRows rows = token_rows(p.problem, position.row);
  const auto vectors_at = [](const void* data, std::int64_t offset) {
    return with_evict_last(reinterpret_cast<const uint4*>(static_cast<const T*>(data) + offset));
  };
  const uint4* const weight = vectors_at(p.problem.weight.data, rows.weight);
  const uint4* const positional = vectors_at(p.problem.position_weight.data, rows.position);
  uint4* const out = reinterpret_cast<uint4*>(static_cast<T*>(p.problem.out) + rows.out);
  uint4 found[kCount] = {}, added[kCount] = {};
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const std::int64_t unit = position.first + i * position.lanes;
    if (i >= position.count || unit >= p.units) continue;
    if (rows.has_weight) found[i] = weight[unit];
    if (rows.has_position) added[i] = positional[unit];
  }
  const auto scale = static_cast<accumulate_t<T>>(p.problem.scale);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const std::int64_t unit = position.first + i * position.lanes;
    if (i >= position.count || unit >= p.units) continue;
    if (rows.has_weight && !p.copies) {
      Numbers<T> numbers = unpack<T>(found[i]);
      const Numbers<T> more = unpack<T>(added[i]);
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) {
        numbers.at[j] = product(numbers.at[j], scale);
        if (rows.has_position) numbers.at[j] += more.at[j];  // adding 0 would change -0 to 0
      }
      found[i] = pack<T>(numbers);
    }
    out[unit] = found[i];
  }
}

// Copy of an unaligned row to an unaligned address: aligned 16-byte blocks of the destination, each
// assembled from two aligned source blocks, and the words around them. Blocks whose source blocks
// cross an end of the source row are copied as words, so that nothing outside the row is read.
struct UnalignedCopy {
  using Word = std::uint16_t;  // the elements of every dtype are multiples of it
  static constexpr int kOfBlock = kVectorBytes / static_cast<int>(sizeof(Word));
  int shift;                        // byte offset of the copied data in its source block
  std::int64_t head, blocks, tail;  // words before the blocks, blocks, first word after

  __device__ UnalignedCopy(const Word* from, const Word* to, std::int64_t words) {
    head = (kVectorBytes - shift_of(to)) % kVectorBytes / static_cast<int>(sizeof(Word));
    shift = shift_of(from + head);
    if (shift > head * static_cast<int>(sizeof(Word))) head += kOfBlock;
    const int behind = shift == 0 ? 0 : kVectorBytes - shift;
    const std::int64_t bytes = (words - head) * static_cast<int>(sizeof(Word)) - behind;
    blocks = bytes < 0 ? 0 : bytes / kVectorBytes;
    head = head < words ? head : words;
    tail = head + blocks * kOfBlock;
  }
};

// Copies rows that are not all 16-byte aligned. Otherwise as the kernel above.
static __global__ void __launch_bounds__(tuning::kGateThreads)
    embedding_unaligned_kernel(const __grid_constant__ EmbeddingParams p) {
  constexpr int kCount = tuning::kUnalignedEmbeddingUnits;
  pdl_wait_and_launch();
  const GatePosition position(p.config);
  if (position.row >= p.problem.tokens) return;
  const TokenRows rows = token_rows(p.problem, position.row);
  using Word = UnalignedCopy::Word;
  const std::int64_t words = p.problem.dim * p.words;
  const auto* const from = static_cast<const Word*>(p.problem.weight.data) + rows.weight * p.words;
  auto* const to = static_cast<Word*>(p.problem.out) + rows.out * p.words;
  const UnalignedCopy copy(from, to, words);
  const auto* source =
      reinterpret_cast<const uint4*>(reinterpret_cast<const char*>(from + copy.head) - copy.shift);
  uint4 low[kCount] = {}, high[kCount] = {};
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const std::int64_t block = position.first + i * position.lanes;
    if (i >= position.count || block >= copy.blocks || !rows.has_weight) continue;
    low[i] = source[block];
    if (copy.shift != 0) high[i] = source[block + 1];
  }
  if (position.first < position.lanes) {  // the row's first tile
    const auto one = [&](std::int64_t at) { to[at] = rows.has_weight ? from[at] : Word{0}; };
#pragma unroll 1
    for (std::int64_t at = position.first; at < copy.head; at += position.lanes) one(at);
#pragma unroll 1
    for (std::int64_t at = copy.tail + position.first; at < words; at += position.lanes) one(at);
  }
  uint4* const out = reinterpret_cast<uint4*>(to + copy.head);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const std::int64_t block = position.first + i * position.lanes;
    if (i < position.count && block < copy.blocks)
      out[block] = bytes_from(low[i], high[i], copy.shift);
  }
}

// Any strides and dtypes, element by element.
template <class A>
__global__ void __launch_bounds__(tuning::kGateThreads)
    embedding_elements_kernel(const __grid_constant__ EmbeddingParams p) {
  pdl_wait_and_launch();
  const GatePosition position(p.config);
  if (position.row >= p.problem.tokens) return;
  const EmbeddingProblem& problem = p.problem;
  const TokenRows rows = token_rows(problem, position.row);
  const A scale = static_cast<A>(problem.scale);
#pragma unroll
  for (int i = 0; i < tuning::kEmbeddingUnits; ++i) {
    const std::int64_t col = position.first + i * position.lanes;
    if (i >= position.count || col >= p.units) break;
    const std::int64_t to = rows.out + col * problem.out_col_stride;
    const std::int64_t from = rows.weight + col * problem.weight.col_stride;
    if (p.copies && rows.has_weight) {
      copy_number(problem.out, to, problem.weight.data, from, problem.dtype);
      continue;
    }
    A value = 0;
    if (rows.has_weight) {
      value = product(read_number<A>(problem.weight.data, problem.dtype, from), scale);
      if (rows.has_position) {
        value += read_number<A>(problem.position_weight.data, problem.dtype,
                                rows.position + col * problem.position_weight.col_stride);
      }
    }
    write_number(problem.out, problem.out_dtype, to, value);
  }
}

}  // namespace membound::cuda
