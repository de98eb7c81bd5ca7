// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "ops/array/problems.hpp"

// Elements of an operand in C order, to and from contiguous memory, as raw bytes.
namespace membound::cpu {

inline std::int64_t size_in_bytes(DType dtype) {
  return static_cast<std::int64_t>(dtype_size(dtype));
}

// Makes earlier non-temporal stores visible to other threads.
inline void fence_stores() {
#if defined(__x86_64__)
  _mm_sfence();
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

// Of an element, counted in C order.
inline std::int64_t offset_of(const ArrayDims& dims, const std::int64_t* strides, std::int64_t at) {
  std::int64_t offset = 0;
  for (int axis = dims.rank - 1; axis >= 0; at /= dims.shape[axis--])
    offset += at % dims.shape[axis] * strides[axis];
  return offset;
}

// Calls body(element offset, count) for runs along the last dimension that make up the elements
// [first, first + count). dims has at least one dimension.
template <class Body>
void each_run(const ArrayDims& dims, const std::int64_t* strides, std::int64_t first,
              std::int64_t count, Body body) {
  const int last = dims.rank - 1;
  std::int64_t place[kMaxRank];
  std::int64_t offset = 0;
  for (int axis = last; axis >= 0; --axis) {
    place[axis] = first % dims.shape[axis];
    first /= dims.shape[axis];
    offset += place[axis] * strides[axis];
  }
  for (;;) {
    const std::int64_t left = dims.shape[last] - place[last];
    const std::int64_t run = left < count ? left : count;
    body(offset, run);
    count -= run;
    if (count == 0) return;
    offset -= place[last] * strides[last];
    place[last] = 0;
    for (int axis = last - 1; axis >= 0; --axis) {
      offset += strides[axis];
      if (++place[axis] < dims.shape[axis]) break;
      offset -= dims.shape[axis] * strides[axis];
      place[axis] = 0;
    }
  }
}

// Calls body(T{}) with an unsigned integer of that many bytes.
template <class Body>
void with_bytes(std::int64_t bytes, Body body) {
  switch (bytes) {
    case 1: return body(std::uint8_t{});
    case 2: return body(std::uint16_t{});
    case 4: return body(std::uint32_t{});
    default: return body(std::uint64_t{});
  }
}

// to[i] = x[i * stride].
template <class T>
void gather_run(const T* x, std::int64_t stride, std::int64_t count, T* to) {
  if (stride == 1 && count >= 16) {
    std::memcpy(to, x, static_cast<std::size_t>(count) * sizeof(T));
  } else if (stride == 0) {
    std::fill_n(to, count, *x);
  } else if (stride == 2) {  // by shuffles
#pragma GCC unroll 4
    for (std::int64_t i = 0; i < count; ++i) to[i] = x[2 * i];
  } else if (stride == -1) {  // by shuffles
    for (std::int64_t i = 0; i < count; ++i) to[i] = x[-i];
  } else {
#pragma GCC unroll 4
    for (std::int64_t i = 0; i < count; ++i) to[i] = x[i * stride];
  }
}

inline void gather_elements(const ArrayDims& dims, const ArrayOperand& from, std::int64_t first,
                            std::int64_t count, void* packed) {
  const std::int64_t stride = from.strides[dims.rank - 1];
  with_bytes(size_in_bytes(from.dtype), [&]<class T>(T) {
    const T* data = static_cast<const T*>(from.data);
    T* to = static_cast<T*>(packed);
    each_run(dims, from.strides, first, count, [&](std::int64_t offset, std::int64_t run) {
      gather_run(data + offset, stride, run, to);
      to += run;
    });
  });
}

inline void scatter_elements(const ArrayDims& dims, const ArrayOperand& result, std::int64_t first,
                             std::int64_t count, const void* packed) {
  const std::int64_t stride = result.strides[dims.rank - 1];
  with_bytes(size_in_bytes(result.dtype), [&]<class T>(T) {
    T* data = static_cast<T*>(result.data);
    const T* from = static_cast<const T*>(packed);
    each_run(dims, result.strides, first, count, [&](std::int64_t offset, std::int64_t run) {
      T* y = data + offset;
      for (std::int64_t i = 0; i < run; ++i) y[i * stride] = from[i];
      from += run;
    });
  });
}

// Element i of the C order lies at i times the last stride: one even run.
inline bool is_one_run(const ArrayDims& dims, const std::int64_t* strides) {
  for (int axis = 0; axis + 1 < dims.rank; ++axis) {
    if (strides[axis] != strides[axis + 1] * dims.shape[axis + 1]) return false;
  }
  return true;
}
inline bool is_dense(const ArrayDims& dims, const std::int64_t* strides) {
  return dims.rank == 0 || (strides[dims.rank - 1] == 1 && is_one_run(dims, strides));
}

}  // namespace membound::cpu
