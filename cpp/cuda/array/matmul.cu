// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Matrix products: cuBLAS where it is on the machine, else tensor cores for 16-bit floats and tiles
// in shared memory for the rest.
#include "cuda/array/cublas.hpp"
#include "cuda/array/matmul_tensor.cuh"
#include "cuda/array/unit.cuh"
#include "cuda/launch/device.hpp"
#include "membound/device_buffer.hpp"

namespace membound::cuda {

namespace {

inline constexpr int kMatmulTile = 64;   // rows and columns of a block
inline constexpr int kMatmulInner = 16;  // of a step
inline constexpr int kMatmulItems = 4;   // rows and columns of a thread
inline constexpr int kMatmulThreads = 256;

enum { kA, kB, kResult, kMatrices };

struct MatmulParams {
  const char* a;
  const char* b;
  char* result;
  std::int64_t strides[kMatrices][2];
  std::int64_t rows, columns, inner;
  Divider row_tiles, column_tiles;
  ArrayIndex batch;
  std::int64_t batch_strides[kMatrices][kMaxRank];
  DType dtype;
  int item_bytes;
};

// A tile of one matrix: kMatmulTile along the outer dimension, kMatmulInner along the inner one.
// Neighbouring threads read along the dimension that is denser.
template <class A>
__device__ void load_tile(const MatmulParams& p, A (&tile)[kMatmulInner][kMatmulTile + 4],
                          const char* from, std::int64_t outer_stride, std::int64_t inner_stride,
                          std::int64_t outer, std::int64_t outer_end, std::int64_t inner) {
  const int bytes = sizeof(A) == 8 ? 8 : p.item_bytes;  // known for the widest
  const bool inner_first = std::abs(inner_stride) < std::abs(outer_stride);
#pragma unroll
  for (int i = 0; i < kMatmulTile * kMatmulInner / kMatmulThreads; ++i) {
    const int index = i * kMatmulThreads + static_cast<int>(threadIdx.x);
    const int o = inner_first ? index / kMatmulInner : index % kMatmulTile;
    const int k = inner_first ? index % kMatmulInner : index / kMatmulTile;
    const bool is_there = outer + o < outer_end && inner + k < p.inner;
    tile[k][o] = is_there
                     ? load_number<A>(
                           from + ((outer + o) * outer_stride + (inner + k) * inner_stride) * bytes,
                           p.dtype, bytes)
                     : A(0);
  }
}

// Each thread has 4 x 4 sums of a tile of 64 x 64. Shared memory: 16 rows or columns of both
// matrices. Limited by arithmetic.
template <class A>
__global__ void __launch_bounds__(kMatmulThreads)
    matmul_kernel(const __grid_constant__ MatmulParams p) {
  __shared__ A a[kMatmulInner][kMatmulTile + 4], b[kMatmulInner][kMatmulTile + 4];
  pdl_wait_and_launch();
  const std::int64_t block_row = p.column_tiles.quotient(blockIdx.x);
  const std::int64_t batch = p.row_tiles.quotient(block_row);
  const std::int64_t row = (block_row - batch * p.row_tiles.extent) * kMatmulTile;
  const std::int64_t column = (blockIdx.x - block_row * p.column_tiles.extent) * kMatmulTile;
  std::int64_t at[kMatrices];
  p.batch.offsets(batch, p.batch_strides, at);
  const char* from_a = p.a + at[kA] * p.item_bytes;
  const char* from_b = p.b + at[kB] * p.item_bytes;
  const int across = threadIdx.x % 16 * kMatmulItems, down = threadIdx.x / 16 * kMatmulItems;
  A sums[kMatmulItems][kMatmulItems] = {};
#pragma unroll 1
  for (std::int64_t inner = 0; inner < p.inner; inner += kMatmulInner) {
    load_tile(p, a, from_a, p.strides[kA][0], p.strides[kA][1], row, p.rows, inner);
    load_tile(p, b, from_b, p.strides[kB][1], p.strides[kB][0], column, p.columns, inner);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kMatmulInner; ++k) {
#pragma unroll
      for (int i = 0; i < kMatmulItems; ++i) {
#pragma unroll
        for (int j = 0; j < kMatmulItems; ++j) sums[i][j] += a[k][down + i] * b[k][across + j];
      }
    }
    __syncthreads();
  }
  char* to = p.result + at[kResult] * p.item_bytes;
#pragma unroll
  for (int i = 0; i < kMatmulItems; ++i) {
#pragma unroll
    for (int j = 0; j < kMatmulItems; ++j) {
      const std::int64_t r = row + down + i, c = column + across + j;
      if (r < p.rows && c < p.columns) {
        store_bits(to + (r * p.strides[kResult][0] + c * p.strides[kResult][1]) * p.item_bytes,
                   p.item_bytes, bits_of(sums[i][j], p.dtype));
      }
    }
  }
}

std::int64_t tiles_of(std::int64_t extent, int tile) { return (extent + tile - 1) / tile; }

template <class A>
void tiled_matmul(const ArrayMatmul& problem, DType dtype, StreamView stream) {
  MatmulParams p;
  const ArrayOperand* const operands[kMatrices] = {&problem.a, &problem.b, &problem.result};
  const std::int64_t* const strides[kMatrices] = {problem.a_strides, problem.b_strides,
                                                  problem.result_strides};
  p.a = static_cast<const char*>(problem.a.data);
  p.b = static_cast<const char*>(problem.b.data);
  p.result = static_cast<char*>(problem.result.data);
  p.rows = problem.rows;
  p.columns = problem.columns;
  p.inner = problem.inner;
  p.dtype = dtype;
  p.item_bytes = static_cast<int>(dtype_size(dtype));
  p.batch = array_index(problem.batch);
  for (int k = 0; k < kMatrices; ++k) {
    std::copy(strides[k], strides[k] + 2, p.strides[k]);
    p.batch_strides[k][0] = 0;
    std::copy(operands[k]->strides, operands[k]->strides + problem.batch.rank, p.batch_strides[k]);
  }
  p.row_tiles = divider_of(tiles_of(p.rows, kMatmulTile));
  p.column_tiles = divider_of(tiles_of(p.columns, kMatmulTile));
  launch<matmul_kernel<A>>(
      {p.row_tiles.extent * p.column_tiles.extent * p.batch.size, kMatmulThreads}, stream,
      current_device(), p);
}

// A matrix with elements adjacent along one dimension, rows x cols over the batch.
bool has_adjacent(const ArrayOperand& operand, const std::int64_t (&strides)[2], int batch_rank,
                  bool vectors) {
  const bool inner = strides[1] == 1, outer = strides[0] == 1;
  if (!inner && !outer) return false;
  if (!vectors) return strides[inner ? 0 : 1] > 0;
  bool fits = is_aligned(operand.data, 16) && strides[inner ? 0 : 1] % 8 == 0;
  for (int axis = 0; axis < batch_rank; ++axis) fits &= operand.strides[axis] % 8 == 0;
  return fits;
}

// The matrix itself, or a copy of it whose rows are adjacent and start at 16-byte boundaries.
struct Adjacent {
  ArrayOperand operand;
  std::int64_t strides[2];
  DeviceBuffer memory;
};
Adjacent adjacent(const ArrayOperand& operand, const std::int64_t (&strides)[2], std::int64_t rows,
                  std::int64_t cols, const ArrayDims& batch, bool vectors, StreamView stream) {
  Adjacent result;
  result.operand = operand;
  std::copy(strides, strides + 2, result.strides);
  if (has_adjacent(operand, strides, batch.rank, vectors)) return result;
  // Broadcast dimensions of the batch are copied once.
  const std::int64_t leading = tiles_of(cols, 8) * 8;
  ArrayCopy copy;
  copy.dims.rank = 0;
  std::int64_t elements = rows * leading;
  for (int axis = 0; axis < batch.rank; ++axis) {
    const bool repeats = operand.strides[axis] == 0;
    result.operand.strides[axis] = 0;
    if (repeats) continue;
    copy.dims.shape[copy.dims.rank] = batch.shape[axis];
    copy.source.strides[copy.dims.rank++] = operand.strides[axis];
  }
  int packed = copy.dims.rank;
  for (int axis = batch.rank - 1; axis >= 0; --axis) {
    if (operand.strides[axis] == 0) continue;
    result.operand.strides[axis] = copy.result.strides[--packed] = elements;
    elements *= batch.shape[axis];
  }
  result.memory = DeviceBuffer(static_cast<std::size_t>(elements) * dtype_size(operand.dtype),
                               Device::cuda(current_device()), stream);
  copy.source.data = operand.data;
  copy.result.data = result.operand.data = result.memory.data();
  copy.source.dtype = copy.result.dtype = operand.dtype;
  copy.dims.shape[copy.dims.rank] = rows;
  copy.source.strides[copy.dims.rank] = strides[0];
  copy.result.strides[copy.dims.rank++] = result.strides[0] = leading;
  copy.dims.shape[copy.dims.rank] = cols;
  copy.source.strides[copy.dims.rank] = strides[1];
  copy.result.strides[copy.dims.rank++] = result.strides[1] = 1;
  array_copy(copy, stream);
  return result;
}

template <class T>
void tensor_matmul(const ArrayMatmul& problem, StreamView stream) {
  TensorParams p;
  const ArrayOperand* const operands[3] = {&problem.a, &problem.b, &problem.result};
  const bool inner_a = problem.a_strides[1] == 1, inner_b = problem.b_strides[0] == 1;
  p.a = {static_cast<const std::uint16_t*>(problem.a.data), problem.a_strides[inner_a ? 0 : 1]};
  p.b = {static_cast<const std::uint16_t*>(problem.b.data), problem.b_strides[inner_b ? 1 : 0]};
  p.result = static_cast<std::uint16_t*>(problem.result.data);
  std::copy(problem.result_strides, problem.result_strides + 2, p.result_strides);
  p.rows = problem.rows;
  p.columns = problem.columns;
  p.inner = problem.inner;
  p.row_tiles = divider_of(tiles_of(p.rows, kTensorTile));
  p.column_tiles = divider_of(tiles_of(p.columns, kTensorTile));
  p.batch = array_index(problem.batch);
  for (int k = 0; k < 3; ++k) {
    p.batch_strides[k][0] = 0;
    std::copy(operands[k]->strides, operands[k]->strides + problem.batch.rank, p.batch_strides[k]);
  }
  if (inner_a) {
    inner_b ? launch_matmul_tensor<T, true, true>(p, stream)
            : launch_matmul_tensor<T, true, false>(p, stream);
  } else {
    inner_b ? launch_matmul_tensor<T, false, true>(p, stream)
            : launch_matmul_tensor<T, false, false>(p, stream);
  }
}

}  // namespace

void array_matmul(const ArrayMatmul& problem, StreamView stream) {
  if (!is_floating(problem.dtype)) {
    // Modulo 2^bits, signed and unsigned integers have the same products.
    const DType dtype = unsigned_of(dtype_size(problem.dtype));
    if (dtype == DType::kUInt64) return tiled_matmul<std::uint64_t>(problem, dtype, stream);
    return tiled_matmul<std::uint32_t>(problem, dtype, stream);
  }
  const bool is_16_bit = dtype_size(problem.dtype) == 2;
  if (cublas_matmul(problem, stream)) return;
  ArrayMatmul packed = problem;
  const bool tensor_cores = is_16_bit && compiled_architecture(current_device()) >= 80;
  Adjacent a, b;
  const auto pack = [&](bool vectors) {
    a = adjacent(problem.a, problem.a_strides, problem.rows, problem.inner, problem.batch, vectors,
                 stream);
    b = adjacent(problem.b, problem.b_strides, problem.inner, problem.columns, problem.batch,
                 vectors, stream);
    packed.a = a.operand;
    packed.b = b.operand;
    std::copy(a.strides, a.strides + 2, packed.a_strides);
    std::copy(b.strides, b.strides + 2, packed.b_strides);
  };
  if (has_cublas()) {
    pack(false);
    if (cublas_matmul(packed, stream)) return;
  }
  if (tensor_cores) {
    pack(true);
    if (problem.dtype == DType::kFloat16) return tensor_matmul<Float16>(packed, stream);
    return tensor_matmul<BFloat16>(packed, stream);
  }
  if (problem.dtype == DType::kFloat64) return tiled_matmul<double>(problem, problem.dtype, stream);
  tiled_matmul<float>(problem, problem.dtype, stream);
}

}  // namespace membound::cuda
