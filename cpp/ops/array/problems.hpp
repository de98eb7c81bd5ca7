// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/array/adamw.hpp"
#include "core/host_device.hpp"
#include "membound/array/elementwise_ops.hpp"
#include "membound/array/stencil.hpp"
#include "membound/stream.hpp"
#include "membound/tensor_view.hpp"

// What the back ends of arrays receive: checked, promoted, broadcast, with memory for the result.
// Dimensions are collapsed: none of one element, adjacent ones merged where every operand allows
// it. Strides count elements. No problem is empty unless it says so.
namespace membound {

struct ArrayOperand {
  void* data = nullptr;  // null: the same number everywhere, in `scalar` and of `dtype`
  DType dtype = DType::kFloat32;
  alignas(8) unsigned char scalar[8] = {};
  std::int64_t strides[kMaxRank];

  ArrayOperand() noexcept {}  // strides stay unset beyond the rank
};

struct ArrayDims {
  int rank = 0;
  std::int64_t shape[kMaxRank];

  ArrayDims() noexcept {}
  std::int64_t size() const {
    std::int64_t count = 1;
    for (int axis = 0; axis < rank; ++axis) count *= shape[axis];
    return count;
  }
};

// result = op(operands), in the order of the result's memory: the last dimension has its smallest
// stride. The result may be exactly one of the operands, and overlaps them in no other way.
//
// The entry leaves these ops to back ends (KernelOp, core/array/functors.hpp); operands have the
// problem's dtype, which is never bool but in logical ones; `where` has a bool first.
struct ArrayElementwise {
  ElementwiseOp op;
  int operand_count;
  DType dtype;  // in which it is computed; 16-bit floats in float32
  ArrayDims dims;
  ArrayOperand result;
  ArrayOperand operands[3];
};

// result = source, converted to the result's dtype (convert_to, core/array/functors.hpp). No
// overlap. Also fills (source.data is null) and broadcasts (source strides of 0).
struct ArrayCopy {
  ArrayDims dims;
  ArrayOperand result;
  ArrayOperand source;
};

// kSum .. kMax: in accumulate_dtype for floating dtypes, in int64 or uint64 for integers and bool,
// converted to the result's dtype once. kMin and kMax return a NaN if there is one; kArgMin and
// kArgMax, whose result is int64, the first place of it or of the extreme value, counted in the C
// order of the reduced dimensions. kAny and kAll give bool.
enum class ReduceOp : std::uint8_t {
  kSum,
  kProd,
  kSquaredDeviations,  // the sum of (x - centre)^2
  kMin,
  kMax,
  kArgMin,
  kArgMax,
  kAny,
  kAll,
};

// One result per element of `kept`; each over all of `reduced`, which may have 0 elements (kSum: 0,
// kProd: 1, kAny: false, kAll: true). Reduced dimensions are in C order for kArgMin and kArgMax,
// else in the order of source memory, the last one densest.
struct ArrayReduction {
  ReduceOp op;
  ArrayDims kept, reduced;
  ArrayOperand result;                     // strides over kept
  ArrayOperand source;                     // strides over kept
  std::int64_t reduced_strides[kMaxRank];  // of source
  ArrayOperand centre;                     // kSquaredDeviations: accumulate dtype, over kept
  double divisor = 1;                      // floating kSum, kSquaredDeviations: total / divisor

  ArrayReduction() noexcept {}
};

enum class ScanOp : std::uint8_t { kSum, kProd };

// result[.., i] = the sum or product of source[.., 0 .. i]; where include_initial, result has one
// element more along the axis, and begins with 0 or 1. Accumulates as reductions do.
struct ArrayScan {
  ScanOp op;
  bool include_initial;
  ArrayDims rows;
  std::int64_t length;          // of source along the axis; may be 0
  ArrayOperand result, source;  // strides over rows
  std::int64_t result_stride, source_stride;
};

// Sorts each row of a contiguous rows x length array in place; NaNs last. indices: null, or the
// permutation is written there (int64, contiguous) and values are left in any order. Always
// stable: descending, too, keeps the order of equal elements.
struct ArraySort {
  void* values;
  std::int64_t* indices;
  DType dtype;
  std::int64_t rows, length;
  bool descending;
};

// places[i] = how many elements of a sorted vector, NaNs last, are less than wanted[i]; with
// `right` less or equal. All contiguous; of bool, integers, float32 or float64.
struct ArraySearch {
  const void *sorted, *wanted;
  std::int64_t* places;
  DType dtype;
  std::int64_t length, count;
  bool right;
};

// offsets[..] = the sum over j of indices_j[..] * strides[j], contiguous over dims, a negative
// index counting from the end.
struct ArrayIndexOffsets {
  ArrayDims dims;
  int indexed;                     // how many axes
  ArrayOperand indices[kMaxRank];  // int64
  std::int64_t extents[kMaxRank], strides[kMaxRank];
  std::int64_t* offsets;

  ArrayIndexOffsets() noexcept {}
};
// Where an index was out of range; element counts in C order over dims, -1 if there is none.
struct BadIndex {
  std::int64_t element = -1;
  int axis = 0;
  std::int64_t index = 0;
};

// For each element of dims, in C order: the element of `indexed` at strides plus *offsets. Gather:
// other = indexed. Scatter: indexed = other; of several values for one element the last in C order
// is written. Both have the same dtype, and share no memory.
struct ArrayGather {
  bool is_scatter;
  ArrayDims dims;
  ArrayOperand indexed;
  ArrayOperand other;  // a scatter's may be a scalar
  const std::int64_t* offsets;
  std::int64_t offset_strides[kMaxRank];

  ArrayGather() noexcept {}
};

// The places of true elements of a contiguous bool array, in C order: indices[axis][i].
struct ArrayNonzero {
  const bool* mask;
  std::int64_t count;  // of true elements
  ArrayDims dims;      // of the array, not collapsed
  std::int64_t* indices[kMaxRank];

  ArrayNonzero() noexcept {}
};

// result[b, i, j] = the sum over p of a[b, i, p] * b[b, p, j]. Floats accumulate in their
// accumulate dtype, integers modulo 2^bits. inner may be 0: zeros. dtype: of all three.
struct ArrayMatmul {
  DType dtype;
  ArrayDims batch;
  std::int64_t rows, columns, inner;
  ArrayOperand result, a, b;  // strides over batch
  std::int64_t result_strides[2], a_strides[2], b_strides[2];
};

enum class RandomKind : std::uint8_t { kUniform, kNormal, kIntegers };

// Element i of a contiguous array comes from block counter + i / per_block(dtype) of this seed; see
// core/array/philox.hpp, which both back ends compute with. Integers always have 2 a block.
struct ArrayRandom {
  RandomKind kind;
  std::uint64_t seed, counter;
  void* result;
  DType dtype;
  std::int64_t count;
  double low, high;     // kUniform: [low, high). kNormal: mean, standard deviation
  std::int64_t lowest;  // kIntegers: [lowest, lowest + range)
  std::uint64_t range;  // 0: 2^64
};

// Where along an axis a stencil reads: -1 where it reads 0. length is at least 1.
namespace array {
MEMBOUND_HOST_DEVICE inline std::int64_t boundary_index(Boundary boundary, std::int64_t at,
                                                        std::int64_t length) {
  if (at >= 0 && at < length) return at;
  const auto modulo = [](std::int64_t value, std::int64_t period) {
    return (value % period + period) % period;
  };
  switch (boundary) {
    case Boundary::kNearest: return at < 0 ? 0 : length - 1;
    case Boundary::kWrap: return modulo(at, length);
    case Boundary::kReflect: {
      const std::int64_t place = modulo(at, 2 * length);
      return place < length ? place : 2 * length - 1 - place;
    }
    default: return -1;
  }
}
}  // namespace array

// result[o, i, c] = the sum over taps k of weights[k] * source[o, i + k + origin, c], contiguous
// arrays (outer, result_length, inner) and (outer, length, inner) of float32 or float64.
struct ArrayStencil {
  DType dtype;
  array::Boundary boundary;
  const void *source, *weights;
  void* result;
  std::int64_t taps, origin, outer, length, result_length, inner;
};

// One AdamW step of a parameter, in place; exp_avg and exp_avg_sq have the accumulate dtype.
struct ArrayAdamW {
  ArrayDims dims;
  ArrayOperand param, grad, exp_avg, exp_avg_sq;
};

namespace cpu {
void array_elementwise(const ArrayElementwise& problem);
void array_copy(const ArrayCopy& problem);
void array_reduce(const ArrayReduction& problem);
void array_scan(const ArrayScan& problem);
void array_sort(const ArraySort& problem);
void array_search(const ArraySearch& problem);
BadIndex array_index_offsets(const ArrayIndexOffsets& problem);
bool array_are_below(const std::int64_t* indices, std::int64_t count, std::int64_t extent);
void array_gather(const ArrayGather& problem);
std::int64_t array_count_true(const bool* mask, std::int64_t count);
void array_nonzero(const ArrayNonzero& problem);
void array_matmul(const ArrayMatmul& problem);
void array_random(const ArrayRandom& problem);
void array_stencil(const ArrayStencil& problem);
// sums[k, block] = the sum over a block of results r of r * source[.. + k + origin]: their total is
// the gradient of weight k if the results are gradients.
std::int64_t array_stencil_blocks(const ArrayStencil& problem);
void array_stencil_dots(const ArrayStencil& problem, void* sums);
void array_adamw(const ArrayAdamW* parameters, std::int64_t count, const AdamWFactors& factors);
}  // namespace cpu

// array_index_offsets and array_count_true wait for the stream.
namespace cuda {
void array_elementwise(const ArrayElementwise& problem, StreamView stream);
void array_copy(const ArrayCopy& problem, StreamView stream);
void array_reduce(const ArrayReduction& problem, StreamView stream);
void array_scan(const ArrayScan& problem, StreamView stream);
void array_sort(const ArraySort& problem, StreamView stream);
void array_search(const ArraySearch& problem, StreamView stream);
BadIndex array_index_offsets(const ArrayIndexOffsets& problem, StreamView stream);
void array_gather(const ArrayGather& problem, StreamView stream);
std::int64_t array_count_true(const bool* mask, std::int64_t count, StreamView stream);
void array_nonzero(const ArrayNonzero& problem, StreamView stream);
void array_matmul(const ArrayMatmul& problem, StreamView stream);
void array_random(const ArrayRandom& problem, StreamView stream);
void array_stencil(const ArrayStencil& problem, StreamView stream);
std::int64_t array_stencil_blocks(const ArrayStencil& problem);
void array_stencil_dots(const ArrayStencil& problem, void* sums, StreamView stream);
void array_adamw(const ArrayAdamW* parameters, std::int64_t count, const AdamWFactors& factors,
                 StreamView stream);
// What is queued on `then` from now on starts after what is on `first` now.
MEMBOUND_API void order_streams(StreamView first, StreamView then, Device device);
}  // namespace cuda

}  // namespace membound
