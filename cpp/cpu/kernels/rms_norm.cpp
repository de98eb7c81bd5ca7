// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/rms_norm.hpp"

#include "cpu/kernels/rms_norm_row.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

constexpr std::int64_t kGroupBytes = 8 << 10;  // the second pass finds the rows in L1

// The compile-time parameters of a row.
template <class T_, WeightForm kForm_, bool kRoundFirst_, bool kAdd_>
struct Recipe {
  using T = T_;
  using A = typename Lanes<T>::A;
  using V = typename Lanes<T>::V;
  using Input = InputRow<T, kAdd_>;
  static constexpr WeightForm kForm = kForm_;
  static constexpr bool kRoundFirst = kRoundFirst_;
  static constexpr bool kAdd = kAdd_;
};

// value * rstd * weight for `count` elements (at most a step) from column col on.
template <class R>
struct Scaling {
  static constexpr int kPrefetched = 8;
  typename R::A rstd;
  const void* weight;

  MEMBOUND_ALWAYS_INLINE Pair<typename R::V> operator()(Pair<typename R::V> value, std::int64_t col,
                                                        std::int64_t count) const {
    value.first *= rstd;
    value.second *= rstd;
    if constexpr (R::kRoundFirst) value = Lanes<typename R::T>::round(value);
    if constexpr (R::kForm != WeightForm::kNone) {
      const auto factor = weight_step<typename R::T, R::kForm>(weight, col, count);
      value.first *= factor.first;
      value.second *= factor.second;
    }
    return value;
  }
};

// The same with run-time parameters, for rows on the slow path.
template <class T>
[[gnu::noinline]] Pair<typename Lanes<T>::V> scaled_at_run_time(Pair<typename Lanes<T>::V> value,
                                                                typename Lanes<T>::A rstd,
                                                                const RmsNormRows& rows,
                                                                std::int64_t col,
                                                                std::int64_t count) {
  value = rounded<T>({value.first * rstd, value.second * rstd}, rows.round_before_weight);
  if (rows.weight_form == WeightForm::kNone) return value;
  const bool native = rows.weight_form == WeightForm::kNative;
  const auto factor = native ? weight_step<T, WeightForm::kNative>(rows.weight, col, count)
                             : weight_step<T, WeightForm::kPrepared>(rows.weight, col, count);
  return {value.first * factor.first, value.second * factor.second};
}

// Not inlined: independent of the recipe.
template <class T, bool kAdd, class A>
[[gnu::noinline]] A sum_in_blocks(RowInBlocks<T, kAdd>& blocks, A scale) {
  using Row = Scaled<T, InputRow<T, kAdd>>;
  BlockSum<A> total;
  each_block<T>(blocks.rows.cols, [&](std::int64_t first, std::int64_t count) {
    A sum;
    sums_of_block<T>(Squares<T, Row>{{blocks.read(first, count), scale}}, 0, count, &sum);
    total.add(sum);
  });
  return total.value();
}

template <class T, bool kAdd, class A>
void write_in_blocks(RowInBlocks<T, kAdd>& blocks, A scale, A rstd) {
  constexpr std::int64_t kStep = Lanes<T>::kStep;
  each_block<T>(blocks.rows.cols, [&](std::int64_t first, std::int64_t count) {
    const auto block = blocks.read(first, count);
    for (std::int64_t i = 0; i < count; i += kStep) {
      const std::int64_t some = count - i < kStep ? count - i : kStep;
      auto value = some == kStep ? block.whole(i) : block.partial(i, some);
      if constexpr (kAdd) write_partial(blocks.sum_block + i, value, some);
      value.first *= scale;
      value.second *= scale;
      write_partial(blocks.out_block + i,
                    scaled_at_run_time<T>(value, rstd, blocks.rows, first + i, some), some);
    }
    blocks.write_back(first, count);
  });
}

// The slow path: any column strides, and the overflow-safe scale where the plain sum is out of
// range.
template <class T, bool kAdd>
[[gnu::noinline]] void normalise_in_blocks(const RmsNormRows& rows, std::int64_t row) {
  using A = typename Lanes<T>::A;
  RowInBlocks<T, kAdd> blocks(rows, row);
  const SafeRstd<A> safe = safe_rstd<A>(
      rows, [&](A scale) { return sum_in_blocks(blocks, scale); },
      [&] { return blocks.largest(); });
  store_statistic(rows.rstd, rows.rstd_row_stride, row, safe.unscaled());
  write_in_blocks(blocks, safe.scale, safe.rstd);
}

// kPrefetchNext: prefetches the first half of `upcoming`, a later row, meanwhile.
template <bool kPrefetchNext, class T, class Input>
MEMBOUND_ALWAYS_INLINE typename Lanes<T>::A sum_of_squares(const Input& input, std::int64_t cols,
                                                           const Input& upcoming) {
  constexpr std::int64_t kSize = sizeof(T);
  const Squares<T, Input> squares{input};
  typename Lanes<T>::A sum;
  if constexpr (kPrefetchNext) {
    std::int64_t prefetched = 0;
    sums_of_rows<T>(squares, cols, &sum, [&](std::int64_t col) {
      upcoming.template prefetch<2>(prefetched, col * kSize / 2);
      prefetched = col * kSize / 2;
    });
  } else {
    sums_of_rows<T>(squares, cols, &sum);
  }
  return sum;
}

// Not inlined: otherwise one unit takes seven minutes to compile.
template <bool kPrefetchNext, class T, class Input>
[[gnu::noinline]] typename Lanes<T>::A sum_of_any(const Input& input, std::int64_t cols,
                                                  const Input& upcoming) {
  return sum_of_squares<kPrefetchNext, T>(input, cols, upcoming);
}

// The rows of a group with their sums and rstds.
template <class T, bool kAdd>
struct GroupOfRows {
  using A = typename Lanes<T>::A;
  std::int64_t first, count;
  std::int64_t size;  // rows of all groups but the last
  A sums[kGroup], rstds[kGroup];

  // The row of the next group to prefetch while row i is computed; the row itself if there is none.
  MEMBOUND_ALWAYS_INLINE std::int64_t upcoming(std::int64_t total, std::int64_t i) const {
    return first + i + size < total ? first + i + size : first + i;
  }
};

// Not inlined: independent of the recipe. kCols: the number of columns if known at compile time.
template <class T, bool kAdd, std::int64_t kCols>
[[gnu::noinline]] void sum_group(const RmsNormRows& rows, GroupOfRows<T, kAdd>& group) {
  using A = typename Lanes<T>::A;
  const std::int64_t cols = kCols != 0 ? kCols : rows.cols;
  const RowsOf<T, kAdd> at(rows);
  const bool prefetch =
      rows.prefetch_ahead && prefetches_in_parts(cols * static_cast<std::int64_t>(sizeof(T)));
  for (std::int64_t i = 0; i < group.count; ++i) {
    const auto input = at.input(group.first + i);
    group.sums[i] = kCols != 0 ? sum_of_squares<false, T>(input, cols, input)
                    : prefetch
                        ? sum_of_any<true, T>(input, cols, at.input(group.upcoming(rows.rows, i)))
                        : sum_of_any<false, T>(input, cols, input);
  }
  const A width = static_cast<A>(cols), eps = static_cast<A>(rows.eps);
  each_of_group(group.count, [&](std::int64_t i) {
    group.rstds[i] = 1 / square_root(group.sums[i] / width + eps);
  });
  if (rows.rstd == nullptr) return;
  for (std::int64_t i = 0; i < group.count; ++i)
    store_statistic(rows.rstd, rows.rstd_row_stride, group.first + i, group.rstds[i]);
}

// Contiguous rows, a group at a time. Loop constants are copied to locals first: for all the
// compiler knows, stores to out alias `rows`.
template <class R, Memory kMemory, std::int64_t kCols = 0>
void normalise_rows(const RmsNormRows& rows) {
  using T = typename R::T;
  using A = typename R::A;
  using Input = typename R::Input;
  const std::int64_t cols = kCols != 0 ? kCols : rows.cols, total = rows.rows;
  const RowsOf<T, R::kAdd> at(rows);
  const void* weight = rows.weight;
  const A low = static_cast<A>(rows.safe_low), high = static_cast<A>(rows.safe_high);
  const bool prefetches = rows.prefetch_ahead;
  GroupOfRows<T, R::kAdd> group;
  group.size = rows_of_group(cols * static_cast<std::int64_t>(sizeof(T)), kGroupBytes);
  for (group.first = 0; group.first < total; group.first += group.size) {
    group.count = total - group.first < group.size ? total - group.first : group.size;
    sum_group<T, R::kAdd, kCols>(rows, group);
    for (std::int64_t i = 0; i < group.count; ++i) {
      const std::int64_t number = group.first + i;
      if (!(group.sums[i] >= low && group.sums[i] <= high)) [[unlikely]] {
        normalise_in_blocks<T, R::kAdd>(rows, number);
        continue;
      }
      const std::int64_t upcoming = group.upcoming(total, i);
      const WrittenRow<T, R::kAdd, Scaling<R>> row[] = {{at.input(number),
                                                         at.output(number),
                                                         {group.rstds[i], weight},
                                                         prefetches ? at.input(upcoming) : Input{},
                                                         at.output(upcoming)}};
      write_rows<kMemory>(row, cols);
    }
  }
}

// Non-temporal heads are many, so 16-bit weights are prepared then: no instantiation for native
// ones.
template <class R, Memory kMemory>
constexpr bool kMayBeHeads =
    sizeof(typename R::T) < 8 &&
    (kMemory == Memory::kPrefetch ||
     R::kForm == (sizeof(typename R::T) == 2 ? WeightForm::kPrepared : WeightForm::kNative));

template <class R, Memory kMemory>
void run_contiguous(const RmsNormRows& rows) {
  if constexpr (kMayBeHeads<R, kMemory> && kUnrollsHeads<R::kAdd, Memory::kCached>) {
    if (rows.cols == kHead) return normalise_rows<R, kMemory, kHead>(rows);
  }
  normalise_rows<R, kMemory>(rows);
}

template <class R>
void run(const RmsNormRows& rows) {
  using T = typename R::T;
  constexpr bool kInOrder = R::kForm != WeightForm::kPrepared || !Lanes<T>::kEvenOdd;
  switch (memory_of<T, R::kAdd>(rows, kInOrder)) {
    case Memory::kCached:
    case Memory::kPrefetch: return run_contiguous<R, Memory::kPrefetch>(rows);
    case Memory::kPrefetchNonTemporal:
      run_contiguous<R, Memory::kPrefetchNonTemporal>(rows);
      return stream_fence();
    case Memory::kStrided:
      for (std::int64_t row = 0; row < rows.rows; ++row) normalise_in_blocks<T, R::kAdd>(rows, row);
  }
}

template <class T, bool kRoundFirst, bool kAdd>
void run_with_weight(const RmsNormRows& rows) {
  // Without a weight, rounding twice changes nothing.
  if (rows.weight_form == WeightForm::kNone)
    return run<Recipe<T, WeightForm::kNone, false, kAdd>>(rows);
  if constexpr (sizeof(T) == 2) {
    if (rows.weight_form == WeightForm::kPrepared)
      return run<Recipe<T, WeightForm::kPrepared, kRoundFirst, kAdd>>(rows);
  }
  // With dtypes as wide as sums, prepared and native weights look the same.
  run<Recipe<T, WeightForm::kNative, kRoundFirst, kAdd>>(rows);
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
