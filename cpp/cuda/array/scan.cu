// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Cumulative sums and products. Long rows are scanned in chunks: first the total of each chunk,
// then the totals before each chunk, then every element. Chunks depend on the shape alone.
#include "cuda/array/index.cuh"
#include "cuda/array/unit.cuh"
#include "cuda/launch/launch.hpp"
#include "cuda/row/cluster.cuh"
#include "membound/device_buffer.hpp"

namespace membound::cuda {

namespace {

inline constexpr int kScanThreads = 256;
inline constexpr std::int64_t kChunkSteps = 8;  // of a block, four elements per thread each
inline constexpr std::int64_t kBlockChunk = kChunkSteps * kScanThreads * kUnitItems;
inline constexpr std::int64_t kThreadChunk = 128;  // elements that a thread scans by itself
inline constexpr std::int64_t kShortest = 64;      // row that a block scans

enum class Pass { kTotals, kAll };

template <class A>
struct ScanParams {
  bool is_product, include_initial;
  std::int64_t length, chunk, chunks;
  Divider by_chunks;
  ArrayIndex rows;
  std::int64_t strides[2][kMaxRank];  // source, result
  UnitArray source, result;           // along the axis
  A* totals;                          // [row][chunk], or null
  A* before;                          // the same, scanned: null if there is one chunk
};

template <class A>
__device__ A joined(const ScanParams<A>& p, A a, A b) {
  return p.is_product ? a * b : a + b;
}

// One block scans a chunk of a row, kScanThreads units at a time.
template <class A, Pass kPass>
__global__ void __launch_bounds__(kScanThreads)
    scan_along_kernel(const __grid_constant__ ScanParams<A> p) {
  __shared__ A of_warps[kScanThreads / kWarpLanes];
  pdl_wait_and_launch();
  const A identity = p.is_product ? A(1) : A(0);
  const std::int64_t row = p.by_chunks.quotient(blockIdx.x);
  const std::int64_t chunk = blockIdx.x - row * p.chunks;
  const int lane = threadIdx.x % kWarpLanes, warp = threadIdx.x / kWarpLanes;
  std::int64_t at[2];
  p.rows.offsets(row, p.strides, at);
  const int shift = p.include_initial ? 1 : 0;
  A carried = p.before == nullptr ? identity : p.before[row * p.chunks + chunk];
  if (kPass == Pass::kAll && p.include_initial && chunk == 0 && threadIdx.x == 0)
    store_number(p.result.data, p.result.dtype, p.result.item_bytes, at[1], identity);
  const std::int64_t begin = chunk * p.chunk, end = min(begin + p.chunk, p.length);
  for (std::int64_t step = begin; step < end; step += kScanThreads * kUnitItems) {
    const std::int64_t first = step + threadIdx.x * kUnitItems;
    const int count = static_cast<int>(max(min(end - first, std::int64_t{kUnitItems}), 0l));
    A x[kUnitItems];
    if (count > 0)
      unpack_unit(load_unit<A>(p.source, at[0] + first * p.source.stride, count), p.source.dtype,
                  x);
#pragma unroll
    for (int i = 0; i < kUnitItems; ++i) {
      if (i >= count) x[i] = identity;
      if (i > 0) x[i] = joined(p, x[i - 1], x[i]);
    }
    A total = x[kUnitItems - 1];
#pragma unroll
    for (int offset = 1; offset < kWarpLanes; offset *= 2) {
      const A other = __shfl_up_sync(0xffffffffu, total, offset);
      if (lane >= offset) total = joined(p, other, total);
    }
    if (lane == kWarpLanes - 1) of_warps[warp] = total;
    const A left = __shfl_up_sync(0xffffffffu, total, 1);
    __syncthreads();
    A before = carried;
#pragma unroll
    for (int i = 0; i < kScanThreads / kWarpLanes; ++i) {
      if (i < warp) before = joined(p, before, of_warps[i]);
      carried = joined(p, carried, of_warps[i]);
    }
    if (lane > 0) before = joined(p, before, left);
    if (kPass == Pass::kAll && count > 0) {
#pragma unroll
      for (int i = 0; i < kUnitItems; ++i) x[i] = joined(p, before, x[i]);
      store_unit(p.result, at[1] + (first + shift) * p.result.stride, count,
                 convert_unit(x, p.result.dtype));
    }
    __syncthreads();
  }
  if (kPass == Pass::kTotals && threadIdx.x == 0) p.totals[row * p.chunks + chunk] = carried;
}

// One thread scans a chunk of a row; neighbouring threads have neighbouring rows.
template <class A, Pass kPass>
__global__ void __launch_bounds__(kScanThreads)
    scan_across_kernel(const __grid_constant__ ScanParams<A> p) {
  pdl_wait_and_launch();
  const std::int64_t linear = std::int64_t{blockIdx.x} * kScanThreads + threadIdx.x;
  if (linear >= p.rows.size * p.chunks) return;
  const std::int64_t chunk = linear / p.rows.size, row = linear - chunk * p.rows.size;
  const A identity = p.is_product ? A(1) : A(0);
  std::int64_t at[2];
  p.rows.offsets(row, p.strides, at);
  const int shift = p.include_initial ? 1 : 0;
  A total = p.before == nullptr ? identity : p.before[row * p.chunks + chunk];
  if (kPass == Pass::kAll && p.include_initial && chunk == 0)
    store_number(p.result.data, p.result.dtype, p.result.item_bytes, at[1], identity);
  const std::int64_t begin = chunk * p.chunk, end = min(begin + p.chunk, p.length);
#pragma unroll 4
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t from = at[0] + i * p.source.stride;
    total = joined(p, total,
                   load_number<A>(p.source.data + from * p.source.item_bytes, p.source.dtype,
                                  p.source.item_bytes));
    if (kPass == Pass::kAll)
      store_number(p.result.data, p.result.dtype, p.result.item_bytes,
                   at[1] + (i + shift) * p.result.stride, total);
  }
  if (kPass == Pass::kTotals) p.totals[row * p.chunks + chunk] = total;
}

template <class A, Pass kPass>
void launch_scan(const ScanParams<A>& p, bool along, StreamView stream) {
  const std::int64_t chunks = p.rows.size * p.chunks;
  if (along) {
    launch<scan_along_kernel<A, kPass>>({chunks, kScanThreads}, stream, current_device(), p);
  } else {
    launch<scan_across_kernel<A, kPass>>({(chunks + kScanThreads - 1) / kScanThreads, kScanThreads},
                                         stream, current_device(), p);
  }
}

// The totals before each chunk: a scan of rows of `chunks` totals.
template <class A>
void scan_totals(const ScanParams<A>& of, StreamView stream) {
  ScanParams<A> p = of;
  const std::int64_t rows[1] = {of.rows.size};
  p.rows = array_index(rows, 1);
  p.length = p.chunk = of.chunks - 1;
  p.chunks = 1;
  p.by_chunks = divider_of(1);
  p.include_initial = true;
  p.before = nullptr;
  ArrayOperand totals;
  totals.dtype = scalar::kSameType<A, float>    ? DType::kFloat32
                 : scalar::kSameType<A, double> ? DType::kFloat64
                 : scalar::Number<A>::kSigned   ? DType::kInt64
                                                : DType::kUInt64;
  totals.data = of.totals;
  p.source = unit_array(totals, 1, &of.chunks, 1);
  totals.data = of.before;
  p.result = unit_array(totals, 1, &of.chunks, 1);
  p.result.vectors = false;  // one element further
  p.strides[0][0] = p.strides[1][0] = of.chunks;
  launch_scan<A, Pass::kAll>(p, true, stream);
}

template <class A>
void scan(const ArrayScan& problem, StreamView stream) {
  const int last = problem.rows.rank - 1;
  ScanParams<A> p;
  p.is_product = problem.op == ScanOp::kProd;
  p.include_initial = problem.include_initial;
  p.length = problem.length;
  p.rows = array_index(problem.rows);
  p.source = unit_array(problem.source, problem.source_stride, problem.source.strides, last + 1);
  p.result = unit_array(problem.result, problem.result_stride, problem.result.strides, last + 1);
  p.result.vectors &= !p.include_initial;
  p.strides[0][0] = p.strides[1][0] = 0;
  for (int axis = 0; axis <= last; ++axis) {
    p.strides[0][axis] = problem.source.strides[axis];
    p.strides[1][axis] = problem.result.strides[axis];
  }
  // A block for a short row would be idle.
  const bool along =
      last < 0 || (problem.length >= kShortest &&
                   std::abs(problem.source_stride) <= std::abs(problem.source.strides[last]));
  p.chunk = along ? kBlockChunk : kThreadChunk;
  if (!along && p.rows.size >= 1 << 17) p.chunk = p.length;
  p.chunks = std::max<std::int64_t>(1, p.chunk == 0 ? 1 : (p.length + p.chunk - 1) / p.chunk);
  p.by_chunks = divider_of(p.chunks);
  p.totals = p.before = nullptr;
  DeviceBuffer totals;
  if (p.chunks > 1) {
    const std::int64_t values = p.rows.size * p.chunks;
    totals = DeviceBuffer(2 * static_cast<std::size_t>(values) * sizeof(A),
                          Device::cuda(current_device()), stream);
    p.totals = totals.as<A>();
    launch_scan<A, Pass::kTotals>(p, along, stream);
    p.before = p.totals + values;
    scan_totals(p, stream);
  }
  launch_scan<A, Pass::kAll>(p, along, stream);
}

}  // namespace

void array_scan(const ArrayScan& problem, StreamView stream) {
  dispatch_arithmetic<true>(problem.source.dtype, [&]<class A>() { scan<A>(problem, stream); });
}

}  // namespace membound::cuda
