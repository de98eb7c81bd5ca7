// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A block takes some rows: a row is up to heads_per_thread heads of one token, of q or of k, as far
// apart as there are rows, so that what neighbouring rows ask for at once is in one piece. A thread
// takes one unit of each: two chunks of 16 bytes that hold whole pairs, or, where heads are not
// aligned, one pair. It asks for the chunks of a few heads, finds cos and sin once, turns and
// writes, and goes on to the next heads. Nothing is shared; memory is the limit.
#include <cstdlib>

#include "cuda/cluster.cuh"
#include "cuda/l2_priority.cuh"
#include "cuda/rope_angles.cuh"
#include "cuda/tuning/rope.hpp"

namespace membound::cuda {

// The heads of an array in groups: group g has heads g, g + count, ..., `each` of them or, of the
// groups below `longer`, one more.
struct HeadGroups {
  std::int64_t count, longer;
  int each;
};
inline HeadGroups head_groups(std::int64_t heads, int heads_per_thread) {
  const std::int64_t count = (heads + heads_per_thread - 1) / heads_per_thread;
  if (count == 0) return {0, 0, 0};
  return {count, heads % count, static_cast<int>(heads / count)};
}

struct RopeParams {
  RopeProblem rope;
  std::int64_t rows;
  HeadGroups groups[2];               // q's before k's
  std::int64_t units, turning_units;  // of a head; those behind are copied
  int heads_per_thread, lanes, rows_per_block;
  RowDivider by_inner, by_outer;
  unsigned lane_magic;  // thread * lane_magic / 2^16: the quotient by lanes
  bool tokens_inside;   // rows of one group of heads follow one another
  bool batch_inside;    // else: the tokens of one place in their sequences do, as in memory
  bool table_in_chunks;
};

// How rows are counted.
inline void set_rows(RopeParams& p, const tuning::RopeConfig& config) {
  p.heads_per_thread = config.heads_per_thread;
  p.lanes = config.lanes;
  p.rows_per_block = config.rows_per_block;
  p.rows = p.rope.tokens() * config.groups;
  for (int i = 0; i < 2; ++i) {
    p.groups[i] = head_groups(i < p.rope.count ? p.rope.arrays[i].heads : 0, p.heads_per_thread);
  }
  const RopeStrides& strides = p.rope.arrays[0].x_strides;
  p.tokens_inside = std::abs(strides.seq) < std::abs(strides.head);
  p.batch_inside = !p.tokens_inside && std::abs(strides.batch) < std::abs(strides.seq);
  p.by_inner = divider(p.tokens_inside ? p.rope.seq : config.groups);
  p.by_outer = divider(p.tokens_inside  ? config.groups
                       : p.batch_inside ? p.rope.batch
                                        : p.rope.seq);
  p.lane_magic = (65536u + static_cast<unsigned>(p.lanes) - 1) / static_cast<unsigned>(p.lanes);
}

// A batch, a place in its sequence, and a group of heads.
struct RopeRow {
  std::int64_t b, s, group;
};
__device__ inline RopeRow rope_row(const RopeParams& p, std::int64_t row) {
  const std::int64_t outer = quotient(row, p.by_inner), within = row - outer * p.by_inner.extent;
  const std::int64_t high = quotient(outer, p.by_outer), low = outer - high * p.by_outer.extent;
  if (p.tokens_inside) return {high, within, low};
  return p.batch_inside ? RopeRow{low, high, within} : RopeRow{high, low, within};
}

// Which heads a row has: first, first + step, ...
struct HeadsOfRow {
  int array;
  std::int64_t first, step;
  int count;
};
__device__ inline HeadsOfRow heads_of_row(const RopeParams& p, std::int64_t group) {
  const int array = group >= p.groups[0].count ? 1 : 0;
  if (array == 1) group -= p.groups[0].count;
  const HeadGroups& all = p.groups[array];
  return {array, group, all.count, all.each + (group < all.longer ? 1 : 0)};
}

// Where the first of the two elements or chunks of a unit is in a head, and how far the second.
template <class Index>
struct UnitPlace {
  Index first, apart;
};
template <class Index>
__device__ inline UnitPlace<Index> unit_place(const RopeParams& p, Index unit, int width) {
  const auto offset = static_cast<Index>(p.rope.rotary_offset);
  const auto dim = static_cast<Index>(p.rope.rotary_dim);
  const auto turning = static_cast<Index>(p.turning_units);
  if (unit < turning) {
    return {offset + unit * (p.rope.interleaved ? 2 * width : width),
            p.rope.interleaved ? width : dim / 2};
  }
  // Behind those that turn, what is before and behind them in the head.
  const Index first = (unit - turning) * 2 * width;
  return {first >= offset ? first + dim : first, width};
}

// Waits for the kernel before, but finds two places in memory first: a decoding step is no longer
// than that. Predicated on them, the wait cannot be scheduled before.
__device__ inline void wait_with(const void* from, const void* to) {
#if MEMBOUND_HAS_CLUSTERS
  const auto both = reinterpret_cast<std::uint64_t>(from) | reinterpret_cast<std::uint64_t>(to);
  asm volatile(
      "{\n\t"
      ".reg .pred found;\n\t"
      "setp.ne.u64 found, %0, 0;\n\t"
      "@found griddepcontrol.wait;\n\t"
      "}" ::"l"(both)
      : "memory");
#endif
}

struct ChunkPair {
  uint4 first, second;
};

// Of pairs of neighbours the numbers of two chunks change places before and after.
template <bool kInterleaved, class T>
__device__ inline void turn(Numbers<T>& a, Numbers<T>& b, const Turns<T>& turns) {
  constexpr int kHalf = kPack<T> / 2;
  Numbers<T> first, second;
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    const Numbers<T>& from = i < kHalf ? a : b;
    const int at = 2 * (i % kHalf);
    const auto x1 = kInterleaved ? from.at[at] : a.at[i];
    const auto x2 = kInterleaved ? from.at[at + 1] : b.at[i];
    first.at[i] = product(x1, turns.cos[i]) - product(x2, turns.sin[i]);
    second.at[i] = product(x2, turns.cos[i]) + product(x1, turns.sin[i]);
  }
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    const Numbers<T>& from = i % 2 == 0 ? first : second;
    a.at[i] = kInterleaved ? from.at[i / 2] : first.at[i];
    b.at[i] = kInterleaved ? from.at[kHalf + i / 2] : second.at[i];
  }
}

// Where cos and sin of a kernel come from: a table that is read in chunks, for either style,
// frequencies, or whatever else there is.
enum class TurnsFrom { kTableOfHalves, kTableOfNeighbours, kFrequencies, kAnywhere };

// Heads whose loads are on their way together, and blocks of a multiprocessor; sines and calls take
// registers.
template <TurnsFrom kFrom>
inline constexpr int kHeadsAtOnce = kFrom == TurnsFrom::kAnywhere ? 1 : tuning::kRopeHeads;
template <TurnsFrom kFrom>
inline constexpr int kBlocksAtOnce =
    kFrom == TurnsFrom::kTableOfHalves || kFrom == TurnsFrom::kTableOfNeighbours
        ? tuning::kRopeBlocks
        : tuning::kRopeBlocksBesideSines;

template <TurnsFrom kFrom, class T>
__device__ inline ChunkPair turned(const ChunkPair& unit, const Turns<T>& turns, bool interleaved) {
  constexpr bool kOfTable =
      kFrom == TurnsFrom::kTableOfHalves || kFrom == TurnsFrom::kTableOfNeighbours;
  Numbers<T> first = unpack<T>(unit.first), second = unpack<T>(unit.second);
  if (kOfTable ? kFrom == TurnsFrom::kTableOfNeighbours : interleaved) {
    turn<true>(first, second, turns);
  } else {
    turn<false>(first, second, turns);
  }
  return {pack(first), pack(second)};
}

// Aligned heads whose elements are neighbours, in units of two chunks. Tables are read without any
// call, which would wait for the heads' loads; places are found before the wait for the kernel
// before.
template <class T, TurnsFrom kFrom>
__global__ void __launch_bounds__(tuning::kRopeThreads, kBlocksAtOnce<kFrom>)
    rope_chunks_kernel(const __grid_constant__ RopeParams p) {
  constexpr int kHeads = kHeadsAtOnce<kFrom>;
  launch_dependents();
  const int local = static_cast<int>(threadIdx.x * p.lane_magic >> 16);
  const std::int64_t index = std::int64_t{blockIdx.x} * p.rows_per_block + local;
  if (index >= p.rows) return;
  const RopeRow row = rope_row(p, index);
  const HeadsOfRow heads = heads_of_row(p, row.group);
  const RopeHeads& array = p.rope.arrays[heads.array];
  const std::int64_t x_step = heads.step * array.x_strides.head;
  const std::int64_t out_step = heads.step * array.out_strides.head;
  const T* const x_row = static_cast<const T*>(array.x) + array.x_strides.at(row.b, row.s) +
                         heads.first * array.x_strides.head;
  T* const out_row = static_cast<T*>(array.out) + array.out_strides.at(row.b, row.s) +
                     heads.first * array.out_strides.head;
  wait_with(x_row, out_row);
#pragma unroll 1
  for (int unit = threadIdx.x - local * p.lanes; unit < static_cast<int>(p.units);
       unit += p.lanes) {
    const UnitPlace at = unit_place(p, unit, kPack<T>);
    const bool turning = unit < static_cast<int>(p.turning_units);
    const T* x = x_row + at.first;
    T* out = out_row + at.first;
    Turns<T> turns;
#pragma unroll 1
    for (int done = 0; done < heads.count; done += kHeads) {
      ChunkPair held[kHeads];
#pragma unroll
      for (int i = 0; i < kHeads; ++i) {
        if (done + i >= heads.count) break;
        held[i].first = read_chunk(x);
        held[i].second = read_chunk(x + at.apart);
        x += x_step;
      }
      if (done == 0 && turning) {
        if constexpr (kFrom == TurnsFrom::kAnywhere) {
          turns = turns_from<T>(p.rope, row.b, row.s, unit * kPack<T>);
        } else if constexpr (kFrom == TurnsFrom::kFrequencies) {
          make_turns<T>(
              p.rope, row.b, row.s, [=](int i) { return std::int64_t{unit * kPack<T> + i}; },
              turns);
        } else {
          read_turns<T>(p.rope, row.b, row.s, unit * kPack<T>, turns);
        }
        turn_back<T>(turns, p.rope.inverse);
      }
#pragma unroll
      for (int i = 0; i < kHeads; ++i) {
        if (done + i >= heads.count) break;
        if (turning) held[i] = turned<kFrom>(held[i], turns, p.rope.interleaved);
        *reinterpret_cast<uint4*>(out) = held[i].first;
        *reinterpret_cast<uint4*>(out + at.apart) = held[i].second;
        out += out_step;
      }
    }
  }
}

// Any strides and dtype, in units of one pair; units behind those that turn are one element.
template <class A>
__global__ void __launch_bounds__(tuning::kRopeThreads)
    rope_pairs_kernel(const __grid_constant__ RopeParams p) {
  begin_overlapped();
  const int local = static_cast<int>(threadIdx.x * p.lane_magic >> 16);
  const std::int64_t index = std::int64_t{blockIdx.x} * p.rows_per_block + local;
  if (index >= p.rows) return;
  const RopeRow row = rope_row(p, index);
  const HeadsOfRow heads = heads_of_row(p, row.group);
  const RopeHeads& array = p.rope.arrays[heads.array];
  const DType dtype = p.rope.dtype;
  for (std::int64_t unit = threadIdx.x - local * p.lanes; unit < p.units; unit += p.lanes) {
    const bool turning = unit < p.turning_units;
    UnitPlace<std::int64_t> at = unit_place(p, unit, 1);
    Turn<A> turn{1, 0};
    if (turning) {
      turn = one_turn<A>(p.rope, angle_row(p.rope, unit, row.b, row.s), unit);
      if (p.rope.inverse) turn.sin = -turn.sin;
    } else {
      at.first = unit - p.turning_units;
      if (at.first >= p.rope.rotary_offset) at.first += p.rope.rotary_dim;
    }
    std::int64_t x = array.x_strides.at(row.b, row.s) + heads.first * array.x_strides.head;
    std::int64_t out = array.out_strides.at(row.b, row.s) + heads.first * array.out_strides.head;
#pragma unroll 1
    for (int i = 0; i < heads.count; ++i) {
      const std::int64_t x_first = x + at.first * array.x_strides.dim;
      const std::int64_t out_first = out + at.first * array.out_strides.dim;
      if (turning) {
        const A x1 = read_number<A>(array.x, dtype, x_first);
        const A x2 = read_number<A>(array.x, dtype, x_first + at.apart * array.x_strides.dim);
        write_number(array.out, dtype, out_first, product(x1, turn.cos) - product(x2, turn.sin));
        write_number(array.out, dtype, out_first + at.apart * array.out_strides.dim,
                     product(x2, turn.cos) + product(x1, turn.sin));
      } else {
        copy_number(array.out, out_first, array.x, x_first, dtype);
      }
      x += heads.step * array.x_strides.head;
      out += heads.step * array.out_strides.head;
    }
  }
}

}  // namespace membound::cuda
