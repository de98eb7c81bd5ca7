// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "cuda/array/index.cuh"
#include "cuda/array/reduce_config.hpp"
#include "cuda/array/reduce_ops.cuh"
#include "cuda/array/unit.cuh"
#include "cuda/launch/launch.hpp"
#include "cuda/row/cluster.cuh"
#include "membound/device_buffer.hpp"

namespace membound::cuda {

namespace {

using tuning::kReduceThreads;
enum { kSource, kResult, kCentre, kArrays };

template <DType kDType>
constexpr std::size_t kItemBytes = dtype_size(kDType);
template <DType kDType>
constexpr int kLoadUnits = 1 << tuning::load_unit_bits(kItemBytes<kDType>);

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
                               std::int64_t count, std::int64_t place, std::int64_t place_step,
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

// reduce_vectors with the dtype of the source.
template <class A, class Op, class... Arguments>
__device__ void reduce_dense(const ReduceParams<A>& p, Arguments&&... arguments) {
  const DType dtype = p.arrays[kSource].dtype;
  const auto with = [&]<DType kDType>() { reduce_vectors<A, Op, kDType>(p, arguments...); };
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

// config.lanes threads reduce one chunk of one result; consecutive lanes read consecutive units.
// Shared memory: one value per warp. Memory-bound.
template <class A, class Op>
__global__ void __launch_bounds__(kReduceThreads, sizeof(typename Op::Value) == 4 ? 4 : 2)
    reduce_rows_kernel(const __grid_constant__ ReduceParams<A> p) {
  using Value = typename Op::Value;
  __shared__ Value of_warps[kReduceThreads / kWarpLanes];
  pdl_wait_and_launch();
  const int lanes = p.config.lanes, lane = threadIdx.x & (lanes - 1);
  const std::int64_t group =
      std::int64_t{blockIdx.x} * p.config.width + threadIdx.x / p.config.lanes;
  const std::int64_t result = p.chunk_count.quotient(group);
  const std::int64_t chunk = group - result * p.config.chunks;
  const bool is_there = result < p.kept.size;
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
      const std::int64_t count = unit < whole ? (whole - unit + lanes - 1) >> p.lane_bits : 0;
      const UnitArray& source = p.arrays[kSource];
      reduce_dense<A, Op>(p, values, centres,
                          source.data + at[kSource] * source.item_bytes + unit * source.unit_bytes,
                          std::int64_t{lanes} * source.unit_bytes, count, unit * kUnitItems,
                          std::int64_t{lanes} * kUnitItems, std::int64_t{1});
      unit += count * lanes;
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

// ---- rows of narrow items

template <class A, class Op>
constexpr int kNarrowBlocks = sizeof(typename Op::Value) == 4 ? 4
                              : sizeof(A) == 4                ? 3
                                                              : 2;  // per SM
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
  __device__ void unpack(int unit, A (&x)[kUnitItems]) const {
    RawUnit<A> raw;
#pragma unroll
    for (int word = 0; word < kBytes; ++word) raw.words[word] = words[unit * kBytes + word];
    unpack_unit(raw, kDType, x);
  }
};

// Where a thread's loads are: `count` of them, `step` bytes and `place_step` places from one to the
// next. Elements of a load are `apart` places from each other.
struct NarrowWalk {
  const char* from;
  std::int64_t step, place, place_step;
  int count, apart;
  bool is_wide;
};

// Loads of vectors at equal steps, with dtype and op known at compile time.
template <class A, class Op, DType kDType, int kUnits>
__device__ void walk_vectors(const ReduceParams<A>& p, typename Op::Value (&values)[kUnitItems],
                             const A (&centres)[kUnitItems], NarrowWalk walk) {
  using Load = NarrowLoad<kDType, kUnits>;
  constexpr int kLoads = Load::kBytes == 1 ? 8 / (kUnits > 1 ? 2 : 1) : kNarrowWords / Load::kWords;
  Op::template with_step<true>(p.context, [&](const auto& next) {
    typename Op::Walked walked[kUnitItems];
    Op::begin(values, walked);
    int unit = 0;
    const auto take = [&](const Load& load) {
#pragma unroll
      for (int of = 0; of < kUnits; ++of) {
        A x[kUnitItems];
        load.unpack(of, x);
        Op::next(next, walked, x, centres, unit++);
      }
    };
    Load loads[kLoads];
#pragma unroll 1
    for (; walk.count > 0; walk.count -= kLoads) {
#pragma unroll
      for (int load = 0; load < kLoads; ++load) {
        if (load < walk.count) loads[load].template load<A>(walk.from, walk.is_wide);
        walk.from += walk.step;
      }
#pragma unroll
      for (int load = 0; load < kLoads; ++load) {
        if (load < walk.count) take(loads[load]);
      }
    }
    Op::end(values, walked, [&](int at, int item) {
      return walk.place + at / kUnits * walk.place_step +
             (at % kUnits * kUnitItems + item) * walk.apart;
    });
  });
}

// walk_vectors with the dtype of the source. Wide ones do not come here, but are in what was
// measured.
template <class A, class Op, class... Arguments>
__device__ void walk_dense(const ReduceParams<A>& p, Arguments&&... arguments) {
  const DType dtype = p.arrays[kSource].dtype;
  const auto with = [&]<DType kDType>() {
    walk_vectors<A, Op, kDType, kLoadUnits<kDType>>(p, arguments...);
  };
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

template <class A, class Op>
__device__ void walk_unit(const ReduceParams<A>& p, typename Op::Value (&values)[kUnitItems],
                          const A (&centres)[kUnitItems], std::int64_t at, int count,
                          std::int64_t place, int apart) {
  A x[kUnitItems];
  unpack_unit(load_unit<A>(p.arrays[kSource], at, count), p.arrays[kSource].dtype, x);
  Op::template with_step<false>(p.context, [&](const auto& next) {
    typename Op::Walked walked[kUnitItems];
    Op::begin(values, walked);
    Op::next(next, walked, x, centres, 0);
    Op::end(values, walked, [&](int, int item) { return place + item * apart; }, count);
  });
}

// reduce_rows_kernel for items of 1 or 2 bytes: consecutive lanes read 16 bytes each.
// Shared memory: one value per warp. Memory-bound.
template <class A, class Op>
__global__ void __launch_bounds__(kReduceThreads, kNarrowBlocks<A, Op>)
    reduce_narrow_rows_kernel(const __grid_constant__ ReduceParams<A> p) {
  using Value = typename Op::Value;
  __shared__ Value of_warps[kReduceThreads / kWarpLanes];
  pdl_wait_and_launch();
  const int lanes = p.config.lanes, lane = threadIdx.x & (lanes - 1);
  const std::int64_t group =
      std::int64_t{blockIdx.x} * p.config.width + threadIdx.x / p.config.lanes;
  const std::int64_t result = p.chunk_count.quotient(group);
  const std::int64_t chunk = group - result * p.config.chunks;
  const bool is_there = result < p.kept.size;
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
      const int items = kUnitItems << bits, bytes = source.unit_bytes << bits;
      walk_dense<A, Op>(p, values, centres,
                        NarrowWalk{source.data + at[kSource] * source.item_bytes + load * bytes,
                                   std::int64_t{lanes} * bytes, load * items,
                                   std::int64_t{lanes} * items, count, 1, p.is_wide});
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
        walk_unit<A, Op>(p, values, centres, at[kSource] + offset[0], count,
                         p.reduced.outer(unit) * p.inner + col, 1);
      }
    }
  }
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
      const std::int64_t left = element < end ? (end - element + lanes - 1) >> p.lane_bits : 0;
      const UnitArray& source = p.arrays[kSource];
      const std::int64_t step = p.reduced_strides[0][0] * source.item_bytes;
      reduce_dense<A, Op>(p, values, centres,
                          source.data + at[kSource] * source.item_bytes + element * step,
                          lanes * step, left, element, std::int64_t{lanes}, std::int64_t{0});
      element += left * lanes;
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

std::int64_t units_of(std::int64_t extent) { return (extent + kUnitItems - 1) / kUnitItems; }

// The dimensions with the last one counted in units.
ArrayIndex index_in_units(const ArrayDims& dims) {
  std::int64_t shape[kMaxRank] = {1};
  std::copy(dims.shape, dims.shape + dims.rank, shape);
  const int last = std::max(dims.rank, 1) - 1;
  shape[last] = units_of(shape[last]);
  return array_index(shape, last + 1);
}

bool runs_along_kept(const ArrayReduction& problem) {
  const int kept = problem.kept.rank - 1, reduced = problem.reduced.rank - 1;
  if (kept < 0 || reduced < 0) return reduced < 0;
  const auto along = [](std::int64_t stride) { return stride == 0 ? INT64_MAX : std::abs(stride); };
  return along(problem.source.strides[kept]) < along(problem.reduced_strides[reduced]);
}

template <class A, class Op>
void launch_reduce(const ArrayReduction& problem, StreamView stream,
                   DType counted = DType::kInt64) {
  using Value = typename Op::Value;
  const bool columns = runs_along_kept(problem);
  const int kept_last = problem.kept.rank - 1, reduced_last = problem.reduced.rank - 1;
  const ArrayOperand* const operands[kArrays] = {&problem.source, &problem.result, &problem.centre};
  ReduceParams<A> p;
  p.context = {problem.op, static_cast<A>(problem.divisor), A(0), problem.reduced.size()};
  if constexpr (scalar::kSameType<A, std::uint64_t>)
    p.context.magnitude = ~(A(is_floating(counted)) << (8 * dtype_size(counted) - 1));
  p.centred = problem.op == ReduceOp::kSquaredDeviations;
  const auto fill_kept = [&](std::int64_t scale) {
    for (int k = 0; k < kArrays; ++k) {
      if (k == kCentre && !p.centred) continue;
      const ArrayOperand& operand = *operands[k];
      const std::int64_t inner = kept_last < 0 ? 0 : operand.strides[kept_last];
      p.arrays[k] = unit_array(operand, inner, operand.strides, std::max(kept_last, 0));
      for (int axis = 0; axis < kept_last; ++axis) p.kept_strides[k][axis] = operand.strides[axis];
      p.kept_strides[k][std::max(kept_last, 0)] = inner * scale;
    }
  };
  if (!p.centred) {
    for (std::int64_t& stride : p.kept_strides[kCentre]) stride = 0;
  }
  fill_kept(columns ? kUnitItems : 1);
  for (int axis = 0; axis <= reduced_last; ++axis)
    p.reduced_strides[0][axis] = problem.reduced_strides[axis];
  if (columns) {
    p.kept = index_in_units(problem.kept);
    p.reduced = array_index(problem.reduced);
    p.inner = problem.kept.rank == 0 ? 1 : problem.kept.shape[kept_last];
    UnitArray& source = p.arrays[kSource];
    for (int axis = 0; axis <= reduced_last; ++axis)
      source.vectors &= problem.reduced_strides[axis] % (source.item_bytes == 8 ? 2 : 4) == 0;
    p.config = tuning::reduce_columns_config(p.kept.size, p.reduced.size);
    p.partial_results = kUnitItems * p.kept.size;
  } else {
    p.kept = array_index(problem.kept);
    p.reduced = index_in_units(problem.reduced);
    p.inner = problem.reduced.shape[reduced_last];
    p.reduced_strides[0][reduced_last] *= kUnitItems;
    UnitArray& source = p.arrays[kSource];
    source = unit_array(problem.source, problem.reduced_strides[reduced_last],
                        problem.reduced_strides, reduced_last);
    for (int axis = 0; axis <= kept_last; ++axis)
      source.vectors &= problem.source.strides[axis] % (source.item_bytes == 8 ? 2 : 4) == 0;
    p.unit_bits = tuning::load_unit_bits(source.item_bytes);
    const std::int64_t units = std::int64_t{1} << p.unit_bits, items = units * kUnitItems;
    p.is_wide = is_aligned(source.data, 16);
    for (int axis = 0; axis <= kept_last; ++axis)
      p.is_wide &= problem.source.strides[axis] % items == 0;
    p.config = tuning::reduce_rows_config(p.kept.size, (p.reduced.size + units - 1) / units);
    p.partial_results = p.kept.size;
  }
  p.inner_units = units_of(p.inner);
  // Integers of 16 bits are rare: they have no loop of their own.
  const DType dtype = problem.source.dtype;
  p.dense = p.arrays[kSource].vectors && p.reduced.rank == 1 && problem.op != ReduceOp::kProd &&
            dtype != DType::kInt16 && dtype != DType::kUInt16;
  p.lane_bits = std::countr_zero(static_cast<unsigned>(p.config.lanes));
  p.chunk_count = divider_of(p.config.chunks);
  p.block_columns = divider_of((p.kept.size + p.config.width - 1) / p.config.width);
  const int device = current_device();
  DeviceBuffer partial;
  if (p.config.chunks > 1) {
    const std::int64_t values = p.config.chunks * p.partial_results;
    partial = DeviceBuffer(static_cast<std::size_t>(values) * sizeof(Value), Device::cuda(device),
                           stream);
    p.partial = partial.data();
  }
  const auto blocks = [](std::int64_t results, int lanes) {
    return (results * lanes + kReduceThreads - 1) / kReduceThreads;
  };
  if (columns) {
    launch<reduce_columns_kernel<A, Op>>(
        {blocks(p.kept.size, p.config.lanes) * p.config.chunks, kReduceThreads}, stream, device, p);
  } else {
    const LaunchShape shape{blocks(p.kept.size * p.config.chunks, p.config.lanes), kReduceThreads};
    const auto launch_wide = [&] { launch<reduce_rows_kernel<A, Op>>(shape, stream, device, p); };
    if constexpr (scalar::kSameType<A, double>) {
      launch_wide();
    } else if (p.unit_bits == 0) {
      launch_wide();
    } else {
      launch<reduce_narrow_rows_kernel<A, Op>>(shape, stream, device, p);
    }
  }
  if (p.config.chunks == 1) return;
  p.kept = array_index(problem.kept);
  fill_kept(1);
  if (!columns) p.inner = 0;
  p.config.lanes = tuning::chunk_lanes(p.config.chunks);
  p.config.width = kReduceThreads / p.config.lanes;
  launch<reduce_chunks_kernel<A, Op>>({blocks(p.kept.size, p.config.lanes), kReduceThreads}, stream,
                                      device, p);
}

}  // namespace

void array_reduce(const ArrayReduction& problem, StreamView stream) {
  if (problem.op == ReduceOp::kArgMin || problem.op == ReduceOp::kArgMax) {
    return dispatch_arithmetic<true>(
        problem.source.dtype, [&]<class A>() { launch_reduce<A, Place<A>>(problem, stream); });
  }
  if (problem.op == ReduceOp::kAny || problem.op == ReduceOp::kAll) {
    ArrayReduction counted = problem;
    counted.source.dtype = unsigned_of(dtype_size(problem.source.dtype));
    return launch_reduce<std::uint64_t, Accumulation<std::uint64_t>>(counted, stream,
                                                                     problem.source.dtype);
  }
  dispatch_arithmetic<true>(problem.source.dtype,
                            [&]<class A>() { launch_reduce<A, Accumulation<A>>(problem, stream); });
}

std::int64_t array_count_true(const bool* mask, std::int64_t count, StreamView stream) {
  const Device device = Device::cuda(current_device());
  const DeviceBuffer total(sizeof(std::int64_t), device, stream);
  ArrayReduction problem;
  problem.op = ReduceOp::kSum;
  problem.reduced.rank = 1;
  problem.reduced.shape[0] = count;
  problem.reduced_strides[0] = 1;
  problem.source.data = const_cast<bool*>(mask);
  problem.source.dtype = DType::kBool;
  problem.result.data = total.data();
  problem.result.dtype = DType::kInt64;
  array_reduce(problem, stream);
  std::int64_t result = 0;
  copy_bytes(&result, Device::cpu(), total.data(), device, sizeof(result), stream);
  stream.synchronize();
  return result;
}

}  // namespace membound::cuda
