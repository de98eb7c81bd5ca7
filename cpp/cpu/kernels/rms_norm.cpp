// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/rms_norm.hpp"

#include "cpu/reduce.hpp"
#include "cpu/vec.hpp"
#include "cpu/weight.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

// Rows whose sums are taken together, so that one vector square root and division serve them all
// and their latency hides.
constexpr int kGroup = 16;
constexpr std::int64_t kGroupBytes = 8 << 10;  // the second pass finds them in the first cache

// The usual width of an attention head: loops without a bound to check (65536 x 128
// bfloat16: 5 % less time).
constexpr std::int64_t kHead = 128;

constexpr std::int64_t kLine = 64;

// How later rows are asked for while rows go around the cache. Between these sizes: one half while
// summing, one while writing, so that memory never idles, and into the second cache only (8192 x
// 4096 float32: 0.79 of a copy, against 0.69 all while writing into the first). Others: all while
// writing.
constexpr std::int64_t kHalvesFrom = 4 << 10;
constexpr std::int64_t kHalvesTo = 256 << 10;

MEMBOUND_ALWAYS_INLINE bool asks_in_halves(std::int64_t row_bytes) {
  return row_bytes >= kHalvesFrom && row_bytes <= kHalvesTo;
}
template <int kLocality>
MEMBOUND_ALWAYS_INLINE void ask_for(const char* from, std::int64_t bytes) {
  for (std::int64_t byte = 0; byte < bytes; byte += kLine) {
    __builtin_prefetch(from + byte, 0, kLocality);
  }
}

MEMBOUND_ALWAYS_INLINE float square_root(float value) { return __builtin_sqrtf(value); }
MEMBOUND_ALWAYS_INLINE double square_root(double value) { return __builtin_sqrt(value); }

MEMBOUND_ALWAYS_INLINE float power_of_two(int exponent, float) {
  return bit_copy<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}
MEMBOUND_ALWAYS_INLINE double power_of_two(int exponent, double) {
  return bit_copy<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

// How rows are normalised, as far as the compiler should know.
template <class T_, WeightForm kForm_, bool kRoundFirst_>
struct Recipe {
  using T = T_;
  using A = typename Lanes<T>::A;
  using V = typename Lanes<T>::V;
  static constexpr WeightForm kForm = kForm_;
  static constexpr bool kRoundFirst = kRoundFirst_;
};

// x * rstd * weight for `count` elements (a whole step or less) from column col on.
template <class R>
MEMBOUND_ALWAYS_INLINE Pair<typename R::V> apply(Pair<typename R::V> value, typename R::A rstd,
                                                 const void* weight, std::int64_t col,
                                                 std::int64_t count) {
  using Row = Lanes<typename R::T>;
  value.first *= rstd;
  value.second *= rstd;
  if constexpr (R::kRoundFirst) value = Row::round(value);
  if constexpr (R::kForm != WeightForm::kNone) {
    Pair<typename R::V> factor;
    if constexpr (R::kForm == WeightForm::kNative) {
      const auto* from = static_cast<const typename R::T*>(weight) + col;
      factor = count == Row::kStep ? Row::read(from) : read_partial(from, count);
    } else {
      const auto* from = static_cast<const typename R::A*>(weight) + col;
      factor = {load<typename R::V>(from), load<typename R::V>(from + Row::kStep / 2)};
    }
    value.first *= factor.first;
    value.second *= factor.second;
  }
  return value;
}

template <class R>
MEMBOUND_ALWAYS_INLINE void write_some(const typename R::T* x, typename R::T* out,
                                       typename R::A rstd, const void* weight, std::int64_t col,
                                       std::int64_t count) {
  write_partial(out + col, apply<R>(read_partial(x + col, count), rstd, weight, col, count), count);
}

// A load waits for an earlier store whose address has the same last 12 bits. Where out lies a
// little behind x in that sense, as with two arrays allocated one after the other, going down
// avoids it (64 x 4096 bfloat16, out 64 bytes behind: 15.0 -> 11.0 cycles per 32 elements).
MEMBOUND_ALWAYS_INLINE bool writes_downwards(const void* x, const void* out,
                                             std::int64_t row_bytes) {
  constexpr std::uintptr_t kPage = 4096;
  const auto behind =
      (reinterpret_cast<std::uintptr_t>(out) - reinterpret_cast<std::uintptr_t>(x)) % kPage;
  return row_bytes >= 1024 && behind != 0 && behind < kPage / 2;
}

// One contiguous row. With kAroundCache the stores bypass the cache, and `ahead`, a later row, is
// asked for line by line.
template <class R, bool kAroundCache>
MEMBOUND_ALWAYS_INLINE void write_row(const typename R::T* x, typename R::T* out,
                                      typename R::A rstd, const void* weight, std::int64_t cols,
                                      const char* ahead) {
  using T = typename R::T;
  using Row = Lanes<T>;
  std::int64_t col = 0;
  if constexpr (kAroundCache) {
    const auto past = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(out) % kLine);
    if (past != 0) {
      const std::int64_t head = (kLine - past) / static_cast<std::int64_t>(sizeof(T));
      col = head < cols ? head : cols;
      for (std::int64_t at = 0; at < col; at += Row::kStep) {
        write_some<R>(x, out, rstd, weight, at, col - at < Row::kStep ? col - at : Row::kStep);
      }
    }
  }
  if constexpr (kAroundCache) {
    for (; col + Row::kStep <= cols; col += Row::kStep) {
      constexpr std::int64_t kSize = sizeof(T);
      if (asks_in_halves(cols * kSize)) {
        ask_for<2>(ahead + (cols + col) * kSize / 2, Row::kStep * kSize / 2);
      } else {
        ask_for<3>(ahead + col * kSize, Row::kStep * kSize);
      }
      Row::write_around_cache(out + col,
                              apply<R>(Row::read(x + col), rstd, weight, col, Row::kStep));
    }
  } else {
    const std::int64_t whole = cols / Row::kStep * Row::kStep;
    const bool down = writes_downwards(x, out, cols * static_cast<std::int64_t>(sizeof(T)));
    const std::int64_t by = down ? -Row::kStep : Row::kStep;
    std::int64_t at = down ? whole - Row::kStep : 0;
    for (; col < whole; col += Row::kStep, at += by) {
      Row::write(out + at, apply<R>(Row::read(x + at), rstd, weight, at, Row::kStep));
    }
  }
  if (col < cols) write_some<R>(x, out, rstd, weight, col, cols - col);
}

template <class A>
MEMBOUND_ALWAYS_INLINE bool is_trusted(const RmsNormRows& rows, A sum) {
  return sum >= static_cast<A>(rows.safe_low) && sum <= static_cast<A>(rows.safe_high);
}

template <class A>
MEMBOUND_ALWAYS_INLINE A inverse_root(const RmsNormRows& rows, A sum) {
  return 1 / square_root(sum / static_cast<A>(rows.cols) + static_cast<A>(rows.eps));
}

template <class A>
MEMBOUND_ALWAYS_INLINE void store_rstd(const RmsNormRows& rows, std::int64_t row, A rstd) {
  if (rows.rstd != nullptr) static_cast<A*>(rows.rstd)[row * rows.rstd_row_stride] = rstd;
}

// The block itself, or a copy where its elements are apart.
template <class T>
MEMBOUND_ALWAYS_INLINE const T* gather(const T* x, std::int64_t stride, std::int64_t count,
                                       T* copy) {
  if (stride == 1) return x;
  for (std::int64_t i = 0; i < count; ++i) copy[i] = x[i * stride];
  return copy;
}

// A row in blocks through small buffers: any column strides, and values scaled by a power of two
// where the plain sum left its range.
template <class R>
struct RowInBlocks {
  using T = typename R::T;
  using A = typename R::A;
  const RmsNormRows& rows;
  const T* x;
  T* out;
  T x_block[kBlock<T>];
  T out_block[kBlock<T>];

  template <class Body>
  MEMBOUND_ALWAYS_INLINE void each_block(Body body) {
    for (std::int64_t col = 0; col < rows.cols; col += kBlock<T>) {
      const std::int64_t count = rows.cols - col < kBlock<T> ? rows.cols - col : kBlock<T>;
      body(col, count, gather(x + col * rows.x_col_stride, rows.x_col_stride, count, x_block));
    }
  }

  A sum(A scale) {
    BlockSum<A> total;
    each_block([&](std::int64_t, std::int64_t count, const T* block) {
      total.add(sum_squares_of_block<T, true>(block, count, scale));
    });
    return total.value();
  }

  double largest() {
    double found = 0;
    each_block([&](std::int64_t, std::int64_t count, const T* block) {
      for (std::int64_t i = 0; i < count; ++i) {
        const double value = __builtin_fabs(widen(block[i]));
        found = value > found ? value : found;
      }
    });
    return found;
  }

  void write(A scale, A rstd) {
    constexpr std::int64_t kStep = Lanes<T>::kStep;
    each_block([&](std::int64_t first, std::int64_t count, const T* block) {
      for (std::int64_t i = 0; i < count; i += kStep) {
        const std::int64_t some = count - i < kStep ? count - i : kStep;
        auto value = some == kStep ? Lanes<T>::read(block + i) : read_partial(block + i, some);
        value.first *= scale;
        value.second *= scale;
        value = apply<R>(value, rstd, rows.weight, first + i, some);
        write_partial(out_block + i, value, some);
      }
      T* to = out + first * rows.out_col_stride;
      for (std::int64_t i = 0; i < count; ++i) to[i * rows.out_col_stride] = out_block[i];
    });
  }
};

template <class R>
[[gnu::noinline]] void normalise_in_blocks(const RmsNormRows& rows, std::int64_t row) {
  using A = typename R::A;
  RowInBlocks<R> blocks{rows,
                        static_cast<const typename R::T*>(rows.x) + row * rows.x_row_stride,
                        static_cast<typename R::T*>(rows.out) + row * rows.out_row_stride,
                        {},
                        {}};
  A scale = 1;
  A sum = blocks.sum(scale);
  A rstd = inverse_root(rows, sum);
  if (!is_trusted(rows, sum)) {
    scale = power_of_two(rows.safe_exponent(blocks.largest(), rows.eps), A{});
    sum = blocks.sum(scale);
    const double mean = static_cast<double>(sum) / static_cast<double>(rows.cols);
    rstd = static_cast<A>(1 / square_root(mean + rows.eps * scale * scale));
  }
  store_rstd(rows, row, static_cast<A>(static_cast<double>(rstd) * static_cast<double>(scale)));
  blocks.write(scale, rstd);
}

template <class T, bool kAroundCache>
MEMBOUND_ALWAYS_INLINE typename Lanes<T>::A sum_row(const T* x, std::int64_t cols,
                                                    const char* ahead) {
  if constexpr (!kAroundCache) return sum_squares(x, cols);
  constexpr std::int64_t kSize = sizeof(T);
  if (!asks_in_halves(cols * kSize)) return sum_squares(x, cols);
  std::int64_t asked = 0;
  return sum_squares(x, cols, [&](std::int64_t col) {
    ask_for<2>(ahead + asked, col * kSize / 2 - asked);
    asked = col * kSize / 2;
  });
}

// Contiguous rows, a group at a time; kCols: how many columns, where the compiler should know.
// What the loops need is copied first: stores to out could alias rows, for all the compiler knows.
template <class R, bool kAroundCache, std::int64_t kCols = 0>
void normalise_rows(const RmsNormRows& rows) {
  using T = typename R::T;
  using A = typename R::A;
  constexpr std::int64_t kSize = sizeof(T);
  const std::int64_t cols = kCols != 0 ? kCols : rows.cols;
  const std::int64_t x_stride = rows.x_row_stride;
  const std::int64_t out_stride = rows.out_row_stride;
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
    const T* x = static_cast<const T*>(rows.x) + first * x_stride;
    T* out = static_cast<T*>(rows.out) + first * out_stride;
    const auto ahead = [&](std::int64_t i) {
      const std::int64_t later = first + i + group < total ? i + group : i;
      return reinterpret_cast<const char*>(x + later * x_stride);
    };
    A sums[kGroup];
    A rstds[kGroup];
    for (std::int64_t i = 0; i < count; ++i) {
      sums[i] = sum_row<T, kAroundCache>(x + i * x_stride, cols, ahead(i));
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
      write_row<R, kAroundCache>(x + i * x_stride, out + i * out_stride, rstds[i], weight, cols,
                                 ahead(i));
    }
  }
}

template <class R>
void run(const RmsNormRows& rows) {
  using T = typename R::T;
  if (rows.x_col_stride != 1 || rows.out_col_stride != 1) {
    for (std::int64_t row = 0; row < rows.rows; ++row) normalise_in_blocks<R>(rows, row);
    return;
  }
  const bool on_lines = reinterpret_cast<std::uintptr_t>(rows.out) % kLine == 0 &&
                        rows.out_row_stride * static_cast<std::int64_t>(sizeof(T)) % kLine == 0;
  // A prepared weight in even and odd order cannot be entered in the middle of a step.
  constexpr bool kOnLines = R::kForm == WeightForm::kPrepared && Lanes<T>::kEvenOdd;
  if (rows.bypass_cache && (on_lines || !kOnLines)) {
    rows.cols == kHead ? normalise_rows<R, true, kHead>(rows) : normalise_rows<R, true>(rows);
    stream_fence();
  } else {
    rows.cols == kHead ? normalise_rows<R, false, kHead>(rows) : normalise_rows<R, false>(rows);
  }
}

template <class T, bool kRoundFirst>
void run_with_weight(const RmsNormRows& rows) {
  switch (rows.weight_form) {
    case WeightForm::kNone: return run<Recipe<T, WeightForm::kNone, kRoundFirst>>(rows);
    case WeightForm::kNative: return run<Recipe<T, WeightForm::kNative, kRoundFirst>>(rows);
    case WeightForm::kPrepared: return run<Recipe<T, WeightForm::kPrepared, kRoundFirst>>(rows);
  }
}

template <class T>
void run_rounded(const RmsNormRows& rows) {
  if (rows.round_before_weight) {
    run_with_weight<T, true>(rows);
  } else {
    run_with_weight<T, false>(rows);
  }
}

}  // namespace

void rms_norm(const RmsNormRows& rows) {
  switch (rows.dtype) {
    case DType::kFloat16: return run_rounded<Float16>(rows);
    case DType::kBFloat16: return run_rounded<BFloat16>(rows);
    // Rounding to x's dtype first changes nothing where sums have that dtype.
    case DType::kFloat32: return run_with_weight<float, false>(rows);
    default: return run_with_weight<double, false>(rows);
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
