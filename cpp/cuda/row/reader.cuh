// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Readers and writers of rows as sequences of 16-byte vectors. Vector c holds elements [c * kPack,
// (c + 1) * kPack) whatever the row's alignment or stride. The same thread therefore sums the same
// elements, and the bits of a result do not depend on the layout.
#include <cstdint>

#include "core/layout.hpp"
#include "cuda/launch/cache_hint.cuh"
#include "cuda/row/access.hpp"
#include "cuda/row/convert.cuh"
#include "cuda/row/narrow_vectors.cuh"
#include "cuda/row/split.hpp"

namespace membound::cuda {

// A strided array of rows as a kernel sees it. `end` is one past its last byte.
struct RowArray {
  RowLayout rows;
  std::int64_t outer_stride;  // of the outer row axis
  std::int64_t col_stride;
  const char* end;
};

template <class T>
union VectorOf {
  uint4 vector;
  T elements[kPack<T>];
  __device__ VectorOf() : vector{0u, 0u, 0u, 0u} {}
};

// Code that common rows do not need is out of line. Inlined, it makes kernels of 100 KB, which
// exceed the instruction cache.
static __device__ __noinline__ std::int64_t strided_row_offset(const RowLayout& rows,
                                                               std::int64_t row) {
  return rows.offset(row);
}

// Whether `count` elements include a whole aligned vector, which can be accessed as one.
template <class T>
__device__ inline bool is_whole_vector(const T* elements, std::int64_t stride, std::int64_t count) {
  return stride == 1 && count >= kPack<T> &&
         reinterpret_cast<std::uintptr_t>(elements) % kVectorBytes == 0;
}

// Loads up to kPack elements, padded with zeros.
template <class T>
__device__ __noinline__ uint4 load_elements(const T* from, std::int64_t stride,
                                            std::int64_t count) {
  if (is_whole_vector(from, stride, count)) return *reinterpret_cast<const uint4*>(from);
  VectorOf<T> loaded;
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    if (i < count) loaded.elements[i] = from[i * stride];
  }
  return loaded.vector;
}

template <class T>
__device__ __noinline__ void store_elements(T* to, std::int64_t stride, std::int64_t count,
                                            uint4 vector) {
  if (is_whole_vector(to, stride, count)) {
    *reinterpret_cast<uint4*>(to) = vector;
    return;
  }
  VectorOf<T> stored;
  stored.vector = vector;
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    if (i < count) to[i * stride] = stored.elements[i];
  }
}

// The offset of a row's first element. stride: of the inner row axis. kSplit: whether a kernel of
// aligned rows supports two row axes. It supports no more, because divisions by further extents
// would cost registers.
template <Access kAccess, bool kSplit>
__device__ inline std::int64_t row_offset(const RowSplit& split, std::int64_t stride,
                                          const RowArray& array, std::int64_t row) {
  if ((kAccess == Access::kAligned && !kSplit) || split.extent == 0) return row * stride;
  if constexpr (kAccess != Access::kAligned) return strided_row_offset(array.rows, row);
  const std::int64_t outer = split.outer(row);
  return (row - outer * split.extent) * stride + outer * array.outer_stride;
}

// Bytes from an element to the end of its row; may be negative.
template <class T>
__device__ inline int bytes_left(std::int64_t cols, std::int64_t element) {
  return static_cast<int>(cols - element) * static_cast<int>(sizeof(T));
}

// Reads one row. Elements past its end are zero.
template <class T, Access kAccess>
class RowReader {
 public:
  __device__ RowReader(const T* row, const RowArray& array, int vectors, std::int64_t cols)
      : row_(row), vectors_(vectors) {
    if constexpr (kAccess != Access::kAligned) {
      array_ = &array;
      cols_ = cols;
    }
    if constexpr (kAccess == Access::kUnaligned)
      width_ = narrow_width(row, cols * std::int64_t{sizeof(T)});
  }

  // Loads the vectors index(0) to index(kCount - 1), all of them before the first is used.
  template <int kCount, class Index>
  __device__ void fetch(uint4 (&vectors)[kCount], Index index) const {
    if constexpr (kAccess == Access::kUnaligned) {
      with_width<int{sizeof(T)}>(width_, [&]<int kWidth>() {
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          const std::int64_t first = static_cast<std::int64_t>(index(i)) * kPack<T>;
          vectors[i] = load_narrow<kWidth>(row_ + first, bytes_left<T>(cols_, first));
        }
      });
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if constexpr (kAccess == Access::kStrided) {
          vectors[i] = elements(index(i));
        } else {
          vectors[i] = index(i) < vectors_ ? read_vector(address(index(i))) : uint4{0, 0, 0, 0};
        }
      }
    }
  }
  __device__ uint4 load(int index) const {
    uint4 vector[1];
    fetch(vector, [=](int) { return index; });
    return vector[0];
  }

  // kAligned: the address of a vector.
  __device__ const uint4* address(int index) const {
    return reinterpret_cast<const uint4*>(row_) + index;
  }

 private:
  __device__ uint4 elements(int index) const {
    if (index >= vectors_) return {0u, 0u, 0u, 0u};
    const std::int64_t first = static_cast<std::int64_t>(index) * kPack<T>;
    const std::int64_t stride = array_->col_stride;
    return load_elements(row_ + first * stride, stride, cols_ - first);
  }

  const T* row_;
  int vectors_;
  int width_ = 0;  // kUnaligned: of a load, in bytes
  const RowArray* array_ = nullptr;
  std::int64_t cols_ = 0;
};

// Writes one row.
template <class T, Access kAccess>
class RowWriter {
 public:
  __device__ RowWriter(T* row, const RowArray& array, int vectors, std::int64_t cols)
      : row_(row), vectors_(vectors) {
    if constexpr (kAccess != Access::kAligned) {
      array_ = &array;
      cols_ = cols;
    }
    if constexpr (kAccess == Access::kUnaligned)
      width_ = narrow_width(row, cols * std::int64_t{sizeof(T)});
  }

  // Stores one vector. Nothing outside the row is written.
  __device__ void store(int index, const uint4& vector) const {
    if (index >= vectors_) return;
    if constexpr (kAccess == Access::kAligned) {
      reinterpret_cast<uint4*>(row_)[index] = vector;
      return;
    }
    const std::int64_t first = static_cast<std::int64_t>(index) * kPack<T>;
    if constexpr (kAccess == Access::kUnaligned) {
      with_width<int{sizeof(T)}>(width_, [&]<int kWidth>() {
        store_narrow<kWidth>(row_ + first, vector, bytes_left<T>(cols_, first));
      });
    } else {
      const std::int64_t stride = array_->col_stride;
      store_elements(row_ + first * stride, stride, cols_ - first, vector);
    }
  }

 private:
  T* row_;
  int vectors_;
  int width_ = 0;  // as in RowReader
  const RowArray* array_ = nullptr;
  std::int64_t cols_ = 0;
};

}  // namespace membound::cuda
