// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/rms_norm_row.hpp"

// Rows that are centred first (layer_norm): one pass for the mean, one for the deviations, one that
// writes. The passes share few template parameters, which saves instantiations.
namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

// Bytes per group, more than rms_norm has because there is one more pass whose latency to hide. A
// residual counts. Cached rows of up to this width are written in pairs.
constexpr std::int64_t kGroupBytes = 16 << 10;

// Sixteenths of a later row that are prefetched in the second pass, when the row itself is in L1;
// in the first pass its own misses keep memory busy.
constexpr int kPrefetchedWhileSumming = 11;

// The mean is rounded. If x has the precision of sums, the mean of the deviations is subtracted
// too, so that a mean far above the spread costs no digits.
template <class T>
constexpr bool kCorrects = sizeof(T) == sizeof(typename Lanes<T>::A);

// The centre of a row. The scale is 1 unless the plain sums are out of range.
template <class T>
struct Centre {
  using A = typename Lanes<T>::A;
  A scale = 1, mean = 0, rest = 0;
};

// x * scale - mean; kScaled: the scale may differ from 1.
template <bool kScaled, class T, class V>
MEMBOUND_ALWAYS_INLINE Pair<V> deviation(Pair<V> value, const Centre<T>& centre) {
  if constexpr (kScaled) value = {value.first * centre.scale, value.second * centre.scale};
  return {value.first - centre.mean, value.second - centre.mean};
}

template <class T, bool kAdd, bool kScaled>
struct Values {
  static constexpr int kSums = 1, kProducts = kScaled ? 1 : 0;
  using V = typename Lanes<T>::V;
  InputRow<T, kAdd> row;
  V scale;

  MEMBOUND_ALWAYS_INLINE void whole(std::int64_t col, Factors<V>* terms) const {
    *terms = {row.whole(col), {scale, scale}};
  }
  MEMBOUND_ALWAYS_INLINE void partial(std::int64_t col, std::int64_t count,
                                      Factors<V>* terms) const {
    *terms = {row.partial(col, count), {scale, scale}};
  }
};

// Squares of deviations and, where the mean is corrected, the deviations themselves.
template <class T, bool kAdd, bool kScaled>
struct Deviations {
  static constexpr int kSums = kCorrects<T> ? 2 : 1, kProducts = 1;
  using V = typename Lanes<T>::V;
  InputRow<T, kAdd> row;
  Centre<T> centre;

  MEMBOUND_ALWAYS_INLINE void whole(std::int64_t col, Factors<V>* terms) const {
    const auto value = deviation<kScaled>(row.whole(col), centre);
    terms[0] = {value, value};
    if constexpr (kCorrects<T>) terms[1].left = value;
  }
  MEMBOUND_ALWAYS_INLINE void partial(std::int64_t col, std::int64_t count,
                                      Factors<V>* terms) const {
    const auto value = first_of_step<T>(deviation<kScaled>(row.partial(col, count), centre), count);
    terms[0] = {value, value};
    if constexpr (kCorrects<T>) terms[1].left = value;
  }
};

template <class A>
struct DeviationSums {
  A squares, values;
};

template <bool kScaled, class T, bool kAdd, class A = typename Lanes<T>::A>
MEMBOUND_ALWAYS_INLINE A sum_values(const InputRow<T, kAdd>& input, A scale, std::int64_t cols) {
  A sum;
  sums_of_rows<T>(Values<T, kAdd, kScaled>{input, typename Lanes<T>::V{} + scale}, cols, &sum);
  return sum;
}

// hook: see sums_of_block.
template <bool kScaled, class T, bool kAdd, class Hook, class A = typename Lanes<T>::A>
MEMBOUND_ALWAYS_INLINE DeviationSums<A> sum_deviations(const InputRow<T, kAdd>& input,
                                                       const Centre<T>& centre, std::int64_t cols,
                                                       Hook hook) {
  A sums[2] = {};
  sums_of_rows<T>(Deviations<T, kAdd, kScaled>{input, centre}, cols, sums, hook);
  return {sums[0], sums[1]};
}

// Not inlined, for any width.
template <bool kScaled, class T, bool kAdd, class A = typename Lanes<T>::A>
[[gnu::noinline]] A values_of_any(const InputRow<T, kAdd>& input, A scale, std::int64_t cols) {
  return sum_values<kScaled>(input, scale, cols);
}

// `upcoming`: a later row to prefetch, or null.
template <bool kScaled, class T, bool kAdd, class A = typename Lanes<T>::A>
[[gnu::noinline]] DeviationSums<A> deviations_of_any(const InputRow<T, kAdd>& input,
                                                     const Centre<T>& centre, std::int64_t cols,
                                                     const InputRow<T, kAdd>* upcoming = nullptr) {
  constexpr std::int64_t kSize = sizeof(T);
  std::int64_t prefetched = 0;
  return sum_deviations<kScaled>(input, centre, cols, [&](std::int64_t col) {
    if (upcoming == nullptr) return;
    const std::int64_t until = col * kSize * kPrefetchedWhileSumming / 16;
    upcoming->template prefetch<2>(prefetched, until);
    prefetched = until;
  });
}

// The sum of (deviation - rest)^2. If the spread is near the precision of the mean the terms
// cancel, but then the sums are exact, and so are products of floats in double.
template <class T, class A>
MEMBOUND_ALWAYS_INLINE A squares_about_rest(DeviationSums<A> sums, A rest, double width) {
  if constexpr (!kCorrects<T>) return sums.squares;
  const double about = static_cast<double>(sums.values) * 2 - width * rest;
  const double squares = static_cast<double>(sums.squares) - about * rest;
  return static_cast<A>(squares < 0 ? 0 : squares);
}

// A row to be written; col: the number of its first column.
template <class T, bool kAdd>
struct Job {
  InputRow<T, kAdd> input;
  OutputRow<T> output;
  Centre<T> centre;
  typename Lanes<T>::A rstd;
  std::int64_t col;
  InputRow<T, kAdd> upcoming;
  OutputRow<T> upcoming_output;
};

// (deviation - rest) * rstd * weight + bias.
template <class T, bool kScaled, WeightForm kForm, bool kBias>
struct Affine {
  using V = typename Lanes<T>::V;
  static constexpr int kPrefetched = kPrefetchedWhileSumming;
  Centre<T> centre;
  typename Lanes<T>::A rstd;
  const void* weight;
  const void* bias;
  std::int64_t first;

  MEMBOUND_ALWAYS_INLINE Pair<V> operator()(Pair<V> value, std::int64_t col,
                                            std::int64_t count) const {
    value = deviation<kScaled>(value, centre);
    if constexpr (kCorrects<T>) value = {value.first - centre.rest, value.second - centre.rest};
    value = {value.first * rstd, value.second * rstd};
    if constexpr (kForm == WeightForm::kNone) return value;
    const auto factor = weight_step<T, kForm>(weight, first + col, count);
    if constexpr (!kBias) return {value.first * factor.first, value.second * factor.second};
    const auto more = weight_step<T, kForm>(bias, first + col, count);
    return {multiply_add(value.first, factor.first, more.first),
            multiply_add(value.second, factor.second, more.second)};
  }
};

template <class T, bool kAdd>
using Writer = void (*)(const RmsNormRows& rows, const Job<T, kAdd>* jobs, std::int64_t count,
                        std::int64_t cols);

// kCols: the number of columns if known at compile time.
template <Memory kMemory, std::int64_t kCols, class Finish, class T, bool kAdd>
MEMBOUND_ALWAYS_INLINE void write_jobs(const RmsNormRows& rows, const Job<T, kAdd>* jobs,
                                       std::int64_t count, std::int64_t columns) {
  const std::int64_t cols = kCols != 0 ? kCols : columns;
  const void* weight = rows.weight;
  const void* bias = rows.bias;
  const auto row = [&](const Job<T, kAdd>& job) -> WrittenRow<T, kAdd, Finish> {
    return {job.input,
            job.output,
            {job.centre, job.rstd, weight, bias, kCols != 0 ? 0 : job.col},
            job.upcoming,
            job.upcoming_output};
  };
  std::int64_t i = 0;
  if constexpr (kCols == 0 && kMemory == Memory::kCached) {
    for (; i + 2 <= count; i += 2) {
      const WrittenRow<T, kAdd, Finish> pair[] = {row(jobs[i]), row(jobs[i + 1])};
      write_rows<kMemory>(pair, cols);
    }
  }
  for (; i < count; ++i) {
    const WrittenRow<T, kAdd, Finish> one[] = {row(jobs[i])};
    write_rows<kMemory>(one, cols);
  }
}

template <class T, bool kAdd, Memory kMemory, WeightForm kForm, bool kBias>
void write(const RmsNormRows& rows, const Job<T, kAdd>* jobs, std::int64_t count,
           std::int64_t cols) {
  using Finish = Affine<T, kMemory == Memory::kStrided, kForm, kBias>;
  if constexpr (kUnrollsHeads<kAdd, kMemory>) {
    // A block of a wider row may have as many columns, so compare the row's.
    if (rows.cols == kHead) return write_jobs<kMemory, kHead, Finish>(rows, jobs, count, cols);
  }
  write_jobs<kMemory, 0, Finish>(rows, jobs, count, cols);
}

template <class T, bool kAdd, Memory kMemory>
Writer<T, kAdd> writer_of(const RmsNormRows& rows) {
  constexpr auto kNone = WeightForm::kNone, kNative = WeightForm::kNative,
                 kPrepared = WeightForm::kPrepared;
  if (rows.weight_form == kNone) return write<T, kAdd, kMemory, kNone, false>;
  if constexpr (sizeof(T) == 2) {
    if (rows.weight_form == kPrepared) {
      return rows.bias != nullptr ? write<T, kAdd, kMemory, kPrepared, true>
                                  : write<T, kAdd, kMemory, kPrepared, false>;
    }
  }
  // With dtypes as wide as sums, prepared and native weights look the same.
  return rows.bias != nullptr ? write<T, kAdd, kMemory, kNative, true>
                              : write<T, kAdd, kMemory, kNative, false>;
}

// The slow path: any column strides, and the overflow-safe scale where plain sums are out of range.
template <class T, bool kAdd>
[[gnu::noinline]] void normalise_in_blocks(const RmsNormRows& rows, std::int64_t row) {
  using A = typename Lanes<T>::A;
  RowInBlocks<T, kAdd> blocks(rows, row);
  const double width = static_cast<double>(rows.cols);
  Centre<T> centre;
  const auto sum_of_squares = [&] {
    BlockSum<A> values, squares, rests;
    each_block<T>(rows.cols, [&](std::int64_t first, std::int64_t count) {
      const auto block = blocks.read(first, count);
      values.add(values_of_any<true>(block, centre.scale, count));
    });
    centre.mean = values.value() / static_cast<A>(rows.cols);
    centre.rest = 0;
    each_block<T>(rows.cols, [&](std::int64_t first, std::int64_t count) {
      const auto block = blocks.read(first, count);
      const auto sums = deviations_of_any<true>(block, centre, count);
      squares.add(sums.squares);
      rests.add(sums.values);
    });
    if constexpr (kCorrects<T>) centre.rest = rests.value() / static_cast<A>(rows.cols);
    return DeviationSums<A>{squares.value(), rests.value()};
  };
  DeviationSums<A> sums = sum_of_squares();
  A about = squares_about_rest<T>(sums, centre.rest, width);
  A rstd = 1 / square_root(about / static_cast<A>(rows.cols) + static_cast<A>(rows.eps));
  if (!is_in_safe_range(rows, sums.squares)) {
    centre.scale = blocks.safe_scale();
    sums = sum_of_squares();
    const double scale = static_cast<double>(centre.scale);
    about = squares_about_rest<T>(sums, centre.rest, width);
    rstd = static_cast<A>(1 / square_root(about / width + rows.eps * scale * scale));
    if (about == 0) {  // constant row: its scaled rstd may leave the range, so unscaled
      centre = {1, static_cast<A>(centre.mean / scale), static_cast<A>(centre.rest / scale)};
      rstd = static_cast<A>(1 / square_root(rows.eps));
    }
  }
  // A row with an inf has a mean, but the mean of its deviations is NaN.
  const A mean = centre.mean - centre.mean == 0 ? centre.mean + centre.rest : centre.mean;
  const double scale = static_cast<double>(centre.scale);
  store_statistic(rows.mean, rows.mean_row_stride, row, static_cast<A>(mean / scale));
  store_statistic(rows.rstd, rows.rstd_row_stride, row, static_cast<A>(rstd * scale));
  const Writer<T, kAdd> writer = writer_of<T, kAdd, Memory::kStrided>(rows);
  each_block<T>(rows.cols, [&](std::int64_t first, std::int64_t count) {
    const auto block = blocks.read(first, count);
    const OutputRow<T> to{blocks.out_block, blocks.sum_block};
    const Job<T, kAdd> job{block, to, centre, rstd, first, block, to};
    writer(rows, &job, 1, count);
    blocks.write_back(first, count);
  });
}

// Contiguous rows, a group at a time; kCols: the number of columns if known at compile time.
template <std::int64_t kCols, class T, bool kAdd>
void normalise_rows(const RmsNormRows& rows, Writer<T, kAdd> writer) {
  using A = typename Lanes<T>::A;
  constexpr std::int64_t kSize = sizeof(T);
  const RowsOf<T, kAdd> at(rows);
  const std::int64_t cols = kCols != 0 ? kCols : rows.cols, total = rows.rows;
  const A width = static_cast<A>(cols), eps = static_cast<A>(rows.eps);
  std::int64_t group = rows_of_group(cols * kSize * (kAdd ? 2 : 1), kGroupBytes);
  if (group == 1 && !rows.prefetch_ahead && cols * kSize <= kGroupBytes) group = 2;
  const bool prefetches = rows.prefetch_ahead && prefetches_in_parts(cols * kSize);
  for (std::int64_t first = 0; first < total; first += group) {
    const std::int64_t count = total - first < group ? total - first : group;
    const auto upcoming = [&](std::int64_t i) {
      return first + i + group < total ? first + i + group : first + i;
    };
    A means[kGroup], rests[kGroup], rstds[kGroup];
    DeviationSums<A> sums[kGroup];
    for (std::int64_t i = 0; i < count; ++i) {
      const auto input = at.input(first + i);
      means[i] = kCols != 0 ? sum_values<false>(input, A{1}, cols)
                            : values_of_any<false>(input, A{1}, cols);
    }
    each_of_group(count, [&](std::int64_t i) { means[i] /= width; });
    for (std::int64_t i = 0; i < count; ++i) {
      const auto input = at.input(first + i), later = at.input(upcoming(i));
      const Centre<T> centre{1, means[i], 0};
      sums[i] = kCols != 0
                    ? sum_deviations<false>(input, centre, cols, NoHook{})
                    : deviations_of_any<false>(input, centre, cols, prefetches ? &later : nullptr);
    }
    each_of_group(count, [&](std::int64_t i) {
      rests[i] = kCorrects<T> ? sums[i].values / width : 0;
      const A about = squares_about_rest<T>(sums[i], rests[i], width);
      rstds[i] = 1 / square_root(about / width + eps);
    });
    Job<T, kAdd> jobs[kGroup];
    std::int64_t ready = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      if (!is_in_safe_range(rows, sums[i].squares)) [[unlikely]] {
        normalise_in_blocks<T, kAdd>(rows, first + i);
        continue;
      }
      store_statistic(rows.mean, rows.mean_row_stride, first + i, means[i] + rests[i]);
      store_statistic(rows.rstd, rows.rstd_row_stride, first + i, rstds[i]);
      jobs[ready++] = {
          at.input(first + i),   at.output(first + i),  {1, means[i], rests[i]}, rstds[i], 0,
          at.input(upcoming(i)), at.output(upcoming(i))};
    }
    writer(rows, jobs, ready, cols);
  }
}

template <class T, bool kAdd, Memory kMemory>
void run_contiguous(const RmsNormRows& rows) {
  const Writer<T, kAdd> writer = writer_of<T, kAdd, kMemory>(rows);
  if constexpr (kUnrollsHeads<kAdd, kMemory>) {
    if (rows.cols == kHead) return normalise_rows<kHead>(rows, writer);
  }
  normalise_rows<0>(rows, writer);
}

template <class T, bool kAdd>
void run(const RmsNormRows& rows) {
  const bool in_order = rows.weight_form != WeightForm::kPrepared || !Lanes<T>::kEvenOdd;
  switch (memory_of<T, kAdd>(rows, in_order)) {
    case Memory::kCached: return run_contiguous<T, kAdd, Memory::kCached>(rows);
    case Memory::kPrefetch: return run_contiguous<T, kAdd, Memory::kPrefetch>(rows);
    case Memory::kPrefetchNonTemporal:
      run_contiguous<T, kAdd, Memory::kPrefetchNonTemporal>(rows);
      return stream_fence();
    case Memory::kStrided:
      for (std::int64_t row = 0; row < rows.rows; ++row) normalise_in_blocks<T, kAdd>(rows, row);
  }
}

template <class T>
void run_added(const RmsNormRows& rows) {
  rows.residual != nullptr ? run<T, true>(rows) : run<T, false>(rows);
}

}  // namespace

void rms_norm_centred(const RmsNormRows& rows) {
  switch (rows.dtype) {
    case DType::kFloat16: return run_added<Float16>(rows);
    case DType::kBFloat16: return run_added<BFloat16>(rows);
    case DType::kFloat32: return run_added<float>(rows);
    default: return run_added<double>(rows);
  }
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
