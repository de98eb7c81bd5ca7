// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A block takes some rows: a row is up to kRopeHeads heads of one token, q's before k's. A thread
// takes one unit of each: two chunks of 16 bytes that hold whole pairs, or, where heads are not
// aligned, one pair. It asks for all its chunks, finds cos and sin once, turns and writes. Nothing
// is shared; memory is the limit.
#include "cuda/cluster.cuh"
#include "cuda/rope_angles.cuh"
#include "cuda/tuning/rope.hpp"

namespace membound::cuda {

using tuning::kRopeHeads;

struct RopeParams {
  RopeProblem rope;
  std::int64_t heads;  // of all arrays
  std::int64_t rows, groups;
  std::int64_t units, turning_units;  // of a head; those behind are copied
  int heads_per_thread, lanes, rows_per_block;
  bool tokens_inside;  // rows of one group of heads follow one another
  bool table_in_chunks;
};

__device__ inline std::int64_t quotient(std::int64_t a, std::int64_t b) {
  const bool narrow = ((a | b) >> 32) == 0;
  return narrow ? static_cast<std::int64_t>(static_cast<std::uint32_t>(a) /
                                            static_cast<std::uint32_t>(b))
                : a / b;
}

// A batch, a place in its sequence, and a group of heads.
struct RopeRow {
  std::int64_t b, s, group;
};
__device__ inline RopeRow rope_row(const RopeParams& p, std::int64_t row) {
  const std::int64_t inner = p.tokens_inside ? p.rope.seq : p.groups;
  const std::int64_t outer = quotient(row, inner), within = row - outer * inner;
  const std::int64_t next = p.tokens_inside ? p.groups : p.rope.seq;
  const std::int64_t b = quotient(outer, next), rest = outer - b * next;
  return p.tokens_inside ? RopeRow{b, within, rest} : RopeRow{b, rest, within};
}

// Where the two elements or chunks of a unit are in a head.
struct UnitPlace {
  std::int64_t first, second;
};
template <bool kInterleaved>
__device__ inline UnitPlace unit_place(const RopeParams& p, std::int64_t unit, int width) {
  const RopeProblem& rope = p.rope;
  if (unit < p.turning_units) {
    const std::int64_t first = rope.rotary_offset + unit * (kInterleaved ? 2 * width : width);
    return {first, first + (kInterleaved ? width : rope.rotary_dim / 2)};
  }
  // Behind those that turn, what is before and behind them in the head.
  std::int64_t first = (unit - p.turning_units) * 2 * width;
  if (first >= rope.rotary_offset) first += rope.rotary_dim;
  return {first, first + width};
}

template <bool kInterleaved, class T>
__device__ inline void turn(Numbers<T>& a, Numbers<T>& b, const Turns<T>& turns) {
  Numbers<T> from_a = a, from_b = b;
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    // The numbers of pair i, and where they go.
    constexpr int kHalf = kPack<T> / 2;
    const bool in_a = i < kHalf;
    const int at = 2 * (in_a ? i : i - kHalf);
    const auto x1 = !kInterleaved ? from_a.at[i] : in_a ? from_a.at[at] : from_b.at[at];
    const auto x2 = !kInterleaved ? from_b.at[i] : in_a ? from_a.at[at + 1] : from_b.at[at + 1];
    const auto out1 = product(x1, turns.cos[i]) - product(x2, turns.sin[i]);
    const auto out2 = product(x2, turns.cos[i]) + product(x1, turns.sin[i]);
    if constexpr (!kInterleaved) {
      a.at[i] = out1;
      b.at[i] = out2;
    } else if (in_a) {
      a.at[at] = out1;
      a.at[at + 1] = out2;
    } else {
      b.at[at] = out1;
      b.at[at + 1] = out2;
    }
  }
}

// One head of q or k; null beyond the last.
template <class T>
struct HeadPointers {
  const T* x;
  T* out;
};
template <class T>
__device__ inline HeadPointers<T> head_pointers(const RopeParams& p, const RopeRow& row, int i) {
  std::int64_t head = row.group * p.heads_per_thread + i;
  if (i >= p.heads_per_thread || head >= p.heads) return {nullptr, nullptr};
  const bool in_k = head >= p.rope.arrays[0].heads;
  if (in_k) head -= p.rope.arrays[0].heads;
  const RopeHeads& array = p.rope.arrays[in_k ? 1 : 0];
  return {static_cast<const T*>(array.x) + array.x_strides.at(row.b, row.s) +
              head * array.x_strides.head,
          static_cast<T*>(array.out) + array.out_strides.at(row.b, row.s) +
              head * array.out_strides.head};
}

// Aligned heads whose elements are neighbours, in units of two chunks.
template <class T, bool kInterleaved>
__global__ void __launch_bounds__(tuning::kRopeThreads)
    rope_chunks_kernel(const __grid_constant__ RopeParams p) {
  begin_overlapped();
  const int local = threadIdx.x / p.lanes;
  const std::int64_t index = std::int64_t{blockIdx.x} * p.rows_per_block + local;
  if (index >= p.rows) return;
  const RopeRow row = rope_row(p, index);
  for (std::int64_t unit = threadIdx.x - local * p.lanes; unit < p.units; unit += p.lanes) {
    const UnitPlace at = unit_place<kInterleaved>(p, unit, kPack<T>);
    uint4 a[kRopeHeads], b[kRopeHeads];
#pragma unroll
    for (int i = 0; i < kRopeHeads; ++i) {
      const T* x = head_pointers<T>(p, row, i).x;
      if (x == nullptr) break;
      a[i] = *reinterpret_cast<const uint4*>(x + at.first);
      b[i] = *reinterpret_cast<const uint4*>(x + at.second);
    }
    Turns<T> turns;
    const bool turning = unit < p.turning_units;
    if (turning) {
      read_turns<T, kPack<T>>(p.rope, p.table_in_chunks, row.b, row.s, unit * kPack<T>, turns);
    }
#pragma unroll
    for (int i = 0; i < kRopeHeads; ++i) {
      T* out = head_pointers<T>(p, row, i).out;
      if (out == nullptr) break;
      if (turning) {
        Numbers<T> first = unpack<T>(a[i]), second = unpack<T>(b[i]);
        turn<kInterleaved>(first, second, turns);
        a[i] = pack(first);
        b[i] = pack(second);
      }
      *reinterpret_cast<uint4*>(out + at.first) = a[i];
      *reinterpret_cast<uint4*>(out + at.second) = b[i];
    }
  }
}

// Any strides, in units of one pair; units behind those that turn are one element.
template <class T>
__global__ void __launch_bounds__(tuning::kRopeThreads)
    rope_pairs_kernel(const __grid_constant__ RopeParams p) {
  begin_overlapped();
  const int local = threadIdx.x / p.lanes;
  const std::int64_t index = std::int64_t{blockIdx.x} * p.rows_per_block + local;
  if (index >= p.rows) return;
  const RopeRow row = rope_row(p, index);
  for (std::int64_t unit = threadIdx.x - local * p.lanes; unit < p.units; unit += p.lanes) {
    const bool turning = unit < p.turning_units;
    Turns<T> turns;
    UnitPlace at;
    if (turning) {
      at = p.rope.interleaved ? unit_place<true>(p, unit, 1) : unit_place<false>(p, unit, 1);
      read_turns<T, 1>(p.rope, false, row.b, row.s, unit, turns);
    } else {
      at.first = unit - p.turning_units;
      if (at.first >= p.rope.rotary_offset) at.first += p.rope.rotary_dim;
      at.second = at.first;
    }
#pragma unroll 1
    for (int i = 0; i < p.heads_per_thread; ++i) {
      const HeadPointers<T> head = head_pointers<T>(p, row, i);
      if (head.x == nullptr) break;
      const RopeHeads& array =
          p.rope.arrays[row.group * p.heads_per_thread + i >= p.rope.arrays[0].heads ? 1 : 0];
      const std::int64_t from = array.x_strides.dim, to = array.out_strides.dim;
      if (!turning) {
        head.out[at.first * to] = head.x[at.first * from];
        continue;
      }
      const auto x1 = to_number(head.x[at.first * from]);
      const auto x2 = to_number(head.x[at.second * from]);
      const auto out1 = product(x1, turns.cos[0]) - product(x2, turns.sin[0]);
      const auto out2 = product(x2, turns.cos[0]) + product(x1, turns.sin[0]);
      head.out[at.first * to] = from_number<T>(out1);
      head.out[at.second * to] = from_number<T>(out2);
    }
  }
}

}  // namespace membound::cuda
