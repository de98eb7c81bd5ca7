// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/embedding_backward.hpp"

#include "core/gradient_tree.hpp"
#include "cpu/copy_bytes.hpp"
#include "cpu/thread_memory.hpp"
#include "cpu/widen.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

// Columns summed at once: the sum stays in the L1 cache, and each token contributes a run of bytes
// long enough for prefetching.
constexpr std::int64_t kTile = 1024;
// Tokens ahead, of this row or the next, whose bytes are prefetched line by line while one is
// added: the hardware cannot predict their addresses. For wide rows the next token is far enough
// ahead.
constexpr std::int64_t kTokensAhead = 12;
constexpr std::int64_t kPrefetchAheadBytes = 4096;
// Rows that are copied: prefetch the first lines only.
constexpr std::int64_t kPrefetched = 512;

template <class T>
const T* later_row(const EmbeddingGradientRow& row, std::int64_t token, std::int64_t count) {
  const std::int64_t rows =
      kPrefetchAheadBytes / (count * static_cast<std::int64_t>(sizeof(T))) + 1;
  const std::int64_t later = token + (rows < kTokensAhead ? rows : kTokensAhead);
  return later < row.count + row.following ? static_cast<const T*>(row.dy[later]) : nullptr;
}

// Elements added at once: whole cache lines and whole steps.
template <class T>
constexpr std::int64_t kAddStep =
    kLine / sizeof(T) > Lanes<T>::kStep ? kLine / sizeof(T) : Lanes<T>::kStep;
MEMBOUND_ALWAYS_INLINE void add_step(const BFloat16* from, float* sum) {
  for (std::int64_t i = 0; i < kAddStep<BFloat16>; ++i) {
    sum[i] += bit_copy<float>(static_cast<std::uint32_t>(from[i].bits) << 16);
  }
}
template <class T, class A>
MEMBOUND_ALWAYS_INLINE void add_step(const T* from, A* sum) {
  using V = typename Lanes<T>::V;
  for (std::int64_t at = 0; at < kAddStep<T>; at += Lanes<T>::kStep) {
    const Pair<V> value = Lanes<T>::read(from + at), before = load_pair<V>(sum + at);
    store_pair(sum + at, Pair<V>{before.first + value.first, before.second + value.second});
  }
}
// sum += from. later: a row that is prefetched meanwhile, or null.
template <class T, class A>
MEMBOUND_ALWAYS_INLINE void add(const T* from, const T* later, std::int64_t count, A* sum) {
  constexpr std::int64_t kBytes = kAddStep<T> * sizeof(T);
  std::int64_t at = 0;
  for (; at + kAddStep<T> <= count; at += kAddStep<T>) {
    if (later != nullptr) prefetch_bytes<2>(later + at, 0, kBytes);
    add_step(from + at, sum + at);
  }
  if (at == count) return;
  T rest[kAddStep<T>] = {};
  __builtin_memcpy(rest, from + at, (count - at) * sizeof(T));
  A sums[kAddStep<T>] = {};
  __builtin_memcpy(sums, sum + at, (count - at) * sizeof(A));
  if (later != nullptr) prefetch_bytes<2>(later + at, 0, kBytes);
  add_step(rest, sums);
  __builtin_memcpy(sum + at, sums, (count - at) * sizeof(A));
}

// Negative zero is the neutral element: adding it keeps even the sign of a zero.
template <class A>
MEMBOUND_ALWAYS_INLINE void clear(A* sum, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) sum[i] = -A{0};
}
template <class A>
MEMBOUND_ALWAYS_INLINE void add_sum(const A* from, std::int64_t count, A* sum) {
  for (std::int64_t i = 0; i < count; ++i) sum[i] += from[i];
}

// Sums tokens [token, last), columns from `first` on.
template <class T, class A>
void sum_block(const EmbeddingGradientRow& row, std::int64_t token, std::int64_t last,
               std::int64_t first, std::int64_t count, A* sum) {
  clear(sum, count);
  for (; token < last; ++token) {
    const T* dy = static_cast<const T*>(row.dy[token]);
    if (row.dy_col_stride == 1) {
      const T* later = later_row<T>(row, token, count);
      add(dy + first, later ? later + first : nullptr, count, sum);
    } else {
      A values[kWidened];
      for (std::int64_t at = 0; at < count; at += kWidened) {
        const std::int64_t some = count - at < kWidened ? count - at : kWidened;
        widen_row(dy, row.dy_col_stride, first + at, some, values);
        add_sum(values, some, sum + at);
      }
    }
  }
}

// Sums a tile in the tree of core/gradient_tree.hpp.
template <class T, class A>
void sum_tile(const EmbeddingGradientRow& row, std::int64_t first, std::int64_t count, A* sum) {
  if (row.count <= kGradientBlock) return sum_block<T>(row, 0, row.count, first, count, sum);
  A* const sums = thread_array<A, kGradientSums * kTile>();
  const std::int64_t blocks = (row.count + kGradientBlock - 1) / kGradientBlock;
  for (std::int64_t block = 0; block < blocks; ++block) {
    const std::int64_t token = block * kGradientBlock, left = row.count - token;
    const std::int64_t last = token + (left < kGradientBlock ? left : kGradientBlock);
    A* const partial_sum = sums + block % kGradientSums * kTile;
    if (block < kGradientSums) {  // the first block of its partial sum
      sum_block<T>(row, token, last, first, count, partial_sum);
    } else {
      sum_block<T>(row, token, last, first, count, sum);
      add_sum(sum, count, partial_sum);
    }
  }
  clear(sum, count);
  for (std::int64_t i = 0; i < blocks && i < kGradientSums; ++i)
    add_sum(sums + i * kTile, count, sum);
}

template <class T, class A>
[[gnu::noinline]] void write_columns(const EmbeddingGradientRow& row) {
  A factor = static_cast<A>(row.scale);
  if (row.by_frequency) factor /= static_cast<A>(row.count);
  alignas(kVectorBytes) A sum[kTile], before[kWidened];
  for (std::int64_t first = row.first; first < row.last; first += kTile) {
    const std::int64_t count = row.last - first < kTile ? row.last - first : kTile;
    sum_tile<T>(row, first, count, sum);
    for (std::int64_t at = 0; at < count; at += kWidened) {
      const std::int64_t some = count - at < kWidened ? count - at : kWidened;
      A* const values = sum + at;
      for (std::int64_t i = 0; i < some; ++i) values[i] *= factor;
      if (row.accumulate) {
        widen_any(row.out_dtype, row.out, row.out_col_stride, first + at, some, before);
        for (std::int64_t i = 0; i < some; ++i) values[i] = before[i] + values[i];
      }
      narrow_any(row.out_dtype, values, row.out, row.out_col_stride, first + at, some);
    }
  }
}

// Shorter runs of zeros use cached stores: rows of 128 bytes take twice as long with non-temporal
// ones.
constexpr std::int64_t kMinNonTemporalZeros = 4096;

// Unaligned at both ends.
void clear_bytes(char* to, std::int64_t bytes, bool non_temporal) {
  constexpr std::int64_t kVector = kVectorBytes;
  if (!non_temporal || bytes < kMinNonTemporalZeros) {
    __builtin_memset(to, 0, bytes);
    return;
  }
  const std::int64_t misalignment = reinterpret_cast<std::uintptr_t>(to) % kVector;
  std::int64_t at = misalignment ? kVector - misalignment : 0;
  at = at < bytes ? at : bytes;
  __builtin_memset(to, 0, at);
  for (; at + kVector <= bytes; at += kVector) stream(to + at, F32{});
  __builtin_memset(to + at, 0, bytes - at);
}

template <class Bits>
void clear_strided(const EmbeddingGradientZeros& rows, std::int64_t row) {
  Bits* to = static_cast<Bits*>(rows.out) + row * rows.row_stride;
  for (std::int64_t i = 0; i < rows.cols; ++i) to[i * rows.col_stride] = Bits{};
}

}  // namespace

void embedding_backward(const EmbeddingGradientRow& row) {
  const auto size = static_cast<std::int64_t>(dtype_size(row.dtype));
  const bool contiguous = row.dy_col_stride == 1 && row.out_col_stride == 1;
  if (row.count == 1 && contiguous && row.dtype == row.out_dtype && row.scale == 1.0 &&
      !row.accumulate) {
    const std::int64_t first = row.first * size, bytes = (row.last - row.first) * size;
    const char* later = later_row<char>(row, 0, bytes);
    if (later != nullptr)
      prefetch_bytes<2>(later, first, first + (bytes < kPrefetched ? bytes : kPrefetched));
    copy_bytes(static_cast<const char*>(row.dy[0]) + first, static_cast<char*>(row.out) + first,
               bytes, /*non_temporal=*/false);
    return;
  }
  switch (row.dtype) {
    case DType::kFloat16: return write_columns<Float16, float>(row);
    case DType::kBFloat16: return write_columns<BFloat16, float>(row);
    case DType::kFloat32: return write_columns<float, float>(row);
    default: return write_columns<double, double>(row);
  }
}

void embedding_backward_zeros(const EmbeddingGradientZeros& rows) {
  const auto size = static_cast<std::int64_t>(dtype_size(rows.dtype));
  if (rows.col_stride == 1) {
    const bool one_run = rows.row_stride == rows.cols;
    const std::int64_t bytes = rows.cols * size * (one_run ? rows.rows : 1);
    for (std::int64_t row = 0; row < (one_run ? 1 : rows.rows); ++row) {
      clear_bytes(static_cast<char*>(rows.out) + row * rows.row_stride * size, bytes,
                  rows.bypass_cache);
    }
    if (rows.bypass_cache && rows.last) stream_fence();
    return;
  }
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    size == 2   ? clear_strided<std::uint16_t>(rows, row)
    : size == 4 ? clear_strided<std::uint32_t>(rows, row)
                : clear_strided<std::uint64_t>(rows, row);
  }
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
