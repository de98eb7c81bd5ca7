// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// qk_norm_rope. A row is up to kQkNormHeads heads of one token, of q or k; a block has some rows.
// With two vectors of each head per lane, a row's lanes prefetch the first heads, find weight, cos
// and sin, then normalise, rotate and store head by head while prefetching later ones. Shared
// memory: the weights of q and k. In the generic form a warp does one head element by element. With
// a key/value cache, further blocks copy v by rows. Limited by memory and instructions (about 250
// for a head of 128 in each of a warp's four rows).
#include "cuda/launch/cache_hint.cuh"
#include "cuda/rope/qk_norm_lanes.cuh"
#include "cuda/rope/qk_norm_rope_config.hpp"
#include "cuda/rope/qk_norm_weight.cuh"
#include "cuda/row/cluster.cuh"

namespace membound::cuda {

// Elements between consecutive heads of a row. Computed on the host: in the kernel they were
// spilled to local memory, and the address of every load waited for them.
struct HeadSteps {
  std::int64_t x, out, rstd;
};

template <class A>
struct QkNormRopeParams {
  RopeParams rope_params;  // units: half the vectors of a head
  AffineArray<A> weights[2];
  HeadStatistic rstds[2];
  HeadSteps steps[2];
  QkNorm<A> norm;
  bool round_normed, round_weighted;
  CacheSlots cache;
  int cached;  // the array whose output is the cache; -1: none
  RopeHeads values;
  std::int64_t first_value_block;
  RowDivider by_value_groups, by_seq, by_block;
  int value_size;  // bytes of an element
  // For the form with one vector per lane.
  tuning::WarpHeads warp;
  VectorAccess access;
  bool common_weights;
};

// The weight of one head, if heads have different weights.
template <class T>
__device__ __noinline__ HeadPart<T> weight_of_head(const AffineArray<accumulate_t<T>>& weight,
                                                   std::int64_t number, HeadLanes head) {
  WeightVectors<T> vectors{};
  vectors.load(weight, number, head);
  return vectors.numbers(weight, head);
}

template <class A>
__device__ inline void store_head_rstd(const HeadStatistic& to, const RopeRow& row,
                                       std::int64_t head, const HeadScale<A>& by) {
  if (to.data == nullptr) return;
  static_cast<A*>(to.data)[to.strides.at(row.b, row.s) + head * to.strides.head] =
      by.rstd * by.scale;
}

// Position of a token in the cache, by block. Out of line because of the divisions.
struct Slot {
  std::int64_t b, s;
  bool in_cache;
};
static __device__ __noinline__ Slot slot_of(const CacheSlots& cache, const RowDivider& by_block,
                                            std::int64_t b, std::int64_t s) {
  const std::int64_t slot = cache.of_token(b, s);
  if (!cache.holds(slot)) return {0, 0, false};
  const std::int64_t block = quotient(slot, by_block);
  return {block, slot - block * cache.block_size, true};
}

// The heads of v in a row, in bytes; none if the token has no cache slot.
struct ValueRow {
  const char* from;
  char* to;
  int heads;
};
template <class A>
__device__ inline ValueRow value_row(const QkNormRopeParams<A>& p, int local) {
  const RopeProblem& rope = p.rope_params.rope;
  const std::int64_t block = std::int64_t{blockIdx.x} - p.first_value_block;
  const std::int64_t row = block * p.rope_params.rows_per_block + local;
  const std::int64_t token = quotient(row, p.by_value_groups);
  const std::int64_t group = row - token * p.by_value_groups.extent;
  const std::int64_t b = quotient(token, p.by_seq), s = token - b * rope.seq;
  if (b >= rope.batch) return {nullptr, nullptr, 0};
  const Slot slot = slot_of(p.cache, p.by_block, b, s);
  if (!slot.in_cache) return {nullptr, nullptr, 0};
  const RopeHeads& v = p.values;
  const std::int64_t first = group * p.rope_params.heads_per_thread, left = v.heads - first;
  const std::int64_t from = v.x_strides.at(b, s) + first * v.x_strides.head;
  const std::int64_t to = v.out_strides.at(slot.b, slot.s) + first * v.out_strides.head;
  return {static_cast<const char*>(v.x) + from * p.value_size,
          static_cast<char*>(v.out) + to * p.value_size,
          left < p.rope_params.heads_per_thread ? static_cast<int>(left)
                                                : p.rope_params.heads_per_thread};
}

template <class A>
__device__ inline void copy_value_vectors(const QkNormRopeParams<A>& p) {
  constexpr int kHeads = tuning::kQkNormHeads;
  pdl_wait_then_launch();
  const int lanes = p.rope_params.lanes;
  ValueRow row = value_row(p, threadIdx.x >> log2_of(lanes));
  const int lane = threadIdx.x & (lanes - 1), half = static_cast<int>(p.rope_params.units);
  if (lane >= half) return;
  const int first = lane * kVectorBytes, second = (half + lane) * kVectorBytes;
  uint4 a[kHeads], b[kHeads];
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    if (i >= row.heads) break;
    a[i] = read_vector(row.from + first);
    b[i] = read_vector(row.from + second);
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

// Generic form: one head per warp, element by element.
template <class A>
__device__ inline void copy_value_numbers(const QkNormRopeParams<A>& p) {
  const ValueRow row = value_row(p, threadIdx.x / kWarpLanes);
  if (row.heads == 0) return;
  const auto copy = [&]<class Word>(std::int64_t i, Word) {
    reinterpret_cast<Word*>(row.to)[i * p.values.out_strides.dim] =
        reinterpret_cast<const Word*>(row.from)[i * p.values.x_strides.dim];
  };
#pragma unroll 1
  for (std::int64_t i = threadIdx.x % kWarpLanes; i < p.rope_params.rope.head_dim;
       i += kWarpLanes) {
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
__device__ inline void normalise_and_rotate(
    const QkNormRopeParams<accumulate_t<T>>& p, SharedWeight<T> (&shared_weights)[2],
    SecondRotations<T, kPack<T>, tuning::kQkNormRopeThreads>& seconds) {
  constexpr int kInFlight = tuning::kQkNormHeadsInFlight;
  const int lanes = p.rope_params.lanes;
  const int local = threadIdx.x >> log2_of(lanes), lane = threadIdx.x & (lanes - 1);
  const std::int64_t index = std::int64_t{blockIdx.x} * p.rope_params.rows_per_block + local;
  const bool active = index < p.rope_params.rows;  // sums need all lanes of a warp
  const RopeRow row = rope_row(p.rope_params, active ? index : 0);
  const HeadsOfRow heads = heads_of_row(p.rope_params, row.group);
  const RopeHeads& array = p.rope_params.rope.arrays[heads.array];
  const HeadLanes head{lane, lanes, static_cast<int>(p.rope_params.units)};
  // Lanes without vectors read the first ones, which no sum counts.
  const int first = (head.holds() ? lane : 0) * kPack<T>, apart = head.half * kPack<T>;
  const T* x = static_cast<const T*>(array.x) + array.x_strides.at(row.b, row.s) +
               heads.first * array.x_strides.head + first;
  pdl_wait_after(x, x);
  Slot slot{row.b, row.s, active};
  if (active && heads.array == p.cached) slot = slot_of(p.cache, p.by_block, row.b, row.s);
  T* out = static_cast<T*>(array.out) + array.out_strides.at(slot.b, slot.s) +
           heads.first * array.out_strides.head + first;
  const int count = slot.in_cache ? heads.count : 0;
  uint4 a[kInFlight] = {}, b[kInFlight] = {};
  const auto prefetch = [&](int number, int i) {
    if (number >= count) return;
    a[i] = read_vector(x);
    b[i] = read_vector(x + apart);
    x += p.steps[heads.array].x;
  };
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) prefetch(i, i);
  const bool holds_weight = local < p.rope_params.rope.count;  // a block has at least two rows
  WeightVectors<T> vectors{};
  if (holds_weight) vectors.load(p.weights[local], 0, head);
  Rotations<T> rotations;
  read_head_rotations<T>(p.rope_params.rope, p.rope_params.table_in_vectors, row.b, row.s, head,
                         rotations, seconds);
  const bool shared = !p.rope_params.rope.has_column_each();
  if (holds_weight) shared_weights[local].store(vectors.numbers(p.weights[local], head), lane);
  __syncthreads();
  const AffineArray<accumulate_t<T>>& weights = p.weights[heads.array];
  const bool weights_differ = weights.head_stride != 0;
  const HeadStatistic& rstds = p.rstds[heads.array];
  auto* rstd = static_cast<accumulate_t<T>*>(lane == 0 ? rstds.data : nullptr);
  if (rstd != nullptr) rstd += rstds.strides.at(row.b, row.s) + heads.first * rstds.strides.head;
#pragma unroll 1
  for (int done = 0; done < p.rope_params.heads_per_thread; done += kInFlight) {
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (done + i >= p.rope_params.heads_per_thread) break;
      HeadPart<T> part = unpack_part<T>(a[i], b[i]);
      prefetch(done + i + kInFlight, i);
      const HeadScale<accumulate_t<T>> by = scale_head<T>(p.norm, part, head);
      if (done + i >= count) continue;
      if (rstd != nullptr) {
        *rstd = by.rstd * by.scale;
        rstd += p.steps[heads.array].rstd;
      }
      multiply<T>(part, by.rstd);
      if (p.round_normed) round_part<T>(part);
      if (weights_differ) {
        const std::int64_t number = heads.first + (done + i) * heads.step;
        multiply<T>(part, weight_of_head<T>(weights, number, head));
      } else {
        multiply<T>(part, shared_weights[heads.array].load(lane));
      }
      if (p.round_weighted) round_part<T>(part);
      seconds.rotate(part.first, part.second, rotations, shared, p.rope_params.rope.interleaved);
      if (head.holds()) {
        *reinterpret_cast<uint4*>(out) = pack(part.first);
        *reinterpret_cast<uint4*>(out + apart) = pack(part.second);
      }
      out += p.steps[heads.array].out;
    }
  }
}

// For aligned heads that rotate as a whole.
template <class T>
__global__ void __launch_bounds__(tuning::kQkNormRopeThreads, tuning::kQkNormRopeBlocks)
    qk_norm_rope_vectors_kernel(const __grid_constant__ QkNormRopeParams<accumulate_t<T>> p) {
  pdl_launch_unless_few();
  if (blockIdx.x >= p.first_value_block) return copy_value_vectors(p);
  __shared__ SharedWeight<T> weights[2];
  __shared__ SecondRotations<T, kPack<T>, tuning::kQkNormRopeThreads> seconds;
  normalise_and_rotate<T>(p, weights, seconds);
}

// One normalised and weighted element.
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

// Generic kernel: any strides and dtype, for float64 and for heads with more vectors than a warp
// has lanes.
template <class A>
__global__ void __launch_bounds__(tuning::kQkNormRopeThreads)
    qk_norm_rope_heads_kernel(const __grid_constant__ QkNormRopeParams<A> p) {
  pdl_wait_and_launch();
  if (blockIdx.x >= p.first_value_block) {
    return copy_value_numbers(p);
  }
  const int local = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
  const std::int64_t index = std::int64_t{blockIdx.x} * p.rope_params.rows_per_block + local;
  if (index >= p.rope_params.rows) return;
  const RopeProblem& rope = p.rope_params.rope;
  const RopeRow row = rope_row(p.rope_params, index);
  const HeadsOfRow heads = heads_of_row(p.rope_params, row.group);
  const std::int64_t head = heads.first;
  const RopeHeads& array = rope.arrays[heads.array];
  Slot slot{row.b, row.s, true};
  if (heads.array == p.cached) slot = slot_of(p.cache, p.by_block, row.b, row.s);
  if (!slot.in_cache) return;
  const StridedHead x{array.x, array.x_strides.at(row.b, row.s) + head * array.x_strides.head,
                      array.x_strides.dim, rope.dtype};
  const HeadScale<A> by = strided_head_scale(p.norm, x, rope.head_dim);
  if (lane == 0) store_head_rstd(p.rstds[heads.array], row, head, by);
  const auto normed = [&](std::int64_t element) {
    return normed_number(p, x, by, heads.array, head, element);
  };
  const auto store = [&](std::int64_t element, A value) {
    store_number(array.out, rope.dtype,
                 array.out_strides.at(slot.b, slot.s) + head * array.out_strides.head +
                     element * array.out_strides.dim,
                 value);
  };
  const std::int64_t rest = rope.head_dim - rope.rotary_dim;
#pragma unroll 1
  for (std::int64_t unit = lane; unit < p.rope_params.rotary_units + rest; unit += kWarpLanes) {
    if (unit < p.rope_params.rotary_units) {
      const UnitPosition<std::int64_t> at = unit_position(p.rope_params, unit, 1);
      const AngleRow angles = angle_row(rope, unit, row.b, row.s);
      const Rotation<A> rotation = one_rotation<A>(rope, angles, unit, 0);
      const Rotation<A> other =
          rope.has_column_each() ? one_rotation<A>(rope, angles, unit, 1) : rotation;
      const A sign = rope.inverse ? -1 : 1;
      const A first = normed(at.first), second = normed(at.first + at.apart);
      store(at.first, product(first, rotation.cos) - product(second, sign * rotation.sin));
      store(at.first + at.apart, product(second, other.cos) + product(first, sign * other.sin));
    } else {
      std::int64_t element = unit - p.rope_params.rotary_units;
      if (element >= rope.rotary_offset) element += rope.rotary_dim;
      store(element, normed(element));
    }
  }
}

}  // namespace membound::cuda
