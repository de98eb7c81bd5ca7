// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/rms_norm.hpp"

#include "cpu/kernels/rms_norm_row.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

// Rows whose sums are taken together, so that one vector square root and division serve them all
// and their latency hides.
constexpr int kGroup = 16;
constexpr std::int64_t kGroupBytes = 8 << 10;  // the second pass finds them in the first cache

// The usual width of an attention head: loops without a bound to check (65536 x 128
// bfloat16: 5 % less time).
constexpr std::int64_t kHead = 128;

// How later rows are asked for while rows go around the cache. Between these sizes: one half while
// summing, one while writing, so that memory never idles, and into the second cache only (8192 x
// 4096 float32: 0.79 of a copy, against 0.69 all while writing into the first). Others: all while
// writing.
constexpr std::int64_t kHalvesFrom = 4 << 10;
constexpr std::int64_t kHalvesTo = 256 << 10;

MEMBOUND_ALWAYS_INLINE bool asks_in_halves(std::int64_t row_bytes) {
  return row_bytes >= kHalvesFrom && row_bytes <= kHalvesTo;
}

template <class R>
MEMBOUND_ALWAYS_INLINE void write_some(const typename R::Input& input,
                                       const OutputRow<typename R::T>& output, typename R::A rstd,
                                       const void* weight, std::int64_t col, std::int64_t count) {
  const auto value = input.partial(col, count);
  if constexpr (R::kAdd) write_partial(output.sum + col, value, count);
  write_partial(output.out + col, apply<R>(value, rstd, weight, col, count), count);
}

// Rows that are not in a cache are asked for ahead, in place too.
enum class Memory { kCached, kAhead, kAheadAroundCache };

// Half of `ahead`, a later row, or all of it, while `bytes` from `byte` on are written.
template <class Input>
MEMBOUND_ALWAYS_INLINE void ask_while_writing(const Input& ahead, std::int64_t row_bytes,
                                              std::int64_t byte, std::int64_t bytes) {
  if (asks_in_halves(row_bytes)) {
    const std::int64_t from = (row_bytes + byte) / 2;
    ahead.template ask<2>(from, from + bytes / 2);
  } else {
    ahead.template ask<3>(byte, byte + bytes);
  }
}

// One contiguous row. `ahead`, a later one, is asked for line by line.
template <class R, Memory kMemory>
MEMBOUND_ALWAYS_INLINE void write_row(const typename R::Input& input,
                                      const OutputRow<typename R::T>& output, typename R::A rstd,
                                      const void* weight, std::int64_t cols,
                                      const typename R::Input& ahead) {
  using T = typename R::T;
  using Row = Lanes<T>;
  constexpr std::int64_t kSize = sizeof(T);
  std::int64_t col = 0;
  if constexpr (kMemory == Memory::kAheadAroundCache) {
    const auto past =
        static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(output.out) % kLine);
    if (past != 0) {
      const std::int64_t head = (kLine - past) / static_cast<std::int64_t>(sizeof(T));
      col = head < cols ? head : cols;
      for (std::int64_t at = 0; at < col; at += Row::kStep) {
        write_some<R>(input, output, rstd, weight, at,
                      col - at < Row::kStep ? col - at : Row::kStep);
      }
    }
    for (; col + Row::kStep <= cols; col += Row::kStep) {
      ask_while_writing(ahead, cols * kSize, col * kSize, Row::kStep * kSize);
      const auto value = input.whole(col);
      if constexpr (R::kAdd) Row::write_around_cache(output.sum + col, value);
      Row::write_around_cache(output.out + col, apply<R>(value, rstd, weight, col, Row::kStep));
    }
  } else {
    const std::int64_t whole = cols / Row::kStep * Row::kStep;
    const bool down = writes_downwards(input.x, output.out, cols * kSize);
    const std::int64_t by = down ? -Row::kStep : Row::kStep;
    std::int64_t at = down ? whole - Row::kStep : 0;
    for (; col < whole; col += Row::kStep, at += by) {
      if constexpr (kMemory == Memory::kAhead) {
        ask_while_writing(ahead, cols * kSize, col * kSize, Row::kStep * kSize);
      }
      const auto value = input.whole(at);
      if constexpr (R::kAdd) Row::write(output.sum + at, value);
      Row::write(output.out + at, apply<R>(value, rstd, weight, at, Row::kStep));
    }
  }
  if (col < cols) write_some<R>(input, output, rstd, weight, col, cols - col);
}

// kAsk: for half of `ahead`, a later row, meanwhile.
template <bool kAsk, class T, class Input>
MEMBOUND_ALWAYS_INLINE typename Lanes<T>::A sum_of_squares(const Input& input, std::int64_t cols,
                                                           const Input& ahead) {
  constexpr std::int64_t kSize = sizeof(T);
  const Squares<T, Input> squares{input};
  typename Lanes<T>::A sum;
  if constexpr (kAsk) {
    std::int64_t asked = 0;
    sums_of_rows<T>(squares, cols, &sum, [&](std::int64_t col) {
      ahead.template ask<2>(asked, col * kSize / 2);
      asked = col * kSize / 2;
    });
  } else {
    sums_of_rows<T>(squares, cols, &sum);
  }
  return sum;
}

// Out of line: inlined into every recipe it made a unit that took seven minutes to compile.
template <bool kAsk, class T, class Input>
[[gnu::noinline]] typename Lanes<T>::A sum_of_any(const Input& input, std::int64_t cols,
                                                  const Input& ahead) {
  return sum_of_squares<kAsk, T>(input, cols, ahead);
}

// Contiguous rows, a group at a time; kCols: how many columns, where the compiler should know.
// What the loops need is copied first: stores to out could alias rows, for all the compiler knows.
template <class R, Memory kMemory, std::int64_t kCols = 0>
void normalise_rows(const RmsNormRows& rows) {
  using T = typename R::T;
  using A = typename R::A;
  constexpr std::int64_t kSize = sizeof(T);
  const std::int64_t cols = kCols != 0 ? kCols : rows.cols;
  const RowsOf<R> at(rows);
  const void* weight = rows.weight;
  const A low = static_cast<A>(rows.safe_low);
  const A high = static_cast<A>(rows.safe_high);
  const A width = static_cast<A>(cols);
  const A eps = static_cast<A>(rows.eps);
  const std::int64_t total = rows.rows;
  const std::int64_t group = cols * kSize * kGroup <= kGroupBytes ? kGroup
                             : cols * kSize * 2 > kGroupBytes     ? 1
                                                                  : kGroupBytes / (cols * kSize);
  for (std::int64_t first = 0; first < total; first += group) {
    const std::int64_t count = total - first < group ? total - first : group;
    const auto ahead = [&](std::int64_t i) {
      return at.input(first + i + group < total ? first + i + group : first + i);
    };
    A sums[kGroup];
    A rstds[kGroup];
    const bool ask = kMemory != Memory::kCached && asks_in_halves(cols * kSize);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto input = at.input(first + i);
      sums[i] = kCols != 0 ? sum_of_squares<false, T>(input, cols, input)
                : ask      ? sum_of_any<true, T>(input, cols, ahead(i))
                           : sum_of_any<false, T>(input, cols, input);
    }
    if (count == kGroup) {
      for (int i = 0; i < kGroup; ++i) rstds[i] = 1 / square_root(sums[i] / width + eps);
    } else {
      for (std::int64_t i = 0; i < count; ++i) rstds[i] = 1 / square_root(sums[i] / width + eps);
    }
    if (rows.rstd != nullptr) {
      for (std::int64_t i = 0; i < count; ++i) store_rstd(rows, first + i, rstds[i]);
    }
    for (std::int64_t i = 0; i < count; ++i) {
      if (!(sums[i] >= low && sums[i] <= high)) [[unlikely]] {
        normalise_in_blocks<R>(rows, first + i);
        continue;
      }
      write_row<R, kMemory>(at.input(first + i), at.output(first + i), rstds[i], weight, cols,
                            ahead(i));
    }
  }
}

// Rows are entered in the middle of a step where out leaves the lines: a prepared weight in even
// and odd order cannot be, nor can the stores of the sum be around the cache then.
template <class R>
bool can_bypass_cache(const RmsNormRows& rows) {
  using T = typename R::T;
  if constexpr (R::kAdd) {
    if (!on_lines<T>(rows.residual_out, rows.residual_out_row_stride)) return false;
  }
  constexpr bool kOnLines = R::kAdd || (R::kForm == WeightForm::kPrepared && Lanes<T>::kEvenOdd);
  return !kOnLines || on_lines<T>(rows.out, rows.out_row_stride);
}

template <class R, Memory kMemory>
void run_contiguous(const RmsNormRows& rows) {
  constexpr bool kUnrolls = !R::kAdd && kMemory != Memory::kAhead && kVectorBytes >= 32;
  if constexpr (kUnrolls) {
    if (rows.cols == kHead) return normalise_rows<R, kMemory, kHead>(rows);
  }
  normalise_rows<R, kMemory>(rows);
}

template <class R>
void run(const RmsNormRows& rows) {
  const bool contiguous =
      rows.x_col_stride == 1 && rows.out_col_stride == 1 &&
      (!R::kAdd || (rows.residual_col_stride == 1 && rows.residual_out_col_stride == 1));
  if (!contiguous) {
    for (std::int64_t row = 0; row < rows.rows; ++row) normalise_in_blocks<R>(rows, row);
  } else if (rows.bypass_cache && can_bypass_cache<R>(rows)) {
    run_contiguous<R, Memory::kAheadAroundCache>(rows);
    stream_fence();
  } else if (rows.ask_ahead) {
    run_contiguous<R, Memory::kAhead>(rows);
  } else {
    run_contiguous<R, Memory::kCached>(rows);
  }
}

template <class T, bool kRoundFirst, bool kAdd>
void run_with_weight(const RmsNormRows& rows) {
  switch (rows.weight_form) {
    case WeightForm::kNone: return run<Recipe<T, WeightForm::kNone, kRoundFirst, kAdd>>(rows);
    case WeightForm::kNative: return run<Recipe<T, WeightForm::kNative, kRoundFirst, kAdd>>(rows);
    case WeightForm::kPrepared:
      return run<Recipe<T, WeightForm::kPrepared, kRoundFirst, kAdd>>(rows);
  }
}

template <class T, bool kAdd>
void run_rounded(const RmsNormRows& rows) {
  // Rounding to x's dtype first changes nothing where sums have that dtype.
  if constexpr (sizeof(T) == 2) {
    if (rows.round_before_weight) return run_with_weight<T, true, kAdd>(rows);
  }
  run_with_weight<T, false, kAdd>(rows);
}

template <class T>
void run_added(const RmsNormRows& rows) {
  rows.residual != nullptr ? run_rounded<T, true>(rows) : run_rounded<T, false>(rows);
}

}  // namespace

void rms_norm(const RmsNormRows& rows) {
  switch (rows.dtype) {
    case DType::kFloat16: return run_added<Float16>(rows);
    case DType::kBFloat16: return run_added<BFloat16>(rows);
    case DType::kFloat32: return run_added<float>(rows);
    default: return run_added<double>(rows);
  }
}

void rms_norm_weight(const RmsNormWeight& weight) {
  switch (weight.x_dtype) {
    case DType::kFloat16: return prepare_for<Float16>(weight);
    case DType::kBFloat16: return prepare_for<BFloat16>(weight);
    case DType::kFloat32: return prepare_for<float>(weight);
    default: return prepare_for<double>(weight);
  }
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
