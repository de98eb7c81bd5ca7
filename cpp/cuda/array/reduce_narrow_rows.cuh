// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Sums and the like of rows whose items have 1 or 2 bytes, of which a load of one unit would be too
// short. Rows of wider items are up to 6 % slower in this kernel.
#include "cuda/array/reduce_kernel.cuh"

namespace membound::cuda {

template <DType kDType>
constexpr int kLoadUnits = 1 << tuning::load_unit_bits(kItemBytes<kDType>);
inline constexpr int kNarrowWords = 32;  // of a thread's loads that are under way

// What a load brings: kUnits units one after another.
template <DType kDType, int kUnits>
struct NarrowLoad {
  static constexpr int kBytes = static_cast<int>(kItemBytes<kDType>);
  static constexpr int kWords = kUnits * kBytes;
  std::uint32_t words[kWords];

  // is_wide: aligned to 16 bytes, else each unit to its size.
  template <class A>
  __device__ void load(const char* from, bool is_wide) {
    if constexpr (kUnits > 1) {
      if (is_wide) {
        const uint4 vector = *reinterpret_cast<const uint4*>(from);
        words[0] = vector.x, words[1] = vector.y, words[2] = vector.z, words[3] = vector.w;
        return;
      }
    }
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const RawUnit<A> raw = load_vectors<A>(from + unit * kUnitItems * kBytes, kBytes);
#pragma unroll
      for (int word = 0; word < kBytes; ++word) words[unit * kBytes + word] = raw.words[word];
    }
  }
  template <class A>
  __device__ RawUnit<A> unit(int i) const {
    RawUnit<A> raw;
#pragma unroll
    for (int word = 0; word < kBytes; ++word) raw.words[word] = words[i * kBytes + word];
    return raw;
  }
};

// Loads of vectors, with dtype and op known at compile time; is_wide: aligned to 16 bytes.
// place(unit, i): of element i of a unit, kUnits of which are a load.
template <class A, class Op, DType kDType, int kUnits, class PlaceOf>
__device__ void reduce_narrow_vectors(const ReduceParams<A>& p,
                                      typename Op::Value (&values)[kUnitItems],
                                      const A (&centres)[kUnitItems], Loads loads,
                                      const PlaceOf& place) {
  using Load = NarrowLoad<kDType, kUnits>;
  constexpr int kLoads = Load::kBytes == 1 ? 8 / (kUnits > 1 ? 2 : 1) : kNarrowWords / Load::kWords;
  if (loads.count == 0) return;
  Op::template with_step<true>(p.context, [&](const auto& step, auto reverses) {
    using Walk = typename Op::RowWalk;
    Walk walk = Op::template begin<Walk>(p.context, values);
    int unit = 0;
    const auto take = [&](const Load& load) {
#pragma unroll
      for (int of = 0; of < kUnits; ++of) {
        A x[kUnitItems];
        RawUnit<A> raw = load.template unit<A>(of);
        if constexpr (decltype(reverses)::value) reverse_order(p.context, raw);
        unpack_unit(raw, kDType, x);
        Op::next(step, walk, x, centres, unit++);
      }
    };
    Load raw[kLoads];
#pragma unroll 1
    for (; loads.count > 0; loads.count -= kLoads) {
#pragma unroll
      for (int load = 0; load < kLoads; ++load) {
        if (load < loads.count) raw[load].template load<A>(loads.from, p.is_wide);
        loads.from += loads.step;
      }
#pragma unroll
      for (int load = 0; load < kLoads; ++load) {
        if (load < loads.count) take(raw[load]);
      }
    }
    Op::end(p.context, values, walk, place, kUnitItems);
  });
}

// reduce_narrow_vectors with the dtype of the source, which is narrow.
template <class A, class Op, class... Arguments>
__device__ void reduce_narrow_dense(const ReduceParams<A>& p, Arguments&&... arguments) {
  with_source_dtype<A>(p.arrays[kSource].dtype, [&]<DType kDType>() {
    if constexpr (kItemBytes<kDType> <= 2)
      reduce_narrow_vectors<A, Op, kDType, kLoadUnits<kDType>>(p, arguments...);
  });
}

// reduce_rows_kernel for items of 1 or 2 bytes: consecutive lanes read 16 bytes each.
// Shared memory: one value per warp. Memory-bound.
template <class A, class Op>
__global__ void __launch_bounds__(kReduceThreads, kReduceBlocks<A, Op>)
    reduce_narrow_rows_kernel(const __grid_constant__ ReduceParams<A> p) {
  using Value = typename Op::Value;
  __shared__ Value of_warps[kReduceThreads / kWarpLanes];
  pdl_wait_and_launch();
  const auto [lanes, lane, result, chunk, is_there] = row_part(p);
  std::int64_t at[kArrays] = {};
  Value values[kUnitItems];
#pragma unroll
  for (int i = 0; i < kUnitItems; ++i) values[i] = Op::identity(p.context);
  if (is_there) {
    p.kept.template offsets<true>(result, p.kept_strides, at);
    const A centre = centre_at(p, at[kCentre]);
    const A centres[kUnitItems] = {centre, centre, centre, centre};
    // Counted in loads of 1 << unit_bits units, which do not depend on the alignment.
    const int bits = p.unit_bits;
    std::int64_t load = chunk * p.config.chunk + lane;
    const std::int64_t end =
        min(chunk * p.config.chunk + p.config.chunk, (p.reduced.size + (1 << bits) - 1) >> bits);
    if (p.dense) {
      const std::int64_t whole = min(end, p.inner / kUnitItems >> bits);
      const int count =
          load < whole ? static_cast<int>((whole - load + lanes - 1) >> p.lane_bits) : 0;
      const UnitArray& source = p.arrays[kSource];
      const int bytes = source.unit_bytes << bits;
      reduce_narrow_dense<A, Op>(
          p, values, centres,
          Loads{source.data + at[kSource] * source.item_bytes + load * bytes,
                std::int64_t{lanes} * bytes, count},
          [&](int unit, int i) {
            const std::int64_t of = load + std::int64_t{lanes} * (unit >> bits);
            return ((of << bits) + (unit & ((1 << bits) - 1))) * kUnitItems + i;
          });
      load += std::int64_t{lanes} * count;
    }
#pragma unroll 1
    for (; load < end; load += lanes) {
#pragma unroll 1
      for (std::int64_t unit = load << bits; unit < min((load + 1) << bits, p.reduced.size);
           ++unit) {
        std::int64_t offset[1];
        const std::int64_t col =
            kUnitItems * p.reduced.template offsets<true>(unit, p.reduced_strides, offset);
        const int count = static_cast<int>(min(p.inner - col, std::int64_t{kUnitItems}));
        reduce_unit<typename Op::RowWalk, A, Op>(
            p, values, centres, at[kSource] + offset[0], count,
            [&](int, int i) { return p.reduced.outer(unit) * p.inner + col + i; });
      }
    }
  }
  const Value value = merged_lanes<Op>(p.context, values, of_warps, lanes);
  if (lane == 0 && is_there) store_result<A, Op>(p, value, chunk, at[kResult]);
}

}  // namespace membound::cuda
