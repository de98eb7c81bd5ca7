// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/array/index.cuh"
#include "cuda/array/reduce_config.hpp"
#include "cuda/array/reduce_ops.cuh"
#include "cuda/array/unit.cuh"
#include "cuda/launch/launch.hpp"
#include "cuda/row/cluster.cuh"

namespace membound::cuda {

using tuning::kReduceThreads;
enum { kSource, kResult, kCentre, kArrays };

template <DType kDType>
constexpr std::size_t kItemBytes = dtype_size(kDType);

template <class A>
struct ReduceParams {
  ReduceContext<A> context;
  UnitArray arrays[kArrays];
  ArrayIndex kept, reduced;
  std::int64_t kept_strides[kArrays][kMaxRank], reduced_strides[1][kMaxRank];
  std::int64_t inner;  // extent in elements of the last dimension whose index counts units
  Divider chunk_count, block_columns;
  int lane_bits;  // lanes are a power of two
  int unit_bits;  // rows of narrow items: a load is 1 << unit_bits units
  tuning::ReduceConfig config;
  void* partial;  // [chunk][element of the result], if there are several chunks
  std::int64_t results;
  bool centred;
  bool dense;    // one reduced dimension, whose elements or units are vectors
  bool is_wide;  // rows of narrow items: loads are aligned to 16 bytes
};

// Stores a result, or the part of it that a chunk makes.
template <class A, class Op>
__device__ void store_result(const ReduceParams<A>& p, const typename Op::Value& value,
                             std::int64_t chunk, std::int64_t at) {
  if (p.config.chunks > 1) {
    static_cast<typename Op::Value*>(p.partial)[chunk * p.results + at] = value;
    return;
  }
  const UnitArray& result = p.arrays[kResult];
  store_number(result.data, result.dtype, result.item_bytes, at, Op::finish(p.context, value));
}

template <class A>
__device__ A centre_at(const ReduceParams<A>& p, std::int64_t at) {
  return p.centred ? reinterpret_cast<const A*>(p.arrays[kCentre].data)[at] : A(0);
}

inline constexpr int kReduceLoads = 4;  // in flight per thread
template <class A, class Op>
constexpr int kReduceBlocks = sizeof(typename Op::Value) == 4 ? 4
                              : sizeof(A) == 4                ? 3
                                                              : 2;  // per SM

// Where a thread's loads are: `count` of them, `step` bytes from one to the next.
struct Loads {
  const char* from;
  std::int64_t step;
  int count;
};

// Loads of vectors, with dtype and op known at compile time. place(load, i): of element i of a
// load.
template <class Walk, class A, class Op, DType kDType, class PlaceOf>
__device__ void reduce_vectors(const ReduceParams<A>& p, typename Op::Value (&values)[kUnitItems],
                               const A (&centres)[kUnitItems], Loads loads, const PlaceOf& place) {
  constexpr int kBytes = static_cast<int>(kItemBytes<kDType>);
  constexpr int kRest = kReduceLoads, kLoads = kBytes == 8 ? kRest : 2 * kRest;
  if (loads.count == 0) return;
  Op::template with_step<true>(p.context, [&](const auto& step, auto reverses) {
    Walk walk = Op::template begin<Walk>(p.context, values);
    int unit = 0;
    const auto take = [&](RawUnit<A> raw) {
      A x[kUnitItems];
      if constexpr (decltype(reverses)::value) reverse_order(p.context, raw);
      unpack_unit(raw, kDType, x);
      Op::next(step, walk, x, centres, unit++);
    };
    RawUnit<A> raw[kLoads];
#pragma unroll 1
    for (; loads.count >= kLoads; loads.count -= kLoads) {
#pragma unroll
      for (int load = 0; load < kLoads; ++load) {
        raw[load] = load_vectors<A>(loads.from, kBytes);
        loads.from += loads.step;
      }
#pragma unroll
      for (int load = 0; load < kLoads; ++load) take(raw[load]);
    }
#pragma unroll 1
    for (; loads.count > 0; loads.count -= kRest) {
#pragma unroll
      for (int load = 0; load < kRest; ++load) {
        if (load < loads.count) raw[load] = load_vectors<A>(loads.from, kBytes);
        loads.from += loads.step;
      }
#pragma unroll
      for (int load = 0; load < kRest; ++load) {
        if (load < loads.count) take(raw[load]);
      }
    }
    Op::end(p.context, values, walk, place, kUnitItems);
  });
}

// Calls `with` for the dtype of a source that A is the arithmetic of.
template <class A, class With>
__device__ void with_source_dtype(DType dtype, const With& with) {
  if constexpr (scalar::kSameType<A, float>) {
    if (dtype == DType::kFloat32) return with.template operator()<DType::kFloat32>();
    if (dtype == DType::kFloat16) return with.template operator()<DType::kFloat16>();
    with.template operator()<DType::kBFloat16>();
  } else if constexpr (scalar::kSameType<A, double>) {
    with.template operator()<DType::kFloat64>();
  } else if constexpr (scalar::Number<A>::kSigned) {
    if (dtype == DType::kInt64) return with.template operator()<DType::kInt64>();
    if (dtype == DType::kInt32) return with.template operator()<DType::kInt32>();
    with.template operator()<DType::kInt8>();
  } else {
    if (dtype == DType::kUInt64) return with.template operator()<DType::kUInt64>();
    if (dtype == DType::kUInt32) return with.template operator()<DType::kUInt32>();
    with.template operator()<DType::kUInt8>();
  }
}

// reduce_vectors with the dtype of the source, whose items have at least kFewest bytes.
template <class Walk, class A, class Op, int kFewest, class... Arguments>
__device__ void reduce_dense(const ReduceParams<A>& p, Arguments&&... arguments) {
  with_source_dtype<A>(p.arrays[kSource].dtype, [&]<DType kDType>() {
    if constexpr (kItemBytes<kDType> >= kFewest)
      reduce_vectors<Walk, A, Op, kDType>(p, arguments...);
  });
}

// One unit of any layout; elements from `count` on are left out. place(0, i): of element i.
template <class Walk, class A, class Op, class PlaceOf>
__device__ void reduce_unit(const ReduceParams<A>& p, typename Op::Value (&values)[kUnitItems],
                            const A (&centres)[kUnitItems], std::int64_t at, int count,
                            const PlaceOf& place) {
  RawUnit<A> raw = load_unit<A>(p.arrays[kSource], at, count);
  Op::template with_step<false>(p.context, [&](const auto& step, auto reverses) {
    A x[kUnitItems];
    if constexpr (decltype(reverses)::value) reverse_order(p.context, raw);
    unpack_unit(raw, p.arrays[kSource].dtype, x);
    Walk walk = Op::template begin<Walk>(p.context, values);
    Op::next(step, walk, x, centres, 0);
    Op::end(p.context, values, walk, place, count);
  });
}

// Merges the values of a result's lanes, which are adjacent threads, for the first of them.
template <class Op, class Value = typename Op::Value>
__device__ __forceinline__ Value merged_lanes(const typename Op::Context& context,
                                              const Value (&values)[kUnitItems],
                                              Value (&of_warps)[kReduceThreads / kWarpLanes],
                                              int lanes) {
  Value value = Op::merge(context, Op::merge(context, values[0], values[1]),
                          Op::merge(context, values[2], values[3]));
  for (int offset = min(lanes, kWarpLanes) / 2; offset > 0; offset /= 2)
    value = Op::merge(context, value, shuffled(value, offset));
  if (lanes > kWarpLanes) {
    const int warp = threadIdx.x / kWarpLanes;
    if (threadIdx.x % kWarpLanes == 0) of_warps[warp] = value;
    __syncthreads();
    if ((threadIdx.x & (lanes - 1)) == 0) {
      for (int other = 1; other < lanes / kWarpLanes; ++other)
        value = Op::merge(context, value, of_warps[warp + other]);
    }
  }
  return value;
}

// Which chunk of which result the thread reduces with the other lanes.
struct RowPart {
  int lanes, lane;
  std::int64_t result, chunk;
  bool is_there;
};
template <class A>
__device__ __forceinline__ RowPart row_part(const ReduceParams<A>& p) {
  const int lanes = p.config.lanes;
  const std::int64_t group = std::int64_t{blockIdx.x} * p.config.width + threadIdx.x / lanes;
  const std::int64_t result = p.chunk_count.quotient(group);
  return {lanes, static_cast<int>(threadIdx.x) & (lanes - 1), result,
          group - result * p.config.chunks, result < p.kept.size};
}

// config.lanes threads reduce one chunk of one result; consecutive lanes read consecutive units.
// Shared memory: one value per warp. Memory-bound.
template <class A, class Op>
__global__ void __launch_bounds__(kReduceThreads, kReduceBlocks<A, Op>)
    reduce_rows_kernel(const __grid_constant__ ReduceParams<A> p) {
  using Value = typename Op::Value;
  __shared__ Value of_warps[kReduceThreads / kWarpLanes];
  pdl_wait_and_launch();
  const auto [lanes, lane, result, chunk, is_there] = row_part(p);
  std::int64_t at[kArrays] = {};
  Value values[kUnitItems];
#pragma unroll
  for (int i = 0; i < kUnitItems; ++i) values[i] = Op::identity(p.context);
  if (is_there) {
    p.kept.offsets(result, p.kept_strides, at);
    const A centre = centre_at(p, at[kCentre]);
    const A centres[kUnitItems] = {centre, centre, centre, centre};
    std::int64_t unit = chunk * p.config.chunk + lane;
    const std::int64_t end = min(chunk * p.config.chunk + p.config.chunk, p.reduced.size);
    if (p.dense) {
      const std::int64_t whole = min(end, p.inner / kUnitItems);
      const int count =
          unit < whole ? static_cast<int>((whole - unit + lanes - 1) >> p.lane_bits) : 0;
      const UnitArray& source = p.arrays[kSource];
      reduce_dense<typename Op::RowWalk, A, Op, 4>(
          p, values, centres,
          Loads{source.data + at[kSource] * source.item_bytes + unit * source.unit_bytes,
                std::int64_t{lanes} * source.unit_bytes, count},
          [&](int load, int i) { return (unit + std::int64_t{lanes} * load) * kUnitItems + i; });
      unit += std::int64_t{lanes} * count;
    }
#pragma unroll 1
    for (; unit < end; unit += lanes) {
      std::int64_t offset[1];
      const std::int64_t col = kUnitItems * p.reduced.offsets(unit, p.reduced_strides, offset);
      const int count = static_cast<int>(min(p.inner - col, std::int64_t{kUnitItems}));
      reduce_unit<typename Op::RowWalk, A, Op>(
          p, values, centres, at[kSource] + offset[0], count,
          [&](int, int i) { return p.reduced.outer(unit) * p.inner + col + i; });
    }
  }
  const Value value = merged_lanes<Op>(p.context, values, of_warps, lanes);
  if (lane == 0 && is_there) store_result<A, Op>(p, value, chunk, at[kResult]);
}

// A block is kReduceThreads / lanes units of results wide and `lanes` reduced elements deep.
// Shared memory: the values of half of the threads. Memory-bound.
template <class A, class Op>
__global__ void __launch_bounds__(kReduceThreads, kReduceBlocks<A, Op>)
    reduce_columns_kernel(const __grid_constant__ ReduceParams<A> p) {
  using Value = typename Op::Value;
  __shared__ Value shared[kReduceThreads / 2][kUnitItems];
  pdl_wait_and_launch();
  const int width = p.config.width, lane = threadIdx.x / width, column = threadIdx.x & (width - 1);
  const std::int64_t chunk = p.block_columns.quotient(blockIdx.x);
  const std::int64_t unit = (blockIdx.x - chunk * p.block_columns.extent) * width + column;
  const bool is_there = unit < p.kept.size;
  std::int64_t at[kArrays] = {};
  Value values[kUnitItems];
  A centres[kUnitItems] = {};
#pragma unroll
  for (int i = 0; i < kUnitItems; ++i) values[i] = Op::identity(p.context);
  int count = 0;
  if (is_there) {
    const std::int64_t col = kUnitItems * p.kept.offsets(unit, p.kept_strides, at);
    count = static_cast<int>(min(p.inner - col, std::int64_t{kUnitItems}));
#pragma unroll
    for (int i = 0; i < kUnitItems; ++i) {
      if (i < count) centres[i] = centre_at(p, at[kCentre] + i * p.arrays[kCentre].stride);
    }
    const int lanes = p.config.lanes;
    std::int64_t element = chunk * p.config.chunk + lane;
    const std::int64_t end = min(chunk * p.config.chunk + p.config.chunk, p.reduced.size);
    if (p.dense && count == kUnitItems) {
      const int left =
          element < end ? static_cast<int>((end - element + lanes - 1) >> p.lane_bits) : 0;
      const UnitArray& source = p.arrays[kSource];
      const std::int64_t step = p.reduced_strides[0][0] * source.item_bytes;
      reduce_dense<typename Op::ColumnWalk, A, Op, 1>(
          p, values, centres,
          Loads{source.data + at[kSource] * source.item_bytes + element * step, lanes * step, left},
          [&](int load, int) { return element + std::int64_t{lanes} * load; });
      element += std::int64_t{lanes} * left;
    }
#pragma unroll 1
    for (; element < end; element += lanes) {
      std::int64_t offset[1];
      p.reduced.offsets(element, p.reduced_strides, offset);
      reduce_unit<typename Op::ColumnWalk, A, Op>(p, values, centres, at[kSource] + offset[0],
                                                  count, [&](int, int) { return element; });
    }
  }
  for (int half = p.config.lanes / 2; half > 0; half /= 2) {
    if (lane >= half && lane < 2 * half) {
#pragma unroll
      for (int i = 0; i < kUnitItems; ++i) shared[threadIdx.x - half * width][i] = values[i];
    }
    __syncthreads();
    if (lane < half) {
#pragma unroll
      for (int i = 0; i < kUnitItems; ++i)
        values[i] = Op::merge(p.context, values[i], shared[threadIdx.x][i]);
    }
    __syncthreads();
  }
  if (lane != 0 || !is_there) return;
#pragma unroll
  for (int i = 0; i < kUnitItems; ++i) {
    if (i >= count) break;
    store_result<A, Op>(p, values[i], chunk, at[kResult] + i * p.arrays[kResult].stride);
  }
}

template <class A>
struct ChunkParams {
  ReduceContext<A> context;
  char* result;
  DType dtype;
  std::uint8_t item_bytes;
  int lanes, width;  // threads for a result, results of a block
  int chunks;
  std::int64_t results;
  const void* partial;
};

// Merges the chunks: one result per column of a block. Shared memory: half of the values.
template <class A, class Op>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_chunks_kernel(const __grid_constant__ ChunkParams<A> p) {
  using Value = typename Op::Value;
  __shared__ Value shared[kReduceThreads / 2];
  pdl_wait_and_launch();
  const int lane = threadIdx.x / p.width;
  const std::int64_t result = std::int64_t{blockIdx.x} * p.width + (threadIdx.x & (p.width - 1));
  const bool is_there = result < p.results;
  Value value = Op::identity(p.context);
  if (is_there) {
#pragma unroll 4
    for (int chunk = lane; chunk < p.chunks; chunk += p.lanes)
      value = Op::merge(p.context, value,
                        static_cast<const Value*>(p.partial)[chunk * p.results + result]);
  }
  for (int half = p.lanes / 2; half > 0; half /= 2) {
    if (lane >= half && lane < 2 * half) shared[threadIdx.x - half * p.width] = value;
    __syncthreads();
    if (lane < half) value = Op::merge(p.context, value, shared[threadIdx.x]);
    __syncthreads();
  }
  if (lane == 0 && is_there)
    store_number(p.result, p.dtype, p.item_bytes, result, Op::finish(p.context, value));
}

}  // namespace membound::cuda
