// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Copies: with another dtype, between permuted dimensions, of one number.
#include "cuda/array/elementwise_kernel.cuh"
#include "cuda/array/transpose_config.hpp"

namespace membound::cuda {

namespace {

// A thread copies one unit: by four of them copies between strided arrays take 1.15 times as long.
// kConverts is false for copies of bits, which A has as many of as the items.
template <class A, bool kConverts>
__global__ void __launch_bounds__(kElementwiseThreads)
    array_copy_kernel(const __grid_constant__ ElementwiseParams<1> p) {
  pdl_wait_and_launch();
  const UnitArray& source = p.arrays[0];
  const UnitArray& result = p.arrays[1];
  const std::int64_t linear = std::int64_t{blockIdx.x} * kElementwiseThreads + threadIdx.x;
  if (linear >= p.index.size) return;
  RawUnit<A> raw[1];
  std::int64_t at[2] = {0, linear * kUnitItems};
  int count = kUnitItems;
  if (linear < p.whole) {
    load_dense<A, 1>(source, p.row_loads, false, linear, raw);
  } else {
    const std::int64_t col = kUnitItems * p.index.template offsets<true>(linear, p.strides, at);
    count = static_cast<int>(min(p.inner - col, std::int64_t{kUnitItems}));
    raw[0] = load_unit<A>(source, at[0], count);
  }
  if constexpr (kConverts) {
    A values[kUnitItems];
    unpack_unit(raw[0], source.dtype, values);
    store_unit(result, at[1], count, convert_unit(values, result.dtype));
  } else {
    store_unit(result, at[1], count, raw[0]);
  }
}

template <class A, bool kConverts>
void launch_copy(const ArrayCopy& copy, StreamView stream) {
  const auto p =
      elementwise_params<1>(ElementwiseOp::kPositive, copy.dims, copy.result, &copy.source);
  launch<array_copy_kernel<A, kConverts>>(
      {(p.index.size + kElementwiseThreads - 1) / kElementwiseThreads, kElementwiseThreads}, stream,
      current_device(), p);
}

// ---- permuted dimensions: tiles through shared memory

using tuning::kTile;
inline constexpr int kTileRows = 8;

struct TransposeParams {
  const char* source;
  char* result;
  std::int64_t rows, cols;         // adjacent in the source: rows; in the result: cols
  std::int64_t source_col_stride;  // in elements
  std::int64_t result_row_stride;
  std::int64_t source_row_stride, result_col_stride;  // 1, but for single elements
  Divider row_tiles, col_tiles;                       // tiles of one matrix
  ArrayIndex index;                                   // the other dimensions
  std::int64_t strides[2][kMaxRank];
};

// Tiles of a block, next to each other along the rows: 64 bytes of a thread are in flight at least.
template <class Word, int kPack>
constexpr int kTilesOfBlock = std::max(1, (sizeof(Word) == 8 ? 2 : 4) / kPack);

__device__ inline std::uint64_t word_of(std::uint32_t low, std::uint32_t high) {
  return std::uint64_t{high} << 32 | low;
}
// Element i of word j becomes element j of word i.
__device__ inline void transpose_words(const std::uint64_t (&in)[2], std::uint64_t (&out)[2]) {
  out[0] = word_of(static_cast<std::uint32_t>(in[0]), static_cast<std::uint32_t>(in[1]));
  out[1] = word_of(in[0] >> 32, in[1] >> 32);
}
__device__ inline void transpose_words(const std::uint64_t (&in)[4], std::uint64_t (&out)[4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    std::uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) words[j] = static_cast<std::uint32_t>(in[j] >> (32 * half));
    out[2 * half] =
        word_of(__byte_perm(words[0], words[1], 0x5410), __byte_perm(words[2], words[3], 0x5410));
    out[2 * half + 1] =
        word_of(__byte_perm(words[0], words[1], 0x7632), __byte_perm(words[2], words[3], 0x7632));
  }
}

// kPack elements in one word, which is what a thread loads along the rows of the source and stores
// along the columns of the result; or one element of any size. A tile is square. Lines of 256 bytes
// are worth a tenth of the time beside those of 128.
// Shared memory: the tiles. Memory-bound.
template <class Word, int kPack>
__global__ void __launch_bounds__(kTile* kTileRows)
    array_transpose_kernel(const __grid_constant__ TransposeParams p) {
  constexpr int kSide = kTile * kPack, kTiles = kTilesOfBlock<Word, kPack>;
  constexpr int kItem = sizeof(Word) / kPack;
  __shared__ Word tiles[kTiles][kSide][kTile + 1];
  pdl_wait_and_launch();
  const int lane = threadIdx.x % kTile, group = threadIdx.x / kTile;
  const std::int64_t matrix_rows = p.row_tiles.quotient(blockIdx.x);
  const std::int64_t row =
      (blockIdx.x - matrix_rows * p.row_tiles.extent) * (kSide * kTiles) + lane * kPack;
  const std::int64_t matrix = p.col_tiles.quotient(matrix_rows);
  const std::int64_t col = (matrix_rows - matrix * p.col_tiles.extent) * kSide;
  std::int64_t at[2];
  p.index.offsets(matrix, p.strides, at);
  const int cols = static_cast<int>(min(p.cols - col, std::int64_t{kSide}));
  // Source: for each column of a tile, words along the rows. Column c goes to line
  // c / kPack + kTile * (c % kPack), so that the columns of a word of the result lie apart by one.
  const std::int64_t col_bytes = p.source_col_stride * kTileRows * kItem;
  const std::int64_t row_bytes = p.source_row_stride * kSide * kItem;
  const char* from =
      p.source + (at[0] + (col + group) * p.source_col_stride + row * p.source_row_stride) * kItem;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const bool is_there = row + t * kSide < p.rows;
#pragma unroll
    for (int i = 0; i < kSide / kTileRows; ++i) {
      const int c = group + i * kTileRows;
      if (is_there && c < cols)
        tiles[t][c / kPack + kTile * (c % kPack)][lane] =
            *reinterpret_cast<const Word*>(from + t * row_bytes + i * col_bytes);
    }
  }
  __syncthreads();
  const std::int64_t first = row - lane * kPack + group * kPack, c = col + lane * kPack;
  const std::int64_t line = p.result_row_stride * kItem;
  char* to = p.result + (at[1] + first * p.result_row_stride + c * p.result_col_stride) * kItem;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < kTile / kTileRows; ++i) {
      Word in[kPack], out[kPack];
#pragma unroll
      for (int j = 0; j < kPack; ++j) in[j] = tiles[t][lane + kTile * j][group + i * kTileRows];
      if constexpr (kPack == 1) {
        out[0] = in[0];
      } else if constexpr (sizeof(Word) == 8) {
        transpose_words(in, out);
      } else if constexpr (kPack == 2) {
        out[0] = __byte_perm(in[0], in[1], 0x5410);
        out[1] = __byte_perm(in[0], in[1], 0x7632);
      } else {
        const Word low[2] = {__byte_perm(in[0], in[1], 0x5140), __byte_perm(in[2], in[3], 0x5140)};
        const Word high[2] = {__byte_perm(in[0], in[1], 0x7362), __byte_perm(in[2], in[3], 0x7362)};
        out[0] = __byte_perm(low[0], low[1], 0x5410);
        out[1] = __byte_perm(low[0], low[1], 0x7632);
        out[2] = __byte_perm(high[0], high[1], 0x5410);
        out[3] = __byte_perm(high[0], high[1], 0x7632);
      }
#pragma unroll
      for (int j = 0; j < kPack; ++j) {
        const int r = t * kSide + i * kTileRows * kPack + j;  // from `first`
        if (lane * kPack < cols && first + r < p.rows)
          *reinterpret_cast<Word*>(to + r * line) = out[j];
      }
    }
  }
}

template <class Word, int kPack>
void launch_transpose(TransposeParams p, StreamView stream) {
  constexpr int kSide = kTile * kPack, kRows = kSide * kTilesOfBlock<Word, kPack>;
  p.row_tiles = divider_of((p.rows + kRows - 1) / kRows);
  p.col_tiles = divider_of((p.cols + kSide - 1) / kSide);
  launch<array_transpose_kernel<Word, kPack>>(
      {p.row_tiles.extent * p.col_tiles.extent * p.index.size, kTile * kTileRows}, stream,
      current_device(), p);
}

// The dimension along which the source is densest, if both it and the last one fill tiles.
inline constexpr std::int64_t kFewest = 8;
int transposed_axis(const ArrayCopy& copy) {
  const int last = copy.dims.rank - 1;
  int densest = last;
  for (int axis = 0; axis < last; ++axis) {
    const std::int64_t stride = std::abs(copy.source.strides[axis]);
    if (stride != 0 && copy.dims.shape[axis] >= kFewest && copy.dims.shape[last] >= kFewest &&
        stride < std::abs(copy.source.strides[densest]))
      densest = axis;
  }
  return densest;
}

void transpose(const ArrayCopy& copy, int axis, StreamView stream) {
  const int last = copy.dims.rank - 1;
  TransposeParams p;
  p.source = static_cast<const char*>(copy.source.data);
  p.result = static_cast<char*>(copy.result.data);
  p.rows = copy.dims.shape[axis];
  p.cols = copy.dims.shape[last];
  p.source_row_stride = copy.source.strides[axis];
  p.source_col_stride = copy.source.strides[last];
  p.result_row_stride = copy.result.strides[axis];
  p.result_col_stride = copy.result.strides[last];
  const auto size = static_cast<std::int64_t>(dtype_size(copy.result.dtype));
  // Everything is a multiple of `pack` elements.
  std::int64_t pack = p.source_row_stride == 1 && p.result_col_stride == 1 ? 8 / size : 1;
  const auto fit = [&](std::int64_t elements) {
    while (elements % pack != 0) pack /= 2;
  };
  while (!is_aligned(p.source, pack * size) || !is_aligned(p.result, pack * size)) pack /= 2;
  fit(p.rows), fit(p.cols), fit(p.source_col_stride), fit(p.result_row_stride);
  std::int64_t shape[kMaxRank] = {1};
  int rank = 0;
  for (int other = 0; other < last; ++other) {
    if (other == axis) continue;
    p.strides[0][rank] = copy.source.strides[other];
    p.strides[1][rank] = copy.result.strides[other];
    fit(p.strides[0][rank]), fit(p.strides[1][rank]);
    shape[rank++] = copy.dims.shape[other];
  }
  p.index = array_index(shape, rank);
  pack = tuning::transpose_pack(size, pack, p.rows, p.cols);
  switch (size) {
    case 1:
      return pack == 4 ? launch_transpose<std::uint32_t, 4>(p, stream)
                       : launch_transpose<std::uint8_t, 1>(p, stream);
    case 2:
      return pack == 4   ? launch_transpose<std::uint64_t, 4>(p, stream)
             : pack == 2 ? launch_transpose<std::uint32_t, 2>(p, stream)
                         : launch_transpose<std::uint16_t, 1>(p, stream);
    case 4:
      return pack == 2 ? launch_transpose<std::uint64_t, 2>(p, stream)
                       : launch_transpose<std::uint32_t, 1>(p, stream);
    default: return launch_transpose<std::uint64_t, 1>(p, stream);
  }
}

// The same copy in items as wide as alignment allows: bytes are slow one by one.
ArrayCopy widened(ArrayCopy copy) {
  ArrayOperand* const arrays[2] = {&copy.result, &copy.source};
  auto size = static_cast<std::int64_t>(dtype_size(copy.result.dtype));
  const int last = copy.dims.rank - 1;
  while (size < 8 && last >= 0) {
    bool fits = copy.dims.shape[last] % 2 == 0;
    for (const ArrayOperand* array : arrays) {
      if (array->data == nullptr) continue;
      fits &= array->strides[last] == 1 && is_aligned(array->data, 2 * size);
      for (int axis = 0; axis < last; ++axis) fits &= array->strides[axis] % 2 == 0;
    }
    if (!fits) break;
    copy.dims.shape[last] /= 2;
    std::memcpy(copy.source.scalar + size, copy.source.scalar, static_cast<std::size_t>(size));
    size *= 2;
    for (ArrayOperand* array : arrays) {
      for (int axis = 0; axis < last; ++axis) array->strides[axis] /= 2;
    }
  }
  copy.result.dtype = copy.source.dtype = unsigned_of(static_cast<std::size_t>(size));
  return copy;
}

}  // namespace

void array_copy(const ArrayCopy& copy, StreamView stream) {
  if (copy.result.dtype != copy.source.dtype) {
    return dispatch_arithmetic<true>(copy.source.dtype,
                                     [&]<class A>() { launch_copy<A, true>(copy, stream); });
  }
  const int axis = copy.source.data == nullptr ? copy.dims.rank - 1 : transposed_axis(copy);
  if (axis != copy.dims.rank - 1) return transpose(copy, axis, stream);
  const ArrayCopy wide = widened(copy);
  if (wide.result.dtype == DType::kUInt64) return launch_copy<std::uint64_t, false>(wide, stream);
  launch_copy<std::uint32_t, false>(wide, stream);
}

}  // namespace membound::cuda
