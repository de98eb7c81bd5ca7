// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// rope. A row is up to heads_per_thread heads of one token, of q or k, strided by the token's
// number of rows, so that neighbouring rows access contiguous memory. A block has some rows; a
// thread has one unit of each head: two 16-byte vectors that hold whole pairs, or two vectors of 8
// or 4 bytes or single elements where alignment requires it. It loads a few heads, finds cos and
// sin once, rotates, stores, and goes on to the next heads. Shared memory is needed only for tables
// with a column per element. Memory-bound.
#include <cstdlib>

#include "cuda/launch/cache_hint.cuh"
#include "cuda/rope/rope_config.hpp"
#include "cuda/rope/rotation.cuh"
#include "cuda/row/cluster.cuh"

namespace membound::cuda {

// Heads of an array in groups: group g has heads g, g + count, ...; `each` heads, and one more if g
// < longer.
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
  HeadGroups groups[2];              // q's before k's
  std::int64_t units, rotary_units;  // of a head; the units after the rotary ones are copied
  int heads_per_thread, lanes, rows_per_block;
  RowDivider by_inner, by_outer;
  unsigned lane_magic;  // thread * lane_magic / 2^16: division by lanes
  bool tokens_inside;   // consecutive rows have the same group of heads
  bool batch_inside;    // else: consecutive tokens have the same sequence position
  bool table_in_vectors;
};

// Sets the order in which rows are numbered.
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

// Batch index, sequence position and group of heads.
struct RopeRow {
  std::int64_t b, s, group;
};
__device__ inline RopeRow rope_row(const RopeParams& p, std::int64_t row) {
  const std::int64_t outer = quotient(row, p.by_inner), within = row - outer * p.by_inner.extent;
  const std::int64_t high = quotient(outer, p.by_outer), low = outer - high * p.by_outer.extent;
  if (p.tokens_inside) return {high, within, low};
  return p.batch_inside ? RopeRow{low, high, within} : RopeRow{high, low, within};
}

// Heads of a row: first, first + step, ...
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

// Position of a unit's first element or vector in a head, and the distance to its second.
template <class Index>
struct UnitPosition {
  Index first, apart;
};
template <class Index>
__device__ inline UnitPosition<Index> unit_position(const RopeParams& p, Index unit, int width) {
  const auto offset = static_cast<Index>(p.rope.rotary_offset);
  const auto dim = static_cast<Index>(p.rope.rotary_dim);
  const auto rotary = static_cast<Index>(p.rotary_units);
  if (unit < rotary) {
    return {offset + unit * (p.rope.interleaved ? 2 * width : width),
            p.rope.interleaved ? width : dim / 2};
  }
  // The units after the rotary ones cover the elements before and after the rotary part.
  const Index first = (unit - rotary) * 2 * width;
  return {first >= offset ? first + dim : first, width};
}

// PDL wait that cannot be scheduled before the two addresses are computed, because it is predicated
// on them. A decoding step is so short that computing addresses must overlap the previous kernel.
__device__ inline void pdl_wait_after(const void* from, const void* to) {
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
  pdl_launch_if_few();
}

struct VectorPair {
  uint4 first, second;
};

// Source of cos and sin: a table read in vectors, for either pair style; frequencies; or the
// generic path.
enum class RotationSource { kSplitTable, kInterleavedTable, kFrequencies, kAnywhere };

// Blocks per SM; sines and calls take more registers.
template <RotationSource kFrom>
inline constexpr int kBlocksAtOnce =
    kFrom == RotationSource::kSplitTable || kFrom == RotationSource::kInterleavedTable
        ? tuning::kRopeBlocks
        : tuning::kRopeBlocksWithSines;

template <RotationSource kFrom, class T, class Seconds>
__device__ inline VectorPair rotated(const VectorPair& unit, const Rotations<T>& rotations,
                                     bool shared, const Seconds* seconds, bool interleaved) {
  constexpr bool kOfTable =
      kFrom == RotationSource::kSplitTable || kFrom == RotationSource::kInterleavedTable;
  Numbers<T> first = unpack<T>(unit.first), second = unpack<T>(unit.second);
  if constexpr (kFrom == RotationSource::kAnywhere) {
    seconds->rotate(first, second, rotations, shared, interleaved);
  } else if (kOfTable ? kFrom == RotationSource::kInterleavedTable : interleaved) {
    rotate<true>(first, second, rotations, rotations);
  } else {
    rotate<false>(first, second, rotations, rotations);
  }
  return {pack(first), pack(second)};
}

// Pointers to a thread's unit in the heads of a row: the start of the first head, and the steps to
// the next.
template <class T>
struct HeadPointers {
  RopeRow row;
  const T* x;
  T* out;
  std::int64_t x_step, out_step;
  int count;
};
template <class T>
__device__ inline HeadPointers<T> head_pointers(const RopeParams& p, std::int64_t index) {
  const RopeRow row = rope_row(p, index);
  const HeadsOfRow heads = heads_of_row(p, row.group);
  const RopeHeads& array = p.rope.arrays[heads.array];
  return {row,
          static_cast<const T*>(array.x) + array.x_strides.at(row.b, row.s) +
              heads.first * array.x_strides.head,
          static_cast<T*>(array.out) + array.out_strides.at(row.b, row.s) +
              heads.first * array.out_strides.head,
          heads.step * array.x_strides.head,
          heads.step * array.out_strides.head,
          heads.count};
}

// Rotations of one element of each of some pairs, from any source.
template <class T>
__device__ inline void find_unit_rotations(const RopeParams& p, const RopeRow& row,
                                           std::int64_t first, int element,
                                           Rotations<T>& rotations) {
  if (p.table_in_vectors) {
    read_each_rotations<T>(p.rope, row.b, row.s, first, element, rotations);
  } else {
    rotations = rotations_from<T>(p.rope, row.b, row.s, first, 1, p.rope.rotary_dim / 2, element);
  }
}

// For aligned heads of contiguous elements, in units of two 16-byte vectors. Tables are read
// without calls, which would wait for the heads' loads; addresses are computed before the PDL wait.
template <class T, RotationSource kFrom>
__global__ void __launch_bounds__(tuning::kRopeThreads, kBlocksAtOnce<kFrom>)
    rope_vectors_kernel(const __grid_constant__ RopeParams p) {
  constexpr int kHeads = tuning::kRopeHeads;
  using Seconds = SecondRotations<T, kPack<T>, tuning::kRopeThreads>;
  Seconds* seconds = nullptr;
  if constexpr (kFrom == RotationSource::kAnywhere) {
    __shared__ Seconds second_rotations;
    seconds = &second_rotations;
  }
  const bool shared = !p.rope.has_column_each();
  pdl_launch_unless_few();
  const int local = static_cast<int>(threadIdx.x * p.lane_magic >> 16);
  const std::int64_t index = std::int64_t{blockIdx.x} * p.rows_per_block + local;
  if (index >= p.rows) return;
  const HeadPointers<T> heads = head_pointers<T>(p, index);
  const RopeRow& row = heads.row;
  pdl_wait_after(heads.x, heads.out);
#pragma unroll 1
  for (int unit = threadIdx.x - local * p.lanes; unit < static_cast<int>(p.units);
       unit += p.lanes) {
    const UnitPosition at = unit_position(p, unit, kPack<T>);
    const bool rotates = unit < static_cast<int>(p.rotary_units);
    const T* x = heads.x + at.first;
    T* out = heads.out + at.first;
    Rotations<T> rotations;
#pragma unroll 1
    for (int done = 0; done < heads.count; done += kHeads) {
      VectorPair loaded[kHeads];
#pragma unroll
      for (int i = 0; i < kHeads; ++i) {
        if (done + i >= heads.count) break;
        loaded[i].first = read_vector(x);
        loaded[i].second = read_vector(x + at.apart);
        x += heads.x_step;
      }
      if (done == 0 && rotates) {
        if constexpr (kFrom == RotationSource::kAnywhere) {
          if (!shared) {
            find_unit_rotations<T>(p, row, unit * kPack<T>, 1, rotations);
            apply_inverse<T>(rotations, p.rope.inverse);
            seconds->store(rotations);
          }
          find_unit_rotations<T>(p, row, unit * kPack<T>, 0, rotations);
        } else if constexpr (kFrom == RotationSource::kFrequencies) {
          compute_rotations<T>(
              p.rope, row.b, row.s, [=](int i) { return std::int64_t{unit * kPack<T> + i}; },
              rotations);
        } else {
          read_rotations<T>(p.rope, row.b, row.s, unit * kPack<T>, rotations);
        }
        apply_inverse<T>(rotations, p.rope.inverse);
      }
#pragma unroll
      for (int i = 0; i < kHeads; ++i) {
        if (done + i >= heads.count) break;
        if (rotates) {
          loaded[i] = rotated<kFrom>(loaded[i], rotations, shared, seconds, p.rope.interleaved);
        }
        *reinterpret_cast<uint4*>(out) = loaded[i].first;
        *reinterpret_cast<uint4*>(out + at.apart) = loaded[i].second;
        out += heads.out_step;
      }
    }
  }
}

// Narrow vectors, for heads that are not aligned to 16 bytes.
template <int kBytes>
struct NarrowVector {
  using type = uint2;
  static __device__ uint4 widened(const uint2& narrow) { return {narrow.x, narrow.y, 0u, 0u}; }
  static __device__ uint2 narrowed(const uint4& vector) { return {vector.x, vector.y}; }
};
template <>
struct NarrowVector<4> {
  using type = std::uint32_t;
  static __device__ uint4 widened(std::uint32_t narrow) { return {narrow, 0u, 0u, 0u}; }
  static __device__ std::uint32_t narrowed(const uint4& vector) { return vector.x; }
};
template <>
struct NarrowVector<2> {
  using type = std::uint16_t;
  static __device__ uint4 widened(std::uint16_t narrow) { return {narrow, 0u, 0u, 0u}; }
  static __device__ std::uint16_t narrowed(const uint4& vector) {
    return static_cast<std::uint16_t>(vector.x);
  }
};

template <int kBytes>
inline constexpr int kNarrowVectorBlocks =
    kBytes == 2 ? tuning::kRopeElementBlocks : tuning::kRopeNarrowBlocks;

// For heads in units of two narrow vectors of kPairs elements; single elements may have any
// strides, and then the copied units are one element. Angles that need a call are found before the
// heads' loads, which the call would wait for.
template <class T, int kPairs>
__global__ void __launch_bounds__(tuning::kRopeThreads, kNarrowVectorBlocks<kPairs * sizeof(T)>)
    rope_narrow_vectors_kernel(const __grid_constant__ RopeParams p) {
  using Of = NarrowVector<kPairs * sizeof(T)>;
  using Narrow = typename Of::type;
  using Index = std::conditional_t<kPairs == 1, std::int64_t, int>;
  constexpr int kHeads = tuning::kRopeNarrowBytesInFlight / sizeof(Narrow);
  __shared__ SecondRotations<T, kPairs, tuning::kRopeThreads> seconds;
  const bool shared = !p.rope.has_column_each();
  pdl_launch_unless_few();
  const int local = static_cast<int>(threadIdx.x * p.lane_magic >> 16);
  const std::int64_t index = std::int64_t{blockIdx.x} * p.rows_per_block + local;
  if (index >= p.rows) return;
  const HeadPointers<T> heads = head_pointers<T>(p, index);
  const RopeHeads& array = p.rope.arrays[heads_of_row(p, heads.row.group).array];
  const std::int64_t x_dim = kPairs == 1 ? array.x_strides.dim : 1;
  const std::int64_t out_dim = kPairs == 1 ? array.out_strides.dim : 1;
  pdl_wait_after(heads.x, heads.out);
#pragma unroll 1
  for (Index unit = threadIdx.x - local * p.lanes; unit < static_cast<Index>(p.units);
       unit += p.lanes) {
    const bool rotates = unit < static_cast<Index>(p.rotary_units);
    const bool both = rotates || kPairs > 1;
    UnitPosition<Index> at = unit_position<Index>(p, unit, kPairs);
    if (!both) {
      at.first = unit - p.rotary_units;
      if (at.first >= p.rope.rotary_offset) at.first += p.rope.rotary_dim;
    }
    const T* x = heads.x + at.first * x_dim;
    T* out = heads.out + at.first * out_dim;
    const std::int64_t x_apart = both ? at.apart * x_dim : 0;
    const std::int64_t out_apart = at.apart * out_dim;
    Rotations<T, kPairs> rotations;
    const auto from_anywhere = [&](int element) {
      Rotations<T, kPairs> found = rotations_from<T, kPairs>(
          p.rope, heads.row.b, heads.row.s, unit * kPairs, 1, p.rope.rotary_dim / 2, element);
      apply_inverse<T>(found, p.rope.inverse);
      return found;
    };
    if (rotates && !p.table_in_vectors) {
      if (!shared) seconds.store(from_anywhere(1));
      rotations = from_anywhere(0);
    }
#pragma unroll 1
    for (int done = 0; done < heads.count; done += kHeads) {
      Narrow first[kHeads], second[kHeads];
#pragma unroll
      for (int i = 0; i < kHeads; ++i) {
        if (done + i >= heads.count) break;
        first[i] = *with_evict_last(reinterpret_cast<const Narrow*>(x));
        second[i] = *with_evict_last(reinterpret_cast<const Narrow*>(x + x_apart));
        x += heads.x_step;
      }
      if (done == 0 && rotates) {
        if (p.table_in_vectors) {
          const auto read = [&](int element, Rotations<T, kPairs>& found) {
            read_rotations_by_element<T>(
                p.rope, heads.row.b, heads.row.s, [=](int i) { return unit * kPairs + i; },
                [=](int) { return element; }, found);
            apply_inverse<T>(found, p.rope.inverse);
          };
          if (!shared) {
            read(1, rotations);
            seconds.store(rotations);
          }
          read(0, rotations);
        }
      }
#pragma unroll
      for (int i = 0; i < kHeads; ++i) {
        if (done + i >= heads.count) break;
        if (rotates) {
          Numbers<T> a = unpack<T>(Of::widened(first[i])), b = unpack<T>(Of::widened(second[i]));
          seconds.rotate(a, b, rotations, shared, kPairs > 1 && p.rope.interleaved);
          first[i] = Of::narrowed(pack(a));
          second[i] = Of::narrowed(pack(b));
        }
        *reinterpret_cast<Narrow*>(out) = first[i];
        if (both) *reinterpret_cast<Narrow*>(out + out_apart) = second[i];
        out += heads.out_step;
      }
    }
  }
}

}  // namespace membound::cuda
