// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Rows of any dtype, stride and width for the generic norms: quads of four neighbouring columns,
// whose dtype is a uniform run-time branch. A thread's quads are `threads` apart, so that
// neighbouring threads' loads coalesce.
#include <cstdint>

#include "core/rows.hpp"
#include "cuda/activation/silu.cuh"
#include "cuda/norm/rms_norm_generic_config.hpp"
#include "cuda/norm/rstd.cuh"
#include "cuda/row/cluster.cuh"
#include "cuda/row/convert.cuh"
#include "cuda/row/heads.cuh"
#include "cuda/row/reduce.cuh"
#include "membound/dtype.hpp"

namespace membound::cuda {

inline constexpr int kQuad = 4;  // columns

template <class A>
struct Quad {
  A at[kQuad];
};

// A quad as it is stored. No array is float64 if A is float.
template <class A>
struct RawQuad {
  uint4 vectors[sizeof(A) / 4];
};

// One row of an array.
template <class Byte>
struct GenericRow {
  Byte* first;          // first element
  std::int64_t stride;  // between columns
  DType dtype;
  bool is_vectored;  // quads are aligned vectors
};

__device__ inline int size_of(DType dtype) {
  return dtype == DType::kFloat64 ? 8 : dtype == DType::kFloat32 ? 4 : 2;
}

template <class Byte>
__device__ inline GenericRow<Byte> generic_row(Byte* first, std::int64_t stride, DType dtype) {
  const int bytes = kQuad * size_of(dtype);
  const auto address = reinterpret_cast<std::uintptr_t>(first);
  return {first, stride, dtype, stride == 1 && address % (bytes < 16 ? bytes : 16) == 0};
}
__device__ inline GenericRow<const char> row_of(const InputRows& rows, std::int64_t row) {
  const char* data = static_cast<const char*>(rows.data);
  return generic_row(data + rows.layout.offset(row) * size_of(rows.dtype), rows.col_stride,
                     rows.dtype);
}
__device__ inline GenericRow<char> row_of(const OutputRows& rows, std::int64_t row) {
  char* data = static_cast<char*>(rows.data);
  return generic_row(data + rows.layout.offset(row) * size_of(rows.dtype), rows.col_stride,
                     rows.dtype);
}
__device__ inline GenericRow<const char> row_of(const InputColumns& columns, std::int64_t head) {
  const char* data = static_cast<const char*>(columns.data);
  return generic_row(data + head * columns.head_stride * size_of(columns.dtype), columns.stride,
                     columns.dtype);
}

template <class A>
__device__ inline A number_at(const char* at, DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return static_cast<A>(to_number(*reinterpret_cast<const Float16*>(at)));
    case DType::kBFloat16: return static_cast<A>(to_number(*reinterpret_cast<const BFloat16*>(at)));
    case DType::kFloat32: return static_cast<A>(*reinterpret_cast<const float*>(at));
    default: return static_cast<A>(*reinterpret_cast<const double*>(at));
  }
}

// Rounds to odd: an inexact float gets its last bit set, so that rounding it once more to 16 bits
// gives the same as a single rounding.
__device__ inline float to_narrower(float value) { return value; }
__device__ inline float to_narrower(double value) {
  const float cut = __double2float_rz(value);
  return static_cast<double>(cut) == value ? cut : __uint_as_float(__float_as_uint(cut) | 1u);
}

template <class A>
__device__ inline void store_number(char* at, DType dtype, A value) {
  switch (dtype) {
    case DType::kFloat16:
      *reinterpret_cast<Float16*>(at) = from_number<Float16>(to_narrower(value));
      break;
    case DType::kBFloat16:
      *reinterpret_cast<BFloat16*>(at) = from_number<BFloat16>(to_narrower(value));
      break;
    case DType::kFloat32: *reinterpret_cast<float*>(at) = static_cast<float>(value); break;
    default: *reinterpret_cast<double*>(at) = static_cast<double>(value);
  }
}

// Quads of `count` elements that cannot be loaded as a vector. Out of line, because each use
// inlines to four loads per dtype.
template <class A>
static __device__ __noinline__ Quad<A> elements_of(const char* first, std::int64_t stride,
                                                   DType dtype, std::int64_t count) {
  Quad<A> numbers;
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    numbers.at[i] = i < count ? number_at<A>(first + i * stride * size_of(dtype), dtype) : A(0);
  }
  return numbers;
}
template <class A>
static __device__ __noinline__ void store_elements(char* first, std::int64_t stride, DType dtype,
                                                   std::int64_t count, Quad<A> numbers) {
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    if (i < count) store_number(first + i * stride * size_of(dtype), dtype, numbers.at[i]);
  }
}

// Loads a quad: the stored vector as it is, or numbers if it cannot be loaded as a vector.
template <class A, class Byte>
__device__ inline bool is_vector(const GenericRow<Byte>& row, std::int64_t col, std::int64_t cols) {
  return row.is_vectored && col + kQuad <= cols && (sizeof(A) == 8 || row.dtype != DType::kFloat64);
}
template <class A, class Byte>
__device__ inline RawQuad<A> fetch(const GenericRow<Byte>& row, std::int64_t col,
                                   std::int64_t cols) {
  RawQuad<A> raw{};
  const int size = size_of(row.dtype);
  if (is_vector<A>(row, col, cols)) {
    const char* at = row.first + col * size;
    if (size == 2) {
      const uint2 words = *reinterpret_cast<const uint2*>(at);
      raw.vectors[0].x = words.x;
      raw.vectors[0].y = words.y;
    } else {
      raw.vectors[0] = *reinterpret_cast<const uint4*>(at);
      if constexpr (sizeof(A) == 8) {
        if (size == 8) raw.vectors[1] = reinterpret_cast<const uint4*>(at)[1];
      }
    }
  } else {
    const Quad<A> numbers =
        elements_of<A>(row.first + col * row.stride * size, row.stride, row.dtype, cols - col);
    raw = reinterpret_cast<const RawQuad<A>&>(numbers);
  }
  return raw;
}

template <class A, class T>
__device__ inline Quad<A> widened(const uint4& words) {
  const Numbers<T> numbers = unpack<T>(words);
  Quad<A> quad;
#pragma unroll
  for (int i = 0; i < kQuad; ++i) quad.at[i] = static_cast<A>(numbers.at[i]);
  return quad;
}
// The numbers of a fetch() of the same row and column.
template <class A, class Byte>
__device__ inline Quad<A> numbers_of(const RawQuad<A>& raw, const GenericRow<Byte>& row,
                                     std::int64_t col, std::int64_t cols) {
  if (!is_vector<A>(row, col, cols)) return reinterpret_cast<const Quad<A>&>(raw);
  switch (row.dtype) {
    case DType::kFloat16: return widened<A, Float16>(raw.vectors[0]);
    case DType::kBFloat16: return widened<A, BFloat16>(raw.vectors[0]);
    case DType::kFloat32: return widened<A, float>(raw.vectors[0]);
    default: return reinterpret_cast<const Quad<A>&>(raw);
  }
}
template <class A, class Byte>
__device__ inline Quad<A> read(const GenericRow<Byte>& row, std::int64_t col, std::int64_t cols) {
  return numbers_of<A>(fetch<A>(row, col, cols), row, col, cols);
}

template <class A, class T>
__device__ inline uint2 narrowed(const Quad<A>& quad) {
  Numbers<T> numbers{};
#pragma unroll
  for (int i = 0; i < kQuad; ++i) numbers.at[i] = to_narrower(quad.at[i]);
  const uint4 words = pack<T>(numbers);
  return {words.x, words.y};
}
// Stores a quad; each number is rounded once.
template <class A>
__device__ inline void write(const GenericRow<char>& row, std::int64_t col, std::int64_t cols,
                             const Quad<A>& quad) {
  const int size = size_of(row.dtype);
  char* at = row.first + col * row.stride * size;
  if (!row.is_vectored || col + kQuad > cols) {
    return store_elements(at, row.stride, row.dtype, cols - col, quad);
  }
  if (row.dtype == DType::kFloat64) {
    Quad<double> wide;
#pragma unroll
    for (int i = 0; i < kQuad; ++i) wide.at[i] = static_cast<double>(quad.at[i]);
    reinterpret_cast<uint4*>(at)[0] = reinterpret_cast<const RawQuad<double>&>(wide).vectors[0];
    reinterpret_cast<uint4*>(at)[1] = reinterpret_cast<const RawQuad<double>&>(wide).vectors[1];
  } else if (row.dtype == DType::kFloat32) {
    Quad<float> numbers;
#pragma unroll
    for (int i = 0; i < kQuad; ++i) numbers.at[i] = static_cast<float>(quad.at[i]);
    *reinterpret_cast<uint4*>(at) = reinterpret_cast<const RawQuad<float>&>(numbers).vectors[0];
  } else {
    *reinterpret_cast<uint2*>(at) =
        row.dtype == DType::kFloat16 ? narrowed<A, Float16>(quad) : narrowed<A, BFloat16>(quad);
  }
}

// The quad rounded to a dtype and back.
template <class A>
__device__ inline Quad<A> rounded_to(const Quad<A>& quad, DType dtype) {
  if (dtype == DType::kFloat64) return quad;
  if (dtype == DType::kFloat32) {
    Quad<A> numbers;
#pragma unroll
    for (int i = 0; i < kQuad; ++i) numbers.at[i] = static_cast<float>(quad.at[i]);
    return numbers;
  }
  const bool half = dtype == DType::kFloat16;
  const uint2 words = half ? narrowed<A, Float16>(quad) : narrowed<A, BFloat16>(quad);
  const uint4 vector{words.x, words.y, 0u, 0u};
  return half ? widened<A, Float16>(vector) : widened<A, BFloat16>(vector);
}

template <class A>
__device__ inline Quad<A> operator*(const Quad<A>& a, const Quad<A>& b) {
  Quad<A> quad;
#pragma unroll
  for (int i = 0; i < kQuad; ++i) quad.at[i] = product(a.at[i], b.at[i]);
  return quad;
}
template <class A>
__device__ inline Quad<A> operator*(const Quad<A>& a, A b) {
  Quad<A> quad;
#pragma unroll
  for (int i = 0; i < kQuad; ++i) quad.at[i] = product(a.at[i], b);
  return quad;
}
template <class A>
__device__ inline Quad<A> operator+(const Quad<A>& a, const Quad<A>& b) {
  Quad<A> quad;
#pragma unroll
  for (int i = 0; i < kQuad; ++i) quad.at[i] = a.at[i] + b.at[i];
  return quad;
}
template <class A>
__device__ inline Quad<A> silu_of_quad(const Quad<A>& z) {
  Quad<A> quad;
#pragma unroll
  for (int i = 0; i < kQuad; ++i) quad.at[i] = silu<A>(z.at[i], sigmoid<A>(z.at[i]));
  return quad;
}
// The sum over the elements that the row has; term(i) is that of element i.
template <class A, class Term>
__device__ inline A sum_of_quad(std::int64_t left, Term term) {
  A terms[kQuad];
#pragma unroll
  for (int i = 0; i < kQuad; ++i) terms[i] = i < left ? term(i) : A(0);
  return sum_by_halves(terms);
}

// The factor of the result: weight + offset, or without a weight the offset; 1 if not present().
template <class A>
class FactorRow {
 public:
  __device__ FactorRow(const InputColumns& weight, A offset, std::int64_t head, std::int64_t cols)
      : row_(row_of(weight, head)), there_(weight.data != nullptr), offset_(offset), cols_(cols) {}
  __device__ bool present() const { return there_ || offset_ != A(0); }
  __device__ Quad<A> at(std::int64_t col) const {
    if (!there_) return {offset_, offset_, offset_, offset_};
    Quad<A> quad = read<A>(row_, col, cols_);
    if (offset_ != A(0)) quad = quad + Quad<A>{offset_, offset_, offset_, offset_};
    return quad;
  }

 private:
  GenericRow<const char> row_;
  bool there_;
  A offset_;
  std::int64_t cols_;
};

// The threads of a row: one warp, or the whole block.
struct RowThreads {
  int count;
  int rank;   // of this thread
  int round;  // of reductions so far

  template <class Value, class Combine>
  __device__ Value reduce(Value value, Combine combine) {
    if (count == kWarpLanes) return reduce_warp(value, combine);
    const Value values[1] = {value};
    return reduce_block<kWarpLanes>(values, round++, combine);
  }
  __device__ int column(int quad) const { return (quad * count + rank) * kQuad; }
};

}  // namespace membound::cuda
