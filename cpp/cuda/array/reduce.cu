// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "cuda/array/reduce_narrow_rows.cuh"
#include "membound/device_buffer.hpp"

namespace membound::cuda {
namespace {

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

// counted: the dtype whose elements kAny and kAll compare with 0.
template <class A>
ReduceContext<A> context_of(const ArrayReduction& problem, DType counted) {
  ReduceContext<A> context = {problem.op};
  context.divisor = static_cast<A>(problem.divisor);
  context.size = problem.reduced.size();
  if constexpr (scalar::kSameType<A, std::uint64_t>)
    context.magnitude = ~(A(is_floating(counted)) << (8 * dtype_size(counted) - 1));
  context.is_reversed = problem.op == ReduceOp::kMin || problem.op == ReduceOp::kArgMin;
  if (!context.is_reversed) return context;
  context.op = problem.op == ReduceOp::kMin ? ReduceOp::kMax : ReduceOp::kArgMax;
  const DType dtype = problem.source.dtype;
  const std::uint32_t sign = dtype_size(dtype) == 2 ? 0x80008000u : 0x80000000u;
  context.reverse[1] = is_floating(dtype) ? sign : ~0u;
  context.reverse[0] = dtype == DType::kFloat64 ? 0 : context.reverse[1];
  return context;
}

template <class A>
ReduceParams<A> reduce_params(const ArrayReduction& problem, bool columns, DType counted) {
  const int kept_last = problem.kept.rank - 1, reduced_last = problem.reduced.rank - 1;
  const ArrayOperand* const operands[kArrays] = {&problem.source, &problem.result, &problem.centre};
  ReduceParams<A> p;
  p.context = context_of<A>(problem, counted);
  p.centred = problem.op == ReduceOp::kSquaredDeviations;
  for (int k = 0; k < kArrays; ++k) {
    if (k == kCentre && !p.centred) continue;
    const ArrayOperand& operand = *operands[k];
    const std::int64_t inner = kept_last < 0 ? 0 : operand.strides[kept_last];
    p.arrays[k] = unit_array(operand, inner, operand.strides, std::max(kept_last, 0));
    for (int axis = 0; axis < kept_last; ++axis) p.kept_strides[k][axis] = operand.strides[axis];
    p.kept_strides[k][std::max(kept_last, 0)] = inner * (columns ? kUnitItems : 1);
  }
  if (!p.centred) {
    for (std::int64_t& stride : p.kept_strides[kCentre]) stride = 0;
  }
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
  }
  // Integers of 16 bits are rare: they have no loop of their own.
  const DType dtype = problem.source.dtype;
  p.dense = p.arrays[kSource].vectors && p.reduced.rank == 1 && problem.op != ReduceOp::kProd &&
            dtype != DType::kInt16 && dtype != DType::kUInt16 && p.config.chunk <= INT32_MAX;
  p.lane_bits = std::countr_zero(static_cast<unsigned>(p.config.lanes));
  p.chunk_count = divider_of(p.config.chunks);
  p.block_columns = divider_of((p.kept.size + p.config.width - 1) / p.config.width);
  return p;
}

std::int64_t blocks_of(std::int64_t results, int lanes) {
  return (results * lanes + kReduceThreads - 1) / kReduceThreads;
}

template <class A, class Op>
void launch_reduce(const ArrayReduction& problem, StreamView stream,
                   DType counted = DType::kInt64) {
  using Value = typename Op::Value;
  const bool columns = runs_along_kept(problem);
  ReduceParams<A> p = reduce_params<A>(problem, columns, counted);
  const std::int64_t results = problem.kept.size(), chunks = p.config.chunks;
  const int device = current_device();
  // The result is contiguous, but its first element may be the last in memory.
  std::int64_t before = 0;
  for (int axis = 0; axis < problem.kept.rank; ++axis)
    before +=
        std::max<std::int64_t>(0, -problem.result.strides[axis]) * (problem.kept.shape[axis] - 1);
  DeviceBuffer partial;
  if (chunks > 1) {
    partial = DeviceBuffer(static_cast<std::size_t>(chunks * results) * sizeof(Value),
                           Device::cuda(device), stream);
    p.partial = partial.as<Value>() + before;
    p.results = results;
  }
  if (columns) {
    launch<reduce_columns_kernel<A, Op>>(
        {blocks_of(p.kept.size, p.config.lanes) * chunks, kReduceThreads}, stream, device, p);
  } else {
    const LaunchShape shape{blocks_of(results * chunks, p.config.lanes), kReduceThreads};
    const auto launch_wide = [&] { launch<reduce_rows_kernel<A, Op>>(shape, stream, device, p); };
    if constexpr (scalar::kSameType<A, double>) {
      launch_wide();
    } else if (p.unit_bits == 0) {
      launch_wide();
    } else {
      launch<reduce_narrow_rows_kernel<A, Op>>(shape, stream, device, p);
    }
  }
  if (chunks == 1) return;
  const UnitArray& result = p.arrays[kResult];
  ChunkParams<A> merged = {p.context, result.data - before * result.item_bytes, result.dtype};
  merged.item_bytes = result.item_bytes;
  merged.lanes = tuning::chunk_lanes(chunks);
  merged.width = kReduceThreads / merged.lanes;
  merged.chunks = static_cast<int>(chunks);
  merged.results = results;
  merged.partial = partial.data();
  launch<reduce_chunks_kernel<A, Op>>({blocks_of(results, merged.lanes), kReduceThreads}, stream,
                                      device, merged);
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
