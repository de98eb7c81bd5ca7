// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/array/adamw.hpp"
#include "cpu/pairwise.hpp"
#include "membound/array/elementwise_ops.hpp"
#include "membound/dtype.hpp"

// The interface between cpu/array/ and the units per instruction set: plain data only.
namespace membound::cpu {

// result[i] = op(inputs[i]) for contiguous elements, `block` at a time: an input whose advance is 0
// is one block long, filled with a number.
struct ArrayBlocks {
  ElementwiseOp op;
  DType dtype;  // no 16-bit float
  std::int64_t count, block;
  void* result;
  const void* inputs[3];
  std::int64_t advance[3];  // elements from block to block
};

// Contiguous elements of another dtype.
struct ArrayConversion {
  const void* from;
  void* to;
  DType from_dtype, to_dtype;
  std::int64_t count;
};

// results[row] = the values of a row taken together by kAdd, kMultiply, kMinimum or kMaximum, in
// the tree of cpu/pairwise.hpp. dtype: float32, float64, uint64; kMinimum and kMaximum take all but
// 16-bit floats.
struct ArrayRows {
  ElementwiseOp op;
  DType dtype;
  const void* values;
  std::int64_t rows, row_stride, count;  // 1 to kChunk elements a row
  void* results;                         // contiguous
};

// results[col] = op over the rows, in their order; dtypes as above.
struct ArrayColumns {
  ElementwiseOp op;
  DType dtype;
  const void* rows[kTreeBlock / kTreeLanes];
  std::int64_t row_count, columns;  // at least one row
  void* results;
};

// The tile of a matrix product that the registers hold, of float32, float64, uint32 or uint64.
struct MatmulTile {
  DType dtype;
  std::int64_t rows, columns;  // set by array_matmul_tile
};
// result (+)= a * b for packed panels: element (i, p) of a is a[i / R][p][i % R] with tiles of R
// rows, (p, j) of b is b[j / C][p][j % C] with tiles of C columns; both padded to whole tiles.
struct MatmulBlock {
  DType dtype;
  const void *a, *b;
  void* result;
  std::int64_t result_stride, rows, columns, inner;
  bool accumulates;  // adds to the result
};

// result (+)= the sum over taps of weights[tap] * inputs[tap], of float32 or float64.
inline constexpr int kStencilTaps = 16;  // at most
struct StencilBlock {
  DType dtype;
  std::int64_t count, taps;
  const void* inputs[kStencilTaps];
  const void* weights;
  void* result;
  bool accumulates;  // adds to the result
};

// outputs = one AdamW step of inputs, of float32 or float64: parameters, and the running means of
// gradients and of their squares.
struct AdamWBlock {
  DType dtype;
  std::int64_t count;
  AdamWFactors factors;
  const void* grad;
  const void* inputs[3];
  void* outputs[3];
};

// to[row][col] = from[row][col], where the rows of the source are not contiguous; strides count
// elements. cols * min(rows, 64 / size) * size is kTransposeBytes at most.
inline constexpr std::int64_t kTransposeBytes = 16 << 10;
struct ArrayTranspose {
  const void *from, *next;  // where the next call reads
  void* to;
  std::int64_t size;  // of an element
  std::int64_t rows, cols, from_row_stride, from_col_stride, to_stride;
  bool non_temporal;
};

// Rows of bytes past the cache, or through it.
struct ArrayBytes {
  const void* from;
  void* to;
  std::int64_t count;
  bool non_temporal;
  std::int64_t rows = 1, from_stride = 0, to_stride = 0;  // in bytes
};

}  // namespace membound::cpu
