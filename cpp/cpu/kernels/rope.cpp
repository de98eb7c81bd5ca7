// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/rope.hpp"

#include "cpu/prefetch.hpp"
#include "cpu/rotation.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

// How the elements of a head are accessed: contiguous, contiguous with non-temporal stores, or
// strided.
enum class Access { kPlain, kNonTemporal, kStrided };

template <class T, Access kAccess>
MEMBOUND_ALWAYS_INLINE Pair<typename Lanes<T>::V> read_from(const T* from, std::int64_t stride,
                                                            std::int64_t count) {
  if constexpr (kAccess == Access::kStrided) {
    T padded[Lanes<T>::kStep] = {};
    for (std::int64_t i = 0; i < count; ++i) padded[i] = from[i * stride];
    return Lanes<T>::read(padded);
  } else {
    return read_some(from, count);
  }
}

template <class T, Access kAccess>
MEMBOUND_ALWAYS_INLINE void write_to(T* to, std::int64_t stride, std::int64_t count,
                                     Pair<typename Lanes<T>::V> value) {
  if constexpr (kAccess == Access::kStrided) {
    T padded[Lanes<T>::kStep];
    Lanes<T>::write(padded, value);
    for (std::int64_t i = 0; i < count; ++i) to[i * stride] = padded[i];
  } else if (count == Lanes<T>::kStep) {
    write_step<kAccess == Access::kNonTemporal>(to, value);
  } else {
    write_partial(to, value, count);
  }
}

// Rotates pairs that are half of rotary_dim apart. Both elements are read before either is written,
// so it works in place.
template <class T, Access kAccess>
MEMBOUND_ALWAYS_INLINE void rotate_halves(const RopeRows& rows, const T* x, T* out,
                                          const typename Lanes<T>::A* cos,
                                          const typename Lanes<T>::A* sin) {
  using V = typename Lanes<T>::V;
  constexpr std::int64_t kStep = Lanes<T>::kStep;
  const bool strided = kAccess == Access::kStrided;
  const std::int64_t x_stride = strided ? rows.x_dim_stride : 1;
  const std::int64_t out_stride = strided ? rows.out_dim_stride : 1;
  const std::int64_t half = rows.rotary_dim / 2;
  const auto rotate = [&](std::int64_t j, std::int64_t count) MEMBOUND_INLINED {
    const auto a = read_from<T, kAccess>(x + j * x_stride, x_stride, count);
    const auto b = read_from<T, kAccess>(x + (half + j) * x_stride, x_stride, count);
    const Halves<V> rotated = rotated_halves<V>(a, b, cos + j, sin + j, rows.table_second);
    write_to<T, kAccess>(out + j * out_stride, out_stride, count, rotated.first);
    write_to<T, kAccess>(out + (half + j) * out_stride, out_stride, count, rotated.second);
  };
  std::int64_t j = 0;
  for (; j + kStep <= rows.pairs; j += kStep) rotate(j, kStep);
  if (j < rows.pairs) rotate(j, rows.pairs - j);
}

// Rotates interleaved pairs.
template <class T, Access kAccess>
MEMBOUND_ALWAYS_INLINE void rotate_interleaved(const RopeRows& rows, const T* x, T* out,
                                               const typename Lanes<T>::A* cos,
                                               const typename Lanes<T>::A* sin) {
  constexpr std::int64_t kStep = Lanes<T>::kStep;
  const bool strided = kAccess == Access::kStrided;
  const std::int64_t x_stride = strided ? rows.x_dim_stride : 1;
  const std::int64_t out_stride = strided ? rows.out_dim_stride : 1;
  const auto rotate = [&](std::int64_t at, std::int64_t count) MEMBOUND_INLINED {
    const auto value = read_from<T, kAccess>(x + at * x_stride, x_stride, count);
    write_to<T, kAccess>(out + at * out_stride, out_stride, count,
                         rotated_interleaved<T>(value, at, cos, sin, rows.table_second));
  };
  const std::int64_t elements = 2 * rows.pairs;
  std::int64_t at = 0;
  for (; at + kStep <= elements; at += kStep) rotate(at, kStep);
  if (at < elements) rotate(at, elements - at);
}

template <class T>
void copy_elements(const RopeRows& rows, const T* x, T* out, std::int64_t first,
                   std::int64_t last) {
  if (rows.x_dim_stride == 1 && rows.out_dim_stride == 1) {
    __builtin_memcpy(out + first, x + first, (last - first) * sizeof(T));
  } else {
    for (std::int64_t i = first; i < last; ++i) {
      out[i * rows.out_dim_stride] = x[i * rows.x_dim_stride];
    }
  }
}

// One head of one token.
template <class T, bool kInterleaved, Access kAccess>
MEMBOUND_ALWAYS_INLINE void rotate_head(const RopeRows& rows, std::int64_t token,
                                        std::int64_t head) {
  using A = typename Lanes<T>::A;
  const T* x =
      static_cast<const T*>(rows.x) + token * rows.x_token_stride + head * rows.x_head_stride;
  T* out = static_cast<T*>(rows.out) + token * rows.out_token_stride + head * rows.out_head_stride;
  const A* cos = static_cast<const A*>(rows.cos) + token * rows.table_stride;
  const A* sin = static_cast<const A*>(rows.sin) + token * rows.table_stride;
  const std::int64_t first =
      rows.rotary_offset + (kInterleaved ? 2 * rows.first_pair : rows.first_pair);
  if constexpr (kAccess != Access::kStrided) {
    prefetch_ahead(x, rows.head_dim * sizeof(T), rows.prefetch_distance);
  }
  const T* x_pairs = x + first * rows.x_dim_stride;
  T* out_pairs = out + first * rows.out_dim_stride;
  if constexpr (kInterleaved) {
    rotate_interleaved<T, kAccess>(rows, x_pairs, out_pairs, cos, sin);
  } else {
    rotate_halves<T, kAccess>(rows, x_pairs, out_pairs, cos, sin);
  }
  if (rows.copy_rest) {
    copy_elements(rows, x, out, 0, rows.rotary_offset);
    copy_elements(rows, x, out, rows.rotary_offset + rows.rotary_dim, rows.head_dim);
  }
}

std::int64_t magnitude(std::int64_t value) { return value < 0 ? -value : value; }

// Loops in memory order.
template <class T, bool kInterleaved, Access kAccess>
void rotate_heads(const RopeRows& rows) {
  if (magnitude(rows.x_token_stride) < magnitude(rows.x_head_stride)) {
    for (std::int64_t head = 0; head < rows.heads; ++head) {
      for (std::int64_t token = 0; token < rows.tokens; ++token) {
        rotate_head<T, kInterleaved, kAccess>(rows, token, head);
      }
    }
  } else {
    for (std::int64_t token = 0; token < rows.tokens; ++token) {
      for (std::int64_t head = 0; head < rows.heads; ++head) {
        rotate_head<T, kInterleaved, kAccess>(rows, token, head);
      }
    }
  }
  if constexpr (kAccess == Access::kNonTemporal) stream_fence();
}

// True if every whole step that is written is vector-aligned.
template <class T>
bool can_store_non_temporal(const RopeRows& rows) {
  constexpr std::int64_t kElements = sizeof(typename Lanes<T>::V) / sizeof(T);
  const std::int64_t starts = rows.out_token_stride | rows.out_head_stride | rows.rotary_offset |
                              (rows.interleaved ? 0 : rows.rotary_dim / 2) |
                              (rows.interleaved ? 2 : 1) * rows.first_pair;
  return reinterpret_cast<std::uintptr_t>(rows.out) % sizeof(typename Lanes<T>::V) == 0 &&
         starts % kElements == 0;
}

template <class T, bool kInterleaved>
void rotate_by_access(const RopeRows& rows) {
  if (rows.x_dim_stride != 1 || rows.out_dim_stride != 1) {
    rotate_heads<T, kInterleaved, Access::kStrided>(rows);
  } else if (rows.bypass_cache && can_store_non_temporal<T>(rows)) {
    rotate_heads<T, kInterleaved, Access::kNonTemporal>(rows);
  } else {
    rotate_heads<T, kInterleaved, Access::kPlain>(rows);
  }
}

template <class T>
void rotate(const RopeRows& rows) {
  rows.interleaved ? rotate_by_access<T, true>(rows) : rotate_by_access<T, false>(rows);
}

}  // namespace

void rope(const RopeRows& rows) {
  switch (rows.dtype) {
    case DType::kFloat16: return rotate<Float16>(rows);
    case DType::kBFloat16: return rotate<BFloat16>(rows);
    case DType::kFloat32: return rotate<float>(rows);
    default: return rotate<double>(rows);
  }
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
