// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A block takes some rows: a row is up to kQkNormHeads heads of one token, of q or of k. In the
// form of chunks the lanes of a row hold two chunks of each head: they ask for all of them, find
// the weight, cos and sin once, and normalise, turn and write one head after the other. In the
// general form a warp takes a head element by element. With a cache of keys and values the blocks
// behind those copy v, row by row in the same way. Nothing is shared; memory is the limit.
#include "cuda/cluster.cuh"
#include "cuda/qk_norm_head.cuh"
#include "cuda/tuning/qk_norm_rope.hpp"

namespace membound::cuda {

template <class A>
struct QkNormRopeParams {
  RopeParams turn;        // groups: of q's heads before those of k's
  std::int64_t q_groups;  // of them
  ColumnArray<A> weights[2];
  HeadStatistic rstds[2];
  QkNorm<A> norm;
  bool round_normed, round_weighted;
  CacheSlots cache;
  int cached;  // the array whose output it is; -1: none
  RopeHeads values;
  std::int64_t value_groups, first_value_block;
  int value_size;  // bytes of an element
};

// Which heads a row has.
struct HeadsOfRow {
  int array;
  std::int64_t first, heads;  // and how many the array has
};
template <class A>
__device__ inline HeadsOfRow heads_of_row(const QkNormRopeParams<A>& p, std::int64_t group) {
  const int array = group >= p.q_groups ? 1 : 0;
  if (array == 1) group -= p.q_groups;
  return {array, group * p.turn.heads_per_thread, p.turn.rope.arrays[array].heads};
}

template <class A>
__device__ inline void store_head_rstd(const HeadStatistic& to, const RopeRow& row,
                                       std::int64_t head, const HeadScale<A>& by) {
  if (to.data == nullptr) return;
  static_cast<A*>(to.data)[to.strides.at(row.b, row.s) + head * to.strides.head] =
      by.rstd * by.scale;
}

// Where a token is in a cache, by block; out of line as divisions are.
struct Slot {
  std::int64_t b, s;
  bool there;
};
static __device__ __noinline__ Slot slot_of(const CacheSlots& cache, std::int64_t b,
                                            std::int64_t s) {
  const std::int64_t slot = cache.of_token(b, s);
  if (!cache.holds(slot)) return {0, 0, false};
  const std::int64_t block = quotient(slot, cache.block_size);
  return {block, slot - block * cache.block_size, true};
}

// The heads of v that a row has, in bytes; none where its token has no slot.
struct ValueRow {
  const char* from;
  char* to;
  int heads;
};
template <class A>
__device__ inline ValueRow value_row(const QkNormRopeParams<A>& p, int local) {
  const RopeProblem& rope = p.turn.rope;
  const std::int64_t block = std::int64_t{blockIdx.x} - p.first_value_block;
  const std::int64_t row = block * p.turn.rows_per_block + local;
  const std::int64_t token = quotient(row, p.value_groups), group = row - token * p.value_groups;
  const std::int64_t b = quotient(token, rope.seq), s = token - b * rope.seq;
  if (b >= rope.batch) return {nullptr, nullptr, 0};
  const Slot slot = slot_of(p.cache, b, s);
  if (!slot.there) return {nullptr, nullptr, 0};
  const RopeHeads& v = p.values;
  const std::int64_t first = group * p.turn.heads_per_thread, left = v.heads - first;
  const std::int64_t from = v.x_strides.at(b, s) + first * v.x_strides.head;
  const std::int64_t to = v.out_strides.at(slot.b, slot.s) + first * v.out_strides.head;
  return {static_cast<const char*>(v.x) + from * p.value_size,
          static_cast<char*>(v.out) + to * p.value_size,
          left < p.turn.heads_per_thread ? static_cast<int>(left) : p.turn.heads_per_thread};
}

template <class A>
__device__ inline void copy_value_chunks(const QkNormRopeParams<A>& p) {
  constexpr int kHeads = tuning::kQkNormHeads;
  const int lanes = p.turn.lanes;
  ValueRow row = value_row(p, threadIdx.x >> log2_of(lanes));
  const int first = (threadIdx.x & (lanes - 1)) * kChunkBytes, second = first + lanes * kChunkBytes;
  uint4 a[kHeads], b[kHeads];
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    if (i >= row.heads) break;
    a[i] = *reinterpret_cast<const uint4*>(row.from + first);
    b[i] = *reinterpret_cast<const uint4*>(row.from + second);
    row.from += p.values.x_strides.head * p.value_size;
  }
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    if (i >= row.heads) break;
    *reinterpret_cast<uint4*>(row.to + first) = a[i];
    *reinterpret_cast<uint4*>(row.to + second) = b[i];
    row.to += p.values.out_strides.head * p.value_size;
  }
}

// A head of a warp, element by element.
template <class A>
__device__ inline void copy_value_numbers(const QkNormRopeParams<A>& p) {
  const ValueRow row = value_row(p, threadIdx.x / kWarpLanes);
  if (row.heads == 0) return;
  const auto copy = [&]<class Word>(std::int64_t i, Word) {
    reinterpret_cast<Word*>(row.to)[i * p.values.out_strides.dim] =
        reinterpret_cast<const Word*>(row.from)[i * p.values.x_strides.dim];
  };
#pragma unroll 1
  for (std::int64_t i = threadIdx.x % kWarpLanes; i < p.turn.rope.head_dim; i += kWarpLanes) {
    if (p.value_size == 2) {
      copy(i, std::uint16_t());
    } else if (p.value_size == 4) {
      copy(i, std::uint32_t());
    } else {
      copy(i, std::uint64_t());
    }
  }
}

template <class T>
__device__ inline void normalise_and_turn(const QkNormRopeParams<accumulate_t<T>>& p) {
  constexpr int kHeads = tuning::kQkNormHeads;
  const int lanes = p.turn.lanes;
  const int local = threadIdx.x >> log2_of(lanes), lane = threadIdx.x & (lanes - 1);
  const std::int64_t index = std::int64_t{blockIdx.x} * p.turn.rows_per_block + local;
  const bool active = index < p.turn.rows;  // sums need every lane of a warp
  const RopeRow row = rope_row(p.turn, active ? index : 0);
  const HeadsOfRow heads = heads_of_row(p, row.group);
  const RopeHeads& array = p.turn.rope.arrays[heads.array];
  const int first = lane * kPack<T>, second = (lanes + lane) * kPack<T>;
  const T* x = static_cast<const T*>(array.x) + array.x_strides.at(row.b, row.s) +
               heads.first * array.x_strides.head;
  Slot slot{row.b, row.s, active};
  if (active && heads.array == p.cached) slot = slot_of(p.cache, row.b, row.s);
  T* out = static_cast<T*>(array.out) + array.out_strides.at(slot.b, slot.s) +
           heads.first * array.out_strides.head;
  const std::int64_t left = slot.there ? heads.heads - heads.first : 0;
  const int count =
      left < p.turn.heads_per_thread ? static_cast<int>(left) : p.turn.heads_per_thread;
  uint4 a[kHeads], b[kHeads];
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    a[i] = b[i] = {0u, 0u, 0u, 0u};
    if (i >= count) continue;
    a[i] = *reinterpret_cast<const uint4*>(x + first);
    b[i] = *reinterpret_cast<const uint4*>(x + second);
    x += array.x_strides.head;
  }
  Turns<T> turns;
  read_head_turns<T>(p.turn.rope, p.turn.table_in_chunks, row.b, row.s, lane, lanes, turns);
  const ColumnArray<accumulate_t<T>>& weights = p.weights[heads.array];
  HeadPart<T> weight;
#pragma unroll 1
  for (int i = 0; i < p.turn.heads_per_thread; ++i) {
    if (i == 0 || weights.head_stride != 0) {
      const int head = i < count ? i : 0;
      read_weight<T>(weights, heads.first + head, lane, lanes, weight);
    }
    HeadPart<T> part{unpack<T>(a[0]), unpack<T>(b[0])};
    const HeadScale<accumulate_t<T>> by = head_scale<T>(p.norm, part, a[0], b[0], lanes);
    if (i < count) {
      if (lane == 0) store_head_rstd(p.rstds[heads.array], row, heads.first + i, by);
      if (by.scale != accumulate_t<T>(1)) part = multiplied<T>(part, by.scale);
      multiply<T>(part, by.rstd);
      if (p.round_normed) round_part<T>(part);
      multiply<T>(part, weight);
      if (p.round_weighted) round_part<T>(part);
      turn_head<T>(part, turns, p.turn.rope.interleaved);
      *reinterpret_cast<uint4*>(out + first) = pack(part.first);
      *reinterpret_cast<uint4*>(out + second) = pack(part.second);
      out += array.out_strides.head;
    }
#pragma unroll
    for (int next = 1; next < kHeads; ++next) {  // the heads behind move up
      a[next - 1] = a[next];
      b[next - 1] = b[next];
    }
  }
}

// Aligned heads that turn as a whole. All dtypes in one kernel share what is out of line: 76 KB
// became 57.
__global__ void __launch_bounds__(tuning::kQkNormRopeThreads)
    qk_norm_rope_chunks_kernel(const __grid_constant__ QkNormRopeParams<float> p) {
  begin_overlapped();
  if (blockIdx.x >= p.first_value_block) {
    return copy_value_chunks(p);
  }
  switch (p.turn.rope.dtype) {
    case DType::kFloat16: return normalise_and_turn<Float16>(p);
    case DType::kBFloat16: return normalise_and_turn<BFloat16>(p);
    default: return normalise_and_turn<float>(p);
  }
}

// One element, normalised.
template <class A>
__device__ __noinline__ A normed_number(const QkNormRopeParams<A>& p, const StridedHead& x,
                                        const HeadScale<A>& by, int array, std::int64_t head,
                                        std::int64_t element) {
  A value = product(product(x.number<A>(element), by.scale), by.rstd);
  if (p.round_normed) value = round_number(value, x.dtype);
  if (p.weights[array].data != nullptr) {
    value = product(value, weight_number(p.weights[array], head, element));
  }
  return p.round_weighted ? round_number(value, x.dtype) : value;
}

// Any strides and dtype.
template <class A>
__global__ void __launch_bounds__(tuning::kQkNormRopeThreads)
    qk_norm_rope_heads_kernel(const __grid_constant__ QkNormRopeParams<A> p) {
  begin_overlapped();
  if (blockIdx.x >= p.first_value_block) {
    return copy_value_numbers(p);
  }
  const int local = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
  const std::int64_t index = std::int64_t{blockIdx.x} * p.turn.rows_per_block + local;
  if (index >= p.turn.rows) return;
  const RopeProblem& rope = p.turn.rope;
  const RopeRow row = rope_row(p.turn, index);
  const HeadsOfRow heads = heads_of_row(p, row.group);
  const std::int64_t head = heads.first;
  const RopeHeads& array = rope.arrays[heads.array];
  Slot slot{row.b, row.s, true};
  if (heads.array == p.cached) slot = slot_of(p.cache, row.b, row.s);
  if (!slot.there) return;
  const StridedHead x{array.x, array.x_strides.at(row.b, row.s) + head * array.x_strides.head,
                      array.x_strides.dim, rope.dtype};
  const HeadScale<A> by = strided_head_scale(p.norm, x, rope.head_dim);
  if (lane == 0) store_head_rstd(p.rstds[heads.array], row, head, by);
  const auto normed = [&](std::int64_t element) {
    return normed_number(p, x, by, heads.array, head, element);
  };
  const auto put = [&](std::int64_t element, A value) {
    put_number(array.out, rope.dtype,
               array.out_strides.at(slot.b, slot.s) + head * array.out_strides.head +
                   element * array.out_strides.dim,
               value);
  };
  const std::int64_t rest = rope.head_dim - rope.rotary_dim;
#pragma unroll 1
  for (std::int64_t unit = lane; unit < p.turn.turning_units + rest; unit += kWarpLanes) {
    if (unit < p.turn.turning_units) {
      const UnitPlace at = unit_place(p.turn, unit, 1);
      Turn<A> turn = one_turn<A>(rope, angle_row(rope, unit, row.b, row.s), unit);
      if (rope.inverse) turn.sin = -turn.sin;
      const A first = normed(at.first), second = normed(at.second);
      put(at.first, product(first, turn.cos) - product(second, turn.sin));
      put(at.second, product(second, turn.cos) + product(first, turn.sin));
    } else {
      std::int64_t element = unit - p.turn.turning_units;
      if (element >= rope.rotary_offset) element += rope.rotary_dim;
      put(element, normed(element));
    }
  }
}

}  // namespace membound::cuda
