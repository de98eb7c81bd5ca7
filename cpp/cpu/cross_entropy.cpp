// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/cross_entropy.hpp"

#include <algorithm>
#include <limits>

#include "core/numeric.hpp"
#include "cpu/float_mode.hpp"
#include "cpu/parallel.hpp"
#include "cpu/rows.hpp"
#include "cpu/tiled_transpose.hpp"

namespace membound::cpu {

namespace {

// Logits whose losses are computed before their gradients read them again, from the cache (4096 x
// 2000 float32: 5.9 ms with 16 KiB, 5.1 with 128 KiB).
constexpr std::int64_t kCachedLogitBytes = 128 << 10;

// One number for each row, from row `first` on.
template <class A>
void read_numbers(const RowNumbers& numbers, std::int64_t first, std::int64_t count, double* to) {
  const A* const data = static_cast<const A*>(numbers.data);
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = static_cast<double>(data[numbers.rows.offset(first + i)]);
  }
}
template <class A>
void write_numbers(const double* from, const RowNumbers& numbers, std::int64_t first,
                   std::int64_t count) {
  if (numbers.data == nullptr) return;
  A* const data = static_cast<A*>(const_cast<void*>(numbers.data));  // the caller's output
  for (std::int64_t i = 0; i < count; ++i) {
    data[numbers.rows.offset(first + i)] = static_cast<A>(from[i]);
  }
}

void set_prediction(const TokenIntegers& predictions, std::int64_t row, std::int64_t value) {
  const std::int64_t at = predictions.tokens.offset(row);
  void* const data = const_cast<void*>(predictions.data);  // the caller's output
  if (predictions.wide) {
    static_cast<std::int64_t*>(data)[at] = value;
  } else {
    static_cast<std::int32_t*>(data)[at] = static_cast<std::int32_t>(value);
  }
}

// Class weights in the accumulate dtype, column by column.
template <class A>
struct Weights {
  Weights(const CrossEntropyProblem& p, const KernelTable& table) : sum(p.cols) {
    if (p.weight.data == nullptr) return;
    const auto& [data, dtype, stride] = p.weight;
    prepared = prepare_weight({data, dtype, stride, p.cols, 0.0, kDTypeOf<A>}, true, table);
    if (p.options.label_smoothing == 0) return;
    in_order = prepare_weight({data, dtype, stride, p.cols, 0.0, p.dtype}, true, table);
    sum = 0;
    for (std::int64_t col = 0; col < p.cols; ++col) sum += of_column(col);
  }

  double of_column(std::int64_t column) const {
    if (column == CrossEntropyProblem::kIgnored) return 0;
    if (column == CrossEntropyProblem::kOutside) return std::numeric_limits<double>::quiet_NaN();
    return prepared.data == nullptr ? 1 : static_cast<const A*>(prepared.data)[column];
  }
  // The sum over all labels.
  double of_rows(const CrossEntropyProblem& p) const {
    double total = 0;
    for (std::int64_t row = 0; row < p.rows; ++row) {
      total += of_column(p.column(p.labels.at(p.labels.tokens.offset(row))));
    }
    return total;
  }

  PreparedWeight prepared{};
  PreparedWeight in_order{};  // in the kernels' order; label smoothing needs all of them
  double sum;                 // over columns, with label smoothing; else the number of columns
};

// Evenly spaced rows of the problem, from row `first` on.
struct LogitRows {
  DType dtype;
  std::int64_t first, rows, cols;
  const void* logits;
  void* dlogits;
  std::int64_t logits_row_stride, logits_col_stride;
  std::int64_t dlogits_row_stride, dlogits_col_stride;
  bool bypass_cache, prefetch_ahead;
};
std::array<MatrixArgument, 2> fields_of(LogitRows& rows) {
  return {matrix_field(rows.logits, rows.logits_row_stride, rows.logits_col_stride),
          matrix_field(rows.dlogits, rows.dlogits_row_stride, rows.dlogits_col_stride)};
}

template <class A>
void run_rows(const CrossEntropyProblem& p, const Weights<A>& weights, CrossEntropyRows& rows,
              std::int64_t first, const KernelTable& table) {
  for (std::int64_t i = 0; i < rows.rows; ++i) {
    rows.label[i] = p.column(p.labels.at(p.labels.tokens.offset(first + i)));
    rows.weight[i] = weights.of_column(rows.label[i]);
  }
  std::fill_n(rows.dloss, rows.rows, p.options.dloss);
  if (p.dloss.data != nullptr) read_numbers<A>(p.dloss, first, rows.rows, rows.dloss);
  if (rows.lse_known) {
    std::fill_n(rows.low, rows.rows, 0.0);
    read_numbers<A>(p.lse, first, rows.rows, rows.top);
    if (p.lse_low.data != nullptr) read_numbers<A>(p.lse_low, first, rows.rows, rows.low);
    if (rows.has_dentropy) {
      read_numbers<A>(p.entropy, first, rows.rows, rows.entropy);
      read_numbers<A>(p.dentropy, first, rows.rows, rows.dentropy);
    }
  }
  table.cross_entropy(rows);
  if (rows.lse_known) return;
  write_numbers<A>(rows.loss, p.loss, first, rows.rows);
  write_numbers<A>(rows.top, p.lse, first, rows.rows);
  write_numbers<A>(rows.low, p.lse_low, first, rows.rows);
  write_numbers<A>(rows.z_loss, p.z_loss, first, rows.rows);
  write_numbers<A>(rows.entropy, p.entropy, first, rows.rows);
  for (std::int64_t i = 0; rows.wants_predictions && i < rows.rows; ++i) {
    set_prediction(p.predictions, first + i, rows.prediction[i]);
  }
}

// The sum over the rows, in order, divided by `divisor`.
template <class A>
void reduce(const CrossEntropyProblem& p, const RowNumbers& numbers, double divisor, void* to) {
  if (to == nullptr) return;
  double sum = 0, number;
  for (std::int64_t row = 0; row < p.rows; ++row) {
    read_numbers<A>(numbers, row, 1, &number);
    sum += number;
  }
  *static_cast<A*>(to) = static_cast<A>(sum / divisor);
}

template <class A>
void run_all(const CrossEntropyProblem& problem, const Weights<A>& weights,
             const KernelTable& table) {
  const CrossEntropyOptions& options = problem.options;
  const std::int64_t logits_bytes =
      problem.cols * static_cast<std::int64_t>(dtype_size(problem.dtype));
  const std::int64_t row_bytes = (problem.dlogits ? 2 : 1) * logits_bytes;
  LogitRows all{};
  all.dtype = problem.dtype;
  all.cols = problem.cols;
  all.logits_row_stride = row_stride(problem.logits_rows);
  all.logits_col_stride = problem.logits_col_stride;
  if (problem.dlogits != nullptr) all.dlogits_row_stride = row_stride(problem.dlogits_rows);
  all.dlogits_col_stride = problem.dlogits_col_stride;
  // Not for in-place calls: those lines are in the cache already.
  all.bypass_cache =
      problem.dlogits != problem.logits && pays_to_bypass_cache(problem.rows * logits_bytes);
  all.prefetch_ahead = true;
  const std::int64_t distance = prefetch_distance(problem.rows * logits_bytes);
  const std::int64_t rows_per_pass =
      problem.loss.data == nullptr || problem.dlogits == nullptr
          ? CrossEntropyRows::kMost
          : std::clamp(kCachedLogitBytes / logits_bytes, std::int64_t{1}, CrossEntropyRows::kMost);
  const auto run = [&](const LogitRows& rows) {
    CrossEntropyRows part;
    part.dtype = rows.dtype;
    part.numbers = {options.label_smoothing, options.z_loss, options.softcap, weights.in_order.data,
                    weights.sum};
    part.cols = rows.cols;
    part.lse_known = problem.loss.data == nullptr;
    part.wants_predictions = problem.predictions.data != nullptr;
    part.has_dentropy = problem.dentropy.data != nullptr;
    part.wants_entropy = problem.entropy.data != nullptr && !part.has_dentropy;
    part.logits_row_stride = rows.logits_row_stride;
    part.logits_col_stride = rows.logits_col_stride;
    part.dlogits_row_stride = rows.dlogits_row_stride;
    part.dlogits_col_stride = rows.dlogits_col_stride;
    part.bypass_cache = rows.bypass_cache;
    part.prefetch_distance = rows.prefetch_ahead ? distance : 0;
    for (std::int64_t first = 0; first < rows.rows; first += rows_per_pass) {
      part.rows = std::min(rows_per_pass, rows.rows - first);
      part.logits = offset_pointer(rows.logits, first * rows.logits_row_stride, rows.dtype);
      part.dlogits = offset_pointer(rows.dlogits, first * rows.dlogits_row_stride, rows.dtype);
      run_rows(problem, weights, part, rows.first + first, table);
    }
  };
  const std::int64_t grain = std::max<std::int64_t>(1, kBytesPerThread / row_bytes);
  parallel_for(problem.rows, grain, [&](std::int64_t first, std::int64_t last) {
    LogitRows rows = all;
    for (std::int64_t row = first; row < last; row += rows.rows) {
      rows.first = row;
      rows.rows = last - row;
      seek_row(rows.logits, problem.logits, problem.logits_rows, problem.dtype, row, rows.rows);
      seek_row(rows.dlogits, problem.dlogits, problem.dlogits_rows, problem.dtype, row, rows.rows);
      run_tiled_transpose(
          rows, fields_of,
          [](LogitRows& part, const LogitRows& all, std::int64_t at) {
            part.first = all.first + at;
          },
          run);
    }
  });
}

template <class A>
void run(CrossEntropyProblem problem) {
  const KernelTable& table = kernels();
  const FloatMode ieee;
  const Weights<A> weights(problem, table);
  if (problem.options.reduction != Reduction::kNone && problem.dloss.data != nullptr) {
    read_numbers<A>(problem.dloss, 0, 1, &problem.options.dloss);
    problem.dloss.data = nullptr;
  }
  const double divisor = problem.is_mean() ? weights.of_rows(problem) : 1;
  problem.options.dloss /= divisor;
  if (problem.rows > 0) run_all(problem, weights, table);
  reduce<A>(problem, problem.loss, divisor, problem.total);
  reduce<A>(problem, problem.z_loss, divisor, problem.z_total);
}

}  // namespace

void cross_entropy(const CrossEntropyProblem& problem) {
  problem.dtype == DType::kFloat64 ? run<double>(problem) : run<float>(problem);
}

}  // namespace membound::cpu
