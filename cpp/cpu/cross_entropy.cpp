// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/cross_entropy.hpp"

#include <algorithm>

#include "cpu/float_mode.hpp"
#include "cpu/parallel.hpp"
#include "cpu/rows.hpp"
#include "cpu/upright.hpp"

namespace membound::cpu {

namespace {

// Logits of rows whose losses are computed together, before their gradients (4096 x 2000 float32,
// both: 16 KiB 5.9 ms, 64 KiB 5.5, 128 KiB 5.1, as 256 KiB).
constexpr std::int64_t kHeldBytes = 128 << 10;

// Numbers of rows, from row `first` on.
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

// Evenly spaced rows of the problem, from row `first` on.
struct LogitRows {
  DType dtype;
  std::int64_t first, rows, cols;
  const void* logits;
  void* dlogits;
  std::int64_t logits_row_stride, logits_col_stride;
  std::int64_t dlogits_row_stride, dlogits_col_stride;
  bool bypass_cache, ask_ahead;
};
std::array<MatrixField, 2> fields_of(LogitRows& rows) {
  return {matrix_field(rows.logits, rows.logits_row_stride, rows.logits_col_stride),
          matrix_field(rows.dlogits, rows.dlogits_row_stride, rows.dlogits_col_stride)};
}

template <class A>
void run_rows(const CrossEntropyProblem& p, CrossEntropyRows& rows, std::int64_t first,
              const KernelTable& table) {
  for (std::int64_t i = 0; i < rows.rows; ++i) {
    rows.label[i] = p.column(p.labels.at(p.labels.tokens.offset(first + i)));
  }
  std::fill_n(rows.dloss, rows.rows, p.options.dloss);
  if (p.dloss.data != nullptr) read_numbers<A>(p.dloss, first, rows.rows, rows.dloss);
  if (rows.lse_known) read_numbers<A>(p.lse, first, rows.rows, rows.lse);
  table.cross_entropy(rows);
  if (rows.lse_known) return;
  write_numbers<A>(rows.loss, p.loss, first, rows.rows);
  write_numbers<A>(rows.lse, p.lse, first, rows.rows);
}

}  // namespace

void cross_entropy(const CrossEntropyProblem& problem) {
  const KernelTable& table = kernels();
  const FloatMode ieee;
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
  // Never in place: the lines are there.
  all.bypass_cache =
      problem.dlogits != problem.logits && pays_to_bypass_cache(problem.rows * logits_bytes);
  all.ask_ahead = true;
  const std::int64_t distance = ask_distance(problem.rows * logits_bytes);
  const std::int64_t at_once =
      problem.loss.data == nullptr || problem.dlogits == nullptr
          ? CrossEntropyRows::kMost
          : std::clamp(kHeldBytes / logits_bytes, std::int64_t{1}, CrossEntropyRows::kMost);
  const auto run_part = problem.dtype == DType::kFloat64 ? run_rows<double> : run_rows<float>;
  const auto run = [&](const LogitRows& rows) {
    CrossEntropyRows part;
    part.dtype = rows.dtype;
    part.numbers = {options.label_smoothing, options.z_loss, options.softcap};
    part.cols = rows.cols;
    part.lse_known = problem.loss.data == nullptr;
    part.logits_row_stride = rows.logits_row_stride;
    part.logits_col_stride = rows.logits_col_stride;
    part.dlogits_row_stride = rows.dlogits_row_stride;
    part.dlogits_col_stride = rows.dlogits_col_stride;
    part.bypass_cache = rows.bypass_cache;
    part.ask_distance = rows.ask_ahead ? distance : 0;
    for (std::int64_t first = 0; first < rows.rows; first += at_once) {
      part.rows = std::min(at_once, rows.rows - first);
      part.logits = behind(rows.logits, first * rows.logits_row_stride, rows.dtype);
      part.dlogits = behind(rows.dlogits, first * rows.dlogits_row_stride, rows.dtype);
      run_part(problem, part, rows.first + first, table);
    }
  };
  const std::int64_t grain = std::max<std::int64_t>(1, kBytesPerThread / row_bytes);
  parallel_for(problem.rows, grain, [&](std::int64_t first, std::int64_t last) {
    LogitRows rows = all;
    for (std::int64_t row = first; row < last; row += rows.rows) {
      rows.first = row;
      rows.rows = last - row;
      enter_row(rows.logits, problem.logits, problem.logits_rows, problem.dtype, row, rows.rows);
      enter_row(rows.dlogits, problem.dlogits, problem.dlogits_rows, problem.dtype, row, rows.rows);
      run_by_memory(
          rows, fields_of,
          [](LogitRows& part, const LogitRows& all, std::int64_t at) {
            part.first = all.first + at;
          },
          run);
    }
  });
}

}  // namespace membound::cpu
