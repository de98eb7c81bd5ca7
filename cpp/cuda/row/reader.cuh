// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Readers and writers of rows as sequences of 16-byte vectors. Vector c holds elements [c * kPack,
// (c + 1) * kPack) whatever the row's alignment or stride. The same thread therefore sums the same
// elements, and the bits of a result do not depend on the layout.
#include <cstdint>

#include "core/layout.hpp"
#include "cuda/launch/cache_hint.cuh"
#include "cuda/row/convert.cuh"
#include "cuda/row/narrow_vectors.cuh"
#include "cuda/row/realign.cuh"
#include "cuda/row/split.hpp"

namespace membound::cuda {

enum class Access {
  kAligned,    // at most two row axes, unit column stride, 16-byte aligned rows of whole vectors
  k4Byte,      // unit column stride, rows of whole 4-byte words, loaded word by word
  k2Byte,      // unit column stride, 2-byte elements; words may be half outside the row
  kUnaligned,  // unit column stride, any alignment and width, out of aligned 16-byte blocks
  kStrided,    // any column stride, element by element
};

template <Access kAccess>
inline constexpr bool kNarrow = kAccess == Access::k4Byte || kAccess == Access::k2Byte;
// The starts and lengths of rows are multiples of this many bytes.
template <class T, Access kAccess>
inline constexpr int kStep = kAccess == Access::k4Byte ? 4 : int{sizeof(T)};

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

// Vectors of a thread as they were loaded, before realignment.
template <Access kAccess, int kCount>
struct RawVectors {
  uint4 low[kCount];
};
template <Access kAccess, int kCount>
  requires kNarrow<kAccess>
struct RawVectors<kAccess, kCount> {
  NarrowVectors low[kCount];
};
template <int kCount>
struct RawVectors<Access::kUnaligned, kCount> {
  uint4 low[kCount];
  uint4 high[kCount];
  uint4 end;  // the block in which the array ends
};

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
    if constexpr (kNarrow<kAccess>) shift_ = narrow_shift<kStep<T, kAccess>>(row);
    if constexpr (kAccess == Access::kUnaligned) {
      shift_ = shift_of(row);
      const std::int64_t whole = (array.end - blocks()) / kVectorBytes;
      readable_ = whole <= vectors ? static_cast<int>(whole) : vectors + 1;
    }
  }

  // Issues the loads of the vectors index(0) to index(kCount - 1). vectors() unpacks them later, so
  // that all loads of a thread are in flight before the first is used.
  template <int kCount, class Index>
  __device__ void fetch(RawVectors<kAccess, kCount>& raw, Index index) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if constexpr (kAccess == Access::kStrided) {
        raw.low[i] = elements(index(i));
      } else if constexpr (kAccess == Access::kAligned) {
        raw.low[i] = index(i) < vectors_ ? read_vector(address(index(i))) : uint4{0, 0, 0, 0};
      } else if constexpr (kNarrow<kAccess>) {
        const std::int64_t first = static_cast<std::int64_t>(index(i)) * kPack<T>;
        raw.low[i] =
            load_narrow<kStep<T, kAccess>>(row_ + first, shift_, bytes_left<T>(cols_, first));
      } else {
        // Bytes of adjacent rows may come along and are dropped; nothing past the array is read.
        // The rest stays unset: zeros would make one load wait for the other (116 -> 121 us).
        const uint4* at = with_evict_last(block(index(i)));
        if (index(i) < readable_ && index(i) < vectors_) raw.low[i] = at[0];
        if (index(i) + 1 < readable_) raw.high[i] = at[1];
      }
    }
  }
  // Called before vectors(): loads the block in which the array ends, after all other loads that
  // are issued by then.
  template <int kCount, class Index>
  __device__ void fetch_end(RawVectors<kAccess, kCount>& raw, Index index) const {
    if constexpr (kAccess == Access::kUnaligned) {
      if (!ends_array() || index(kCount - 1) + 1 < readable_) return;
      const std::int64_t left = array_->end - blocks();
      load_bytes<sizeof(T)>(raw.end, block(readable_), static_cast<int>(left % kVectorBytes));
    }
  }
  template <bool kUniform, int kCount, class Index>
  __device__ void vectors(RawVectors<kAccess, kCount>& raw, uint4 (&vectors)[kCount],
                          Index index) const {
    if constexpr (kNarrow<kAccess>) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) vectors[i] = vector_of(raw.low[i], shift_);
    } else if constexpr (kAccess != Access::kUnaligned) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) vectors[i] = raw.low[i];
    } else {
      if (ends_array()) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          if (index(i) == readable_) raw.low[i] = raw.end;
          if (index(i) + 1 == readable_) raw.high[i] = raw.end;
        }
      }
      with_shift<kUniform>(shift_, [&](auto realign) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) vectors[i] = realign(raw.low[i], raw.high[i]);
      });
      drop_past_end(vectors, index);
    }
  }

  // kUnaligned: zeroes what is past the row; the last index is the largest. Lanes without vectors
  // are common in narrow rows and take no branch; the row's last vector takes one.
  template <int kCount, class Index>
  __device__ void drop_past_end(uint4 (&vectors)[kCount], Index index) const {
    const int last = vectors_ - 1;
    if (index(kCount - 1) < last) return;
    bool has_last = false;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (index(i) > last) vectors[i] = {0u, 0u, 0u, 0u};
      has_last = has_last || index(i) == last;
    }
    if (!has_last) return;
    const std::uint32_t left =
        static_cast<std::uint32_t>(cols_) - static_cast<std::uint32_t>(last) * kPack<T>;
    const uint4 mask = first_bytes({~0u, ~0u, ~0u, ~0u}, static_cast<int>(left * sizeof(T)));
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const bool cut = index(i) == last;
      vectors[i].x &= cut ? mask.x : ~0u;
      vectors[i].y &= cut ? mask.y : ~0u;
      vectors[i].z &= cut ? mask.z : ~0u;
      vectors[i].w &= cut ? mask.w : ~0u;
    }
  }

  // kAligned: the address of a vector.
  __device__ const uint4* address(int index) const {
    return reinterpret_cast<const uint4*>(row_) + index;
  }

  // kUnaligned: the aligned blocks that a row touches. Vector c is bytes [shift, shift + 16) of
  // blocks c and c + 1.
  __device__ int shift() const { return shift_; }
  __device__ const uint4* block(int index) const {
    return reinterpret_cast<const uint4*>(blocks()) + index;
  }

  __device__ uint4 load(int index) const {
    RawVectors<kAccess, 1> raw;
    uint4 vector[1];
    fetch(raw, [=](int) { return index; });
    fetch_end(raw, [=](int) { return index; });
    vectors<false>(raw, vector, [=](int) { return index; });
    return vector[0];
  }
  // Loads one vector that every thread reads (a broadcast). Unaligned, loading its elements takes
  // fewer registers and instructions than realigning two blocks.
  __device__ uint4 load_broadcast(int index) const {
    if constexpr (kAccess != Access::kUnaligned) return load(index);
    const std::int64_t first = static_cast<std::int64_t>(index) * kPack<T>;
    VectorOf<T> loaded;
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      if (first + i < cols_) loaded.elements[i] = row_[first + i];
    }
    return loaded.vector;
  }

 private:
  // kUnaligned: whether the array ends before the last block of the row does.
  __device__ bool ends_array() const { return readable_ <= vectors_; }
  __device__ uint4 elements(int index) const {
    if (index >= vectors_) return {0u, 0u, 0u, 0u};
    const std::int64_t first = static_cast<std::int64_t>(index) * kPack<T>;
    const std::int64_t stride = array_->col_stride;
    return load_elements(row_ + first * stride, stride, cols_ - first);
  }
  __device__ const char* blocks() const { return reinterpret_cast<const char*>(row_) - shift_; }

  const T* row_;
  int vectors_;
  int shift_ = 0;     // k2Byte: bits into a word; kUnaligned: bytes into a block
  int readable_ = 0;  // kUnaligned: whole blocks from the row's first to the array's end
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
  }

  // Stores one vector. Nothing outside the row is written.
  __device__ void store(int index, const uint4& vector) const {
    static_assert(kAccess != Access::kUnaligned);
    if (index >= vectors_) return;
    if constexpr (kAccess == Access::kAligned) {
      reinterpret_cast<uint4*>(row_)[index] = vector;
      return;
    }
    const std::int64_t first = static_cast<std::int64_t>(index) * kPack<T>;
    if constexpr (kNarrow<kAccess>) {
      store_narrow<kStep<T, kAccess>>(row_ + first, vector, bytes_left<T>(cols_, first));
    } else {
      const std::int64_t stride = array_->col_stride;
      store_elements(row_ + first * stride, stride, cols_ - first, vector);
    }
  }

  // kUnaligned: all lanes store kCount * lanes staged vectors from vector `first` on. Whole blocks
  // are stored as vectors, blocks shared with other data by elements.
  template <bool kUniform, int kCount>
  __device__ void store_staged(const uint4* staged, int first, int lanes, int lane) const {
    T* const to = row_ + static_cast<std::int64_t>(first) * kPack<T>;
    const std::int64_t left = cols_ - static_cast<std::int64_t>(first) * kPack<T>;
    const int held = kCount * lanes * kPack<T>;
    const int elements = left < held ? static_cast<int>(left) : held;
    const int shift = shift_of(to);
    const int to_boundary = static_cast<int>((kVectorBytes - shift) % kVectorBytes / sizeof(T));
    const int head = elements < to_boundary ? elements : to_boundary;  // negative where `left` is
    const int blocks = (elements - head) / kPack<T>;
    const T* from = reinterpret_cast<const T*>(staged);
    const int tail = head + blocks * kPack<T>;
    if (lanes >= 2 * kPack<T>) {
      // The first kPack lanes store the head, the next kPack lanes the tail.
      const int at = lane < kPack<T> ? lane : tail + lane - kPack<T>;
      if (at < (lane < kPack<T> ? head : elements)) to[at] = from[at];
    } else {
#pragma unroll 1
      for (int i = lane; i < head; i += lanes) to[i] = from[i];
#pragma unroll 1
      for (int i = tail + lane; i < elements; i += lanes) to[i] = from[i];
    }
    constexpr int kAtOnce = kCount < 2 ? 1 : 2;  // loads before the first store
    const int next = shift != 0;
    uint4* to_blocks = reinterpret_cast<uint4*>(to + to_boundary);
    with_shift<kUniform>((kVectorBytes - shift) % kVectorBytes, [&](auto realign) {
#pragma unroll
      for (int first_of = 0; first_of < kCount; first_of += kAtOnce) {
        uint4 low[kAtOnce], high[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int block = (first_of + i) * lanes + lane;
          if (block < blocks) {
            low[i] = staged[block];
            high[i] = staged[block + next];
          }
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int block = (first_of + i) * lanes + lane;
          if (block < blocks) to_blocks[block] = realign(low[i], high[i]);
        }
      }
    });
  }

 private:
  T* row_;
  int vectors_;
  const RowArray* array_ = nullptr;
  std::int64_t cols_ = 0;
};

}  // namespace membound::cuda
