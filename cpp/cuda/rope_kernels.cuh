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
__device__ inline UnitPlace unit_place(const RopeParams& p, std::int64_t unit, int width) {
  const RopeProblem& rope = p.rope;
  if (unit < p.turning_units) {
    const std::int64_t first = rope.rotary_offset + unit * (rope.interleaved ? 2 * width : width);
    return {first, first + (rope.interleaved ? width : rope.rotary_dim / 2)};
  }
  // Behind those that turn, what is before and behind them in the head.
  std::int64_t first = (unit - p.turning_units) * 2 * width;
  if (first >= rope.rotary_offset) first += rope.rotary_dim;
  return {first, first + width};
}

// Both styles in one kernel: interleaved, the numbers of two chunks change places before and after.
template <class T>
__device__ inline void turn(Numbers<T>& a, Numbers<T>& b, const Turns<T>& turns, bool interleaved) {
  constexpr int kHalf = kPack<T> / 2;
  Numbers<T> first, second;
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    const Numbers<T>& from = i < kHalf ? a : b;
    const int at = 2 * (i % kHalf);
    const auto x1 = interleaved ? from.at[at] : a.at[i];
    const auto x2 = interleaved ? from.at[at + 1] : b.at[i];
    first.at[i] = product(x1, turns.cos[i]) - product(x2, turns.sin[i]);
    second.at[i] = product(x2, turns.cos[i]) + product(x1, turns.sin[i]);
  }
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    const Numbers<T>& from = i % 2 == 0 ? first : second;
    a.at[i] = interleaved ? from.at[i / 2] : first.at[i];
    b.at[i] = interleaved ? from.at[kHalf + i / 2] : second.at[i];
  }
}

// One head of q or k: where it is in x and out, in elements; no array beyond the last.
struct HeadPlace {
  const RopeHeads* array;
  std::int64_t x, out;
};
__device__ inline HeadPlace head_place(const RopeParams& p, const RopeRow& row, int i) {
  std::int64_t head = row.group * p.heads_per_thread + i;
  if (i >= p.heads_per_thread || head >= p.heads) return {nullptr, 0, 0};
  const bool in_k = head >= p.rope.arrays[0].heads;
  if (in_k) head -= p.rope.arrays[0].heads;
  const RopeHeads& array = p.rope.arrays[in_k ? 1 : 0];
  return {&array, array.x_strides.at(row.b, row.s) + head * array.x_strides.head,
          array.out_strides.at(row.b, row.s) + head * array.out_strides.head};
}

// Aligned heads whose elements are neighbours, in units of two chunks.
template <class T>
__global__ void __launch_bounds__(tuning::kRopeThreads)
    rope_chunks_kernel(const __grid_constant__ RopeParams p) {
  begin_overlapped();
  const int local = threadIdx.x / p.lanes;
  const std::int64_t index = std::int64_t{blockIdx.x} * p.rows_per_block + local;
  if (index >= p.rows) return;
  const RopeRow row = rope_row(p, index);
  for (std::int64_t unit = threadIdx.x - local * p.lanes; unit < p.units; unit += p.lanes) {
    const UnitPlace at = unit_place(p, unit, kPack<T>);
    uint4 a[kRopeHeads], b[kRopeHeads];
#pragma unroll
    for (int i = 0; i < kRopeHeads; ++i) {
      const HeadPlace head = head_place(p, row, i);
      if (head.array == nullptr) break;
      const T* x = static_cast<const T*>(head.array->x) + head.x;
      a[i] = *reinterpret_cast<const uint4*>(x + at.first);
      b[i] = *reinterpret_cast<const uint4*>(x + at.second);
    }
    Turns<T> turns;
    const bool turning = unit < p.turning_units;
    if (turning) {
      read_turns<T>(p.rope, p.table_in_chunks, row.b, row.s, unit * kPack<T>, turns);
    }
#pragma unroll
    for (int i = 0; i < kRopeHeads; ++i) {
      const HeadPlace head = head_place(p, row, i);
      if (head.array == nullptr) break;
      T* out = static_cast<T*>(head.array->out) + head.out;
      if (turning) {
        Numbers<T> first = unpack<T>(a[i]), second = unpack<T>(b[i]);
        turn(first, second, turns, p.rope.interleaved);
        a[i] = pack(first);
        b[i] = pack(second);
      }
      *reinterpret_cast<uint4*>(out + at.first) = a[i];
      *reinterpret_cast<uint4*>(out + at.second) = b[i];
    }
  }
}

// Any strides and dtype, in units of one pair; units behind those that turn are one element.
template <class A>
__global__ void __launch_bounds__(tuning::kRopeThreads)
    rope_pairs_kernel(const __grid_constant__ RopeParams p) {
  begin_overlapped();
  const int local = threadIdx.x / p.lanes;
  const std::int64_t index = std::int64_t{blockIdx.x} * p.rows_per_block + local;
  if (index >= p.rows) return;
  const RopeRow row = rope_row(p, index);
  const DType dtype = p.rope.dtype;
  for (std::int64_t unit = threadIdx.x - local * p.lanes; unit < p.units; unit += p.lanes) {
    const bool turning = unit < p.turning_units;
    UnitPlace at = unit_place(p, unit, 1);
    Turn<A> turn{1, 0};
    if (turning) {
      turn = one_turn<A>(p.rope, angle_row(p.rope, unit, row.b, row.s), unit);
      if (p.rope.inverse) turn.sin = -turn.sin;
    } else {
      at.first = unit - p.turning_units;
      if (at.first >= p.rope.rotary_offset) at.first += p.rope.rotary_dim;
    }
#pragma unroll 1
    for (int i = 0; i < p.heads_per_thread; ++i) {
      const HeadPlace head = head_place(p, row, i);
      if (head.array == nullptr) break;
      const std::int64_t x_stride = head.array->x_strides.dim;
      const std::int64_t out_stride = head.array->out_strides.dim;
      const std::int64_t first = head.out + at.first * out_stride;
      if (!turning) {
        copy_number(head.array->out, first, head.array->x, head.x + at.first * x_stride, dtype);
        continue;
      }
      const A x1 = read_number<A>(head.array->x, dtype, head.x + at.first * x_stride);
      const A x2 = read_number<A>(head.array->x, dtype, head.x + at.second * x_stride);
      write_number(head.array->out, dtype, first, product(x1, turn.cos) - product(x2, turn.sin));
      write_number(head.array->out, dtype, head.out + at.second * out_stride,
                   product(x2, turn.cos) + product(x1, turn.sin));
    }
  }
}

}  // namespace membound::cuda
