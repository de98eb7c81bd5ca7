// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/embedding.hpp"

#include "cpu/copy_bytes.hpp"
#include "cpu/widen.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

// How many rows ahead the first cache lines are prefetched: a table exceeds the cache, and the
// hardware cannot predict the next row.
constexpr std::int64_t kRowsAhead = 4;
constexpr std::int64_t kPrefetchedBytes = 512;

// The common case, contiguous rows of one dtype: no buffer between reading and writing (6.2 -> 2.9
// ms).
template <class T>
void compute_contiguous(const EmbeddingRows& rows, std::int64_t row) {
  using V = typename Lanes<T>::V;
  const auto scale = static_cast<typename Lanes<T>::A>(rows.scale);
  const T* weight = static_cast<const T*>(rows.weight[row]);
  const T* added = rows.position ? static_cast<const T*>(rows.position[row]) : nullptr;
  T* out = static_cast<T*>(rows.out[row]);
  for (std::int64_t col = 0; col < rows.cols; col += Lanes<T>::kStep) {
    const std::int64_t left = rows.cols - col;
    const std::int64_t count = left < Lanes<T>::kStep ? left : Lanes<T>::kStep;
    Pair<V> value = read_some(weight + col, count);
    value = {value.first * scale, value.second * scale};
    if (added != nullptr) {
      const Pair<V> more = read_some(added + col, count);
      value = {value.first + more.first, value.second + more.second};
    }
    count == Lanes<T>::kStep ? Lanes<T>::write(out + col, value)
                             : write_partial(out + col, value, count);
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
void copy_strided(const EmbeddingRows& rows, std::int64_t row) {
  const Bits* from = static_cast<const Bits*>(rows.weight[row]);
  Bits* to = static_cast<Bits*>(rows.out[row]);
  for (std::int64_t i = 0; i < rows.cols; ++i) {
    to[i * rows.out_col_stride] = from ? from[i * rows.weight_col_stride] : Bits{};
  }
}

// size: bytes of an element of out.
void write_row(const EmbeddingRows& rows, std::int64_t row, std::int64_t size) {
  const bool has_row = rows.weight[row] != nullptr;
  if (has_row && !rows.copies) {
    const bool contiguous = rows.weight_col_stride == 1 && rows.out_col_stride == 1 &&
                            (rows.position == nullptr || rows.position_col_stride == 1);
    if (contiguous && rows.dtype == rows.out_dtype) {
      switch (rows.dtype) {
        case DType::kFloat16: return compute_contiguous<Float16>(rows, row);
        case DType::kBFloat16: return compute_contiguous<BFloat16>(rows, row);
        case DType::kFloat32: return compute_contiguous<float>(rows, row);
        default: return compute_contiguous<double>(rows, row);
      }
    }
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
  size == 2   ? copy_strided<std::uint16_t>(rows, row)
  : size == 4 ? copy_strided<std::uint32_t>(rows, row)
              : copy_strided<std::uint64_t>(rows, row);
}

// Copies narrow rows without a call for each.
void copy_narrow_rows(const EmbeddingRows& rows, std::int64_t bytes) {
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    if (row + kRowsAhead < rows.rows) __builtin_prefetch(rows.weight[row + kRowsAhead], 0, 2);
    const auto* from = static_cast<const char*>(rows.weight[row]);
    auto* to = static_cast<char*>(rows.out[row]);
    from != nullptr ? copy_narrow(from, to, bytes)
                    : static_cast<void>(__builtin_memset(to, 0, bytes));
  }
}

}  // namespace

void embedding(const EmbeddingRows& rows) {
  const std::int64_t row_bytes = rows.cols * static_cast<std::int64_t>(dtype_size(rows.dtype));
  const auto size = static_cast<std::int64_t>(dtype_size(rows.out_dtype));
  const bool contiguous = rows.weight_col_stride == 1 && rows.out_col_stride == 1;
  if (rows.copies && contiguous && row_bytes <= kInlineBytes) {
    copy_narrow_rows(rows, row_bytes);
    if (rows.bypass_cache) stream_fence();
    return;
  }
  const std::int64_t prefetched = row_bytes < kPrefetchedBytes ? row_bytes : kPrefetchedBytes;
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    if (row + kRowsAhead < rows.rows && rows.weight[row + kRowsAhead] != nullptr) {
      prefetch_bytes<2>(rows.weight[row + kRowsAhead], 0, prefetched);
    }
    write_row(rows, row, size);
  }
  if (rows.bypass_cache) stream_fence();
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
