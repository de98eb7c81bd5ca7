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
  std::int64_t inner_units;
  Divider chunk_count, block_columns;
  int lane_bits;  // lanes are a power of two
  int unit_bits;  // rows of narrow items: a load is 1 << unit_bits units
  tuning::ReduceConfig config;
  void* partial;  // [chunk][result], if there are several chunks
  std::int64_t partial_results;
  bool centred;
  bool dense;    // one reduced dimension, whose elements or units are vectors
  bool is_wide;  // rows of narrow items: loads are aligned to 16 bytes
};

template <class A, class Op>
__device__ void store_result(const ReduceParams<A>& p, const typename Op::Value& value,
                             std::int64_t at) {
  const UnitArray& result = p.arrays[kResult];
  store_number(result.data, result.dtype, result.item_bytes, at, Op::finish(p.context, value));
}

template <class A>
__device__ A centre_at(const ReduceParams<A>& p, std::int64_t at) {
  return p.centred ? reinterpret_cast<const A*>(p.arrays[kCentre].data)[at] : A(0);
}

inline constexpr int kReduceLoads = 4;  // in flight per thread

// Loads of vectors at equal steps, with dtype and op known at compile time.
template <class A, class Op, DType kDType>
__device__ void reduce_vectors(const ReduceParams<A>& p, typename Op::Value (&values)[kUnitItems],
                               const A (&centres)[kUnitItems], const char* from, std::int64_t step,
                               int count, std::int64_t place, std::int64_t place_step,
                               std::int64_t apart) {
  constexpr int kBytes = static_cast<int>(kItemBytes<kDType>);
  constexpr int kRest = kReduceLoads, kLoads = kBytes == 8 ? kRest : 2 * kRest;
  Op::template with_step<true>(p.context, [&](const auto& next) {
    const auto take = [&](const RawUnit<A>& raw) {
      A x[kUnitItems];
      unpack_unit(raw, kDType, x);
      Op::next(next, values, x, centres, place, apart);
      place += place_step;
    };
    RawUnit<A> raw[kLoads];
#pragma unroll 1
    for (; count >= kLoads; count -= kLoads) {
#pragma unroll
      for (int load = 0; load < kLoads; ++load) {
        raw[load] = load_vectors<A>(from, kBytes);
        from += step;
      }
#pragma unroll
      for (int load = 0; load < kLoads; ++load) take(raw[load]);
    }
#pragma unroll 1
    for (; count > 0; count -= kRest) {
#pragma unroll
      for (int load = 0; load < kRest; ++load) {
        if (load < count) raw[load] = load_vectors<A>(from, kBytes);
        from += step;
      }
#pragma unroll
      for (int load = 0; load < kRest; ++load) {
        if (load < count) take(raw[load]);
      }
    }
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
template <class A, class Op, int kFewest, class... Arguments>
__device__ void reduce_dense(const ReduceParams<A>& p, Arguments&&... arguments) {
  with_source_dtype<A>(p.arrays[kSource].dtype, [&]<DType kDType>() {
    if constexpr (kItemBytes<kDType> >= kFewest) reduce_vectors<A, Op, kDType>(p, arguments...);
  });
}

// One unit of any layout; elements from `count` on are left out.
template <class A, class Op>
__device__ void reduce_unit(const ReduceParams<A>& p, typename Op::Value (&values)[kUnitItems],
                            const A (&centres)[kUnitItems], std::int64_t at, int count,
                            std::int64_t place, std::int64_t apart) {
  A x[kUnitItems];
  unpack_unit(load_unit<A>(p.arrays[kSource], at, count), p.arrays[kSource].dtype, x);
  typename Op::Value before[kUnitItems];
#pragma unroll
  for (int i = 0; i < kUnitItems; ++i) before[i] = values[i];
  Op::template with_step<false>(
      p.context, [&](const auto& next) { Op::next(next, values, x, centres, place, apart); });
#pragma unroll
  for (int i = 1; i < kUnitItems; ++i) {
    if (i >= count) values[i] = before[i];
  }
}

// Merges the values of a result's lanes, and stores the result, or its part of this chunk.
template <class A, class Op, class Value = typename Op::Value>
__device__ __forceinline__ void finish_row(const ReduceParams<A>& p, Value (&values)[kUnitItems],
                                           Value (&of_warps)[kReduceThreads / kWarpLanes],
                                           int lanes, int lane, std::int64_t result,
                                           std::int64_t chunk, bool is_there,
                                           const std::int64_t (&at)[kArrays]) {
  Value value = Op::merge(p.context, Op::merge(p.context, values[0], values[1]),
                          Op::merge(p.context, values[2], values[3]));
  for (int offset = min(lanes, kWarpLanes) / 2; offset > 0; offset /= 2)
    value = Op::merge(p.context, value, shuffled(value, offset));
  if (lanes > kWarpLanes) {
    if (threadIdx.x % kWarpLanes == 0) of_warps[threadIdx.x / kWarpLanes] = value;
    __syncthreads();
    if (lane == 0) {
      for (int warp = 1; warp < lanes / kWarpLanes; ++warp)
        value = Op::merge(p.context, value, of_warps[threadIdx.x / kWarpLanes + warp]);
    }
  }
  if (lane != 0 || !is_there) return;
  if (p.config.chunks == 1) return store_result<A, Op>(p, value, at[kResult]);
  static_cast<Value*>(p.partial)[chunk * p.partial_results + result] = value;
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
__global__ void __launch_bounds__(kReduceThreads, sizeof(typename Op::Value) == 4 ? 4 : 2)
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
      reduce_dense<A, Op, 4>(
          p, values, centres,
          source.data + at[kSource] * source.item_bytes + unit * source.unit_bytes,
          std::int64_t{lanes} * source.unit_bytes, count, unit * kUnitItems,
          std::int64_t{lanes} * kUnitItems, std::int64_t{1});
      unit += std::int64_t{lanes} * count;
    }
#pragma unroll 1
    for (; unit < end; unit += lanes) {
      std::int64_t offset[1];
      const std::int64_t col = kUnitItems * p.reduced.offsets(unit, p.reduced_strides, offset);
      const int count = static_cast<int>(min(p.inner - col, std::int64_t{kUnitItems}));
      reduce_unit<A, Op>(p, values, centres, at[kSource] + offset[0], count,
                         p.reduced.outer(unit) * p.inner + col, 1);
    }
  }
  finish_row<A, Op>(p, values, of_warps, lanes, lane, result, chunk, is_there, at);
}

// A block is kReduceThreads / lanes units of results wide and `lanes` reduced elements deep.
// Shared memory: the values of half of the threads. Memory-bound.
template <class A, class Op>
__global__ void __launch_bounds__(kReduceThreads, sizeof(typename Op::Value) == 4 ? 4 : 2)
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
      reduce_dense<A, Op, 1>(p, values, centres,
                             source.data + at[kSource] * source.item_bytes + element * step,
                             lanes * step, left, element, std::int64_t{lanes}, std::int64_t{0});
      element += std::int64_t{lanes} * left;
    }
#pragma unroll 1
    for (; element < end; element += lanes) {
      std::int64_t offset[1];
      p.reduced.offsets(element, p.reduced_strides, offset);
      reduce_unit<A, Op>(p, values, centres, at[kSource] + offset[0], count, element, 0);
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
    if (p.config.chunks == 1) {
      store_result<A, Op>(p, values[i], at[kResult] + i * p.arrays[kResult].stride);
    } else {
      static_cast<Value*>(p.partial)[chunk * p.partial_results + kUnitItems * unit + i] = values[i];
    }
  }
}

// Merges the chunks: one result per column of a block. `kept` counts elements here; `inner` is the
// last extent of the partial results that come in units, else 0. Shared memory: half of the values.
template <class A, class Op>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_chunks_kernel(const __grid_constant__ ReduceParams<A> p) {
  using Value = typename Op::Value;
  __shared__ Value shared[kReduceThreads / 2];
  pdl_wait_and_launch();
  const int width = p.config.width, lane = threadIdx.x / width;
  const std::int64_t result = std::int64_t{blockIdx.x} * width + (threadIdx.x & (width - 1));
  const bool is_there = result < p.kept.size;
  std::int64_t at[kArrays] = {};
  Value value = Op::identity(p.context);
  if (is_there) {
    const std::int64_t last = p.kept.offsets(result, p.kept_strides, at);
    std::int64_t slot = result;
    if (p.inner > 0) {
      slot = p.kept.outer(result) * kUnitItems * p.inner_units + last;
    }
#pragma unroll 4
    for (std::int64_t chunk = lane; chunk < p.config.chunks; chunk += p.config.lanes)
      value = Op::merge(p.context, value,
                        static_cast<const Value*>(p.partial)[chunk * p.partial_results + slot]);
  }
  for (int half = p.config.lanes / 2; half > 0; half /= 2) {
    if (lane >= half && lane < 2 * half) shared[threadIdx.x - half * width] = value;
    __syncthreads();
    if (lane < half) value = Op::merge(p.context, value, shared[threadIdx.x]);
    __syncthreads();
  }
  if (lane == 0 && is_there) store_result<A, Op>(p, value, at[kResult]);
}

}  // namespace membound::cuda
