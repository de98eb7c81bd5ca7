// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Functions of floats of 16 bits, of which a load of one unit would be too short. float32 is up to
// 13 % slower in this kernel and has elementwise_kernel.
#include "cuda/array/elementwise_kernel.cuh"

namespace membound::cuda {

// Loads of a thread from each operand, one unit each, or two (ElementwiseParams::pairs). A turn
// computes two units: those of two loads, or of one.
template <class A, int kOperands>
constexpr int kNarrowLoads = kOperands == 1 ? 4 : 2;
template <class A>
constexpr int kTurnUnits = 2;
template <class A>
constexpr int kTurnItems = kTurnUnits<A> * kUnitItems;

// The items of a turn, out of one load or two.
template <class A>
__device__ inline RawUnit<A, kTurnItems<A>> turn_of(const RawUnit<A>& first,
                                                    const RawUnit<A>& second, int item_bytes,
                                                    bool pairs) {
  RawUnit<A, kTurnItems<A>> raw;
  constexpr int kWords = RawUnit<A>::kWords;
#pragma unroll
  for (int word = 0; word < kWords; ++word) raw.words[word] = first.words[word];
#pragma unroll
  for (int word = 0; word < kWords; ++word) raw.words[kWords + word] = second.words[word];
  if (!pairs && item_bytes == 2) raw.words[2] = second.words[0], raw.words[3] = second.words[1];
  return raw;
}
// One unit of a turn.
template <class A>
__device__ inline RawUnit<A> unit_of(const RawUnit<A, kTurnItems<A>>& raw, int unit,
                                     int item_bytes) {
  RawUnit<A> result;
#pragma unroll
  for (int word = 0; word < RawUnit<A>::kWords; ++word) {
    result.words[word] = raw.words[word];
    if (unit == 1) {
      result.words[word] = item_bytes == 4   ? raw.words[4 + word]
                           : item_bytes == 2 ? raw.words[2 + word]
                                             : raw.words[1 + word];
    }
  }
  return result;
}

// A thread makes all of its loads before it computes the first turn. The switch is outside the loop
// over elements, so each function is compiled once per arithmetic type. Memory-bound.
template <class A, int kOperands>
__global__ void __launch_bounds__(kElementwiseThreads, 4)
    elementwise_narrow_kernel(const __grid_constant__ ElementwiseParams<kOperands> p) {
  constexpr int kLoads = kNarrowLoads<A, kOperands>;
  constexpr int kUnits = kTurnUnits<A>, kItems = kTurnItems<A>;
  pdl_wait_and_launch();
  const bool pairs = kUnits == 2 && p.pairs;
  const std::int64_t begin =
      std::int64_t{blockIdx.x} * (kLoads * kElementwiseThreads) + threadIdx.x;
  const auto locate = [&](std::int64_t linear, std::int64_t (&at)[kOperands + 1]) {
    const std::int64_t col = kUnitItems * p.index.template offsets<true>(linear, p.strides, at);
    return static_cast<int>(min(p.inner - col, std::int64_t{kUnitItems}));
  };
  const auto load_anywhere = [&](std::int64_t linear, RawUnit<A>(&to)[kOperands]) {
    if (linear >= p.index.size) return;
    std::int64_t at[kOperands + 1];
    const int count = locate(linear, at);
#pragma unroll
    for (int k = 0; k < kOperands; ++k) to[k] = load_unit<A>(p.arrays[k], at[k], count);
  };
  RawUnit<A> raw[kOperands][kLoads];
  const std::int64_t last = begin + (kLoads - 1) * kElementwiseThreads;
  if ((pairs ? 2 * last + 1 : last) < p.whole) {
#pragma unroll
    for (int k = 0; k < kOperands; ++k)
      load_dense<A, kLoads>(p.arrays[k], p.row_loads, pairs, begin, raw[k]);
  } else {
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      const std::int64_t linear = begin + load * kElementwiseThreads;
      RawUnit<A> first[kOperands] = {}, second[kOperands] = {};
      load_anywhere(pairs ? 2 * linear : linear, first);
      if (pairs) load_anywhere(2 * linear + 1, second);
#pragma unroll
      for (int k = 0; k < kOperands; ++k) {
        const auto both = turn_of(first[k], second[k], p.arrays[k].item_bytes, !pairs);
#pragma unroll
        for (int word = 0; word < RawUnit<A>::kWords; ++word)
          raw[k][load].words[word] = both.words[word];
        // A number of float32 fills two units, also where the second one is behind the end.
        if (p.arrays[k].is_scalar) raw[k][load] = scalar_unit<A>(p.arrays[k]);
      }
    }
  }
  const UnitArray& result = p.arrays[kOperands];
  const int loads_of_turn = pairs ? 1 : kUnits;
#pragma unroll 1
  for (std::int64_t load = begin; load <= last; load += loads_of_turn * kElementwiseThreads) {
    const std::int64_t unit = pairs ? 2 * load : load, apart = pairs ? 1 : kElementwiseThreads;
    if (unit >= p.index.size) break;
    A x[kOperands][kItems], values[kItems] = {};
#pragma unroll
    for (int k = 0; k < kOperands; ++k) {
      const UnitArray& array = p.arrays[k];
      unpack_unit(turn_of(raw[k][0], raw[k][kUnits - 1], array.item_bytes, pairs), array.dtype,
                  x[k]);
    }
    RawUnit<A, kItems> packed = {};
    switch (p.op) {
#define MEMBOUND_CASE(Name_, operands_, types_, result_)                                           \
  case ElementwiseOp::k##Name_:                                                                    \
    if constexpr (operands_ == kOperands && kTakes<A, functors::Types::types_>)                    \
      evaluate<functors::Name_, kIsLong<ElementwiseOp::k##Name_> ? kUnitItems : kItems>(x, values, \
                                                                                        packed);   \
    break;
      MEMBOUND_ARRAY_FUNCTORS(MEMBOUND_CASE)
#undef MEMBOUND_CASE
      default: break;
    }
    if (result.dtype != DType::kBool) packed = pack_unit(values, result.dtype, result.item_bytes);
    if (pairs && unit + 1 < p.whole) {
      store_vectors(result.data + unit * result.unit_bytes, 2 * result.item_bytes,
                    unit_of<A>(packed, 0, 0));
    } else {
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        const std::int64_t linear = unit + i * apart;
        if (linear >= p.index.size) break;
        const RawUnit<A> values_of_unit = unit_of<A>(packed, i, result.item_bytes);
        if (linear < p.whole) {
          store_vectors(result.data + linear * result.unit_bytes, result.item_bytes,
                        values_of_unit);
        } else {
          std::int64_t at[kOperands + 1];
          const int count = locate(linear, at);
          store_unit(result, at[kOperands], count, values_of_unit);
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kOperands; ++k) {  // the next loads move to the front
#pragma unroll
      for (int i = 0; i + 1 < kLoads; ++i) {
        if (i + kUnits < kLoads && !pairs) raw[k][i] = raw[k][i + kUnits];
        if (pairs) raw[k][i] = raw[k][i + 1];
      }
    }
  }
}

template <class A, int kOperands>
void launch_narrow(const ElementwiseParams<kOperands>& p, StreamView stream) {
  const int per_block = (p.pairs ? 2 : 1) * kNarrowLoads<A, kOperands> * kElementwiseThreads;
  launch<elementwise_narrow_kernel<A, kOperands>>(
      {(p.index.size + per_block - 1) / per_block, kElementwiseThreads}, stream, current_device(),
      p);
}

}  // namespace membound::cuda
