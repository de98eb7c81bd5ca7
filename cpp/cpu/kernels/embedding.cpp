// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/embedding.hpp"

#include "cpu/row.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

// Rows ahead whose first lines are asked for: a table is larger than the cache, and the next row
// may be anywhere.
constexpr std::int64_t kRowsAhead = 4;
constexpr std::int64_t kBytesAsked = 512;

// Elements that are widened at once.
constexpr std::int64_t kWidened = 256;

// Whole rows of bytes. A store around the cache wants its vector aligned.
[[gnu::noinline]] void copy_bytes(const char* from, char* to, std::int64_t bytes,
                                  bool around_cache) {
  if (!around_cache) {
    __builtin_memcpy(to, from, bytes);
    return;
  }
  constexpr std::int64_t kVector = kVectorBytes;
  const std::int64_t behind = reinterpret_cast<std::uintptr_t>(to) % kVector;
  std::int64_t at = behind ? kVector - behind : 0;
  at = at < bytes ? at : bytes;
  __builtin_memcpy(to, from, at);
  for (; at + 4 * kVector <= bytes; at += 4 * kVector) {
    F32 held[4];
    for (int i = 0; i < 4; ++i) held[i] = load<F32>(from + at + i * kVector);
    for (int i = 0; i < 4; ++i) stream(to + at + i * kVector, held[i]);
  }
  for (; at + kVector <= bytes; at += kVector) stream(to + at, load<F32>(from + at));
  __builtin_memcpy(to + at, from + at, bytes - at);
}

// Between rows and numbers in sequence, which Lanes<BFloat16> does not give.
MEMBOUND_ALWAYS_INLINE void widen(const BFloat16* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = bit_copy<float>(static_cast<std::uint32_t>(from[i].bits) << 16);
  }
}
MEMBOUND_ALWAYS_INLINE void narrow(const float* from, std::int64_t count, BFloat16* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = bit_copy<std::uint32_t>(from[i]);
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;  // any: a float32 weight holds it
    to[i].bits = static_cast<std::uint16_t>(is_nan ? bits >> 16 | 0x40u : rounded);
  }
}
template <class T, class A>
MEMBOUND_ALWAYS_INLINE void widen(const T* from, std::int64_t count, A* to) {
  constexpr std::int64_t kStep = Lanes<T>::kStep;
  std::int64_t at = 0;
  for (; at + kStep <= count; at += kStep) store_pair(to + at, Lanes<T>::read(from + at));
  if (at == count) return;
  A last[kStep];
  store_pair(last, read_partial(from + at, count - at));
  __builtin_memcpy(to + at, last, (count - at) * sizeof(A));
}
template <class T, class A>
MEMBOUND_ALWAYS_INLINE void narrow(const A* from, std::int64_t count, T* to) {
  constexpr std::int64_t kStep = Lanes<T>::kStep;
  using V = typename Lanes<T>::V;
  std::int64_t at = 0;
  for (; at + kStep <= count; at += kStep) Lanes<T>::write(to + at, load_pair<V>(from + at));
  if (at == count) return;
  A last[kStep] = {};
  __builtin_memcpy(last, from + at, (count - at) * sizeof(A));
  write_partial(to + at, load_pair<V>(last), count - at);
}

// Elements [first, first + count) of a row in the dtype of the arithmetic.
template <class T, class A>
MEMBOUND_ALWAYS_INLINE void widen_row(const T* row, std::int64_t stride, std::int64_t first,
                                      std::int64_t count, A* to) {
  T copy[kWidened];
  widen(gather(row, stride, first, count, copy), count, to);
}
template <class A>
[[gnu::noinline]] void widen_any(DType dtype, const void* row, std::int64_t stride,
                                 std::int64_t first, std::int64_t count, A* to) {
  if constexpr (sizeof(A) == 8) {
    widen_row(static_cast<const double*>(row), stride, first, count, to);
  } else {
    switch (dtype) {
      case DType::kFloat16:
        return widen_row(static_cast<const Float16*>(row), stride, first, count, to);
      case DType::kBFloat16:
        return widen_row(static_cast<const BFloat16*>(row), stride, first, count, to);
      default: return widen_row(static_cast<const float*>(row), stride, first, count, to);
    }
  }
}

// And back, with one rounding.
template <class T, class A>
MEMBOUND_ALWAYS_INLINE void narrow_row(const A* from, T* row, std::int64_t stride,
                                       std::int64_t first, std::int64_t count) {
  if (stride == 1) return narrow(from, count, row + first);
  T copy[kWidened];
  narrow(from, count, copy);
  scatter(row, stride, first, count, copy);
}
template <class A>
[[gnu::noinline]] void narrow_any(DType dtype, const A* from, void* row, std::int64_t stride,
                                  std::int64_t first, std::int64_t count) {
  if constexpr (sizeof(A) == 8) {
    narrow_row(from, static_cast<double*>(row), stride, first, count);
  } else {
    switch (dtype) {
      case DType::kFloat16:
        return narrow_row(from, static_cast<Float16*>(row), stride, first, count);
      case DType::kBFloat16:
        return narrow_row(from, static_cast<BFloat16*>(row), stride, first, count);
      default: return narrow_row(from, static_cast<float*>(row), stride, first, count);
    }
  }
}

template <class A>
void compute_row(const EmbeddingRows& rows, std::int64_t row) {
  const A scale = static_cast<A>(rows.scale);
  const void* position = rows.position ? rows.position[row] : nullptr;
  alignas(kVectorBytes) A values[kWidened], added[kWidened];
  for (std::int64_t first = 0; first < rows.cols; first += kWidened) {
    const std::int64_t left = rows.cols - first, count = left < kWidened ? left : kWidened;
    widen_any(rows.dtype, rows.weight[row], rows.weight_col_stride, first, count, values);
    for (std::int64_t i = 0; i < count; ++i) values[i] *= scale;
    if (position != nullptr) {
      widen_any(rows.dtype, position, rows.position_col_stride, first, count, added);
      for (std::int64_t i = 0; i < count; ++i) values[i] += added[i];
    }
    narrow_any(rows.out_dtype, values, rows.out[row], rows.out_col_stride, first, count);
  }
}

template <class Bits>
void copy_apart(const EmbeddingRows& rows, std::int64_t row) {
  const Bits* from = static_cast<const Bits*>(rows.weight[row]);
  Bits* to = static_cast<Bits*>(rows.out[row]);
  for (std::int64_t i = 0; i < rows.cols; ++i) {
    to[i * rows.out_col_stride] = from ? from[i * rows.weight_col_stride] : Bits{};
  }
}

void write_row(const EmbeddingRows& rows, std::int64_t row) {
  const std::int64_t size = static_cast<std::int64_t>(dtype_size(rows.out_dtype));
  const bool has_row = rows.weight[row] != nullptr;
  if (has_row && !rows.copies) {
    return rows.dtype == DType::kFloat64 ? compute_row<double>(rows, row)
                                         : compute_row<float>(rows, row);
  }
  if (rows.out_col_stride == 1 && (!has_row || rows.weight_col_stride == 1)) {
    char* to = static_cast<char*>(rows.out[row]);
    if (has_row) {
      copy_bytes(static_cast<const char*>(rows.weight[row]), to, rows.cols * size,
                 rows.bypass_cache);
    } else {
      __builtin_memset(to, 0, rows.cols * size);
    }
    return;
  }
  size == 2   ? copy_apart<std::uint16_t>(rows, row)
  : size == 4 ? copy_apart<std::uint32_t>(rows, row)
              : copy_apart<std::uint64_t>(rows, row);
}

}  // namespace

void embedding(const EmbeddingRows& rows) {
  const std::int64_t row_bytes = rows.cols * static_cast<std::int64_t>(dtype_size(rows.dtype));
  const std::int64_t asked = row_bytes < kBytesAsked ? row_bytes : kBytesAsked;
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    if (row + kRowsAhead < rows.rows && rows.weight[row + kRowsAhead] != nullptr) {
      ask_for<2>(rows.weight[row + kRowsAhead], 0, asked);
    }
    write_row(rows, row);
  }
  if (rows.bypass_cache) stream_fence();
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
