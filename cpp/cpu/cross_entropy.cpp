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

double number_of(const RowNumbers& numbers, std::int64_t row, DType dtype) {
  const std::int64_t at = numbers.rows.offset(row);
  return dtype == DType::kFloat64
             ? static_cast<const double*>(numbers.data)[at]
             : static_cast<double>(static_cast<const float*>(numbers.data)[at]);
}
void set_number(const RowNumbers& numbers, std::int64_t row, DType dtype, double value) {
  if (numbers.data == nullptr) return;
  void* data = const_cast<void*>(numbers.data);  // the caller's output
  const std::int64_t at = numbers.rows.offset(row);
  if (dtype == DType::kFloat64) {
    static_cast<double*>(data)[at] = value;
  } else {
    static_cast<float*>(data)[at] = static_cast<float>(value);
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

void run_row(const CrossEntropyProblem& p, CrossEntropyRow row, std::int64_t at,
             const KernelTable& table) {
  row.label = p.column(p.labels.at(p.labels.tokens.offset(at)));
  if (p.dloss.data != nullptr) row.dloss = number_of(p.dloss, at, p.dtype);
  if (row.lse_known) row.lse = number_of(p.lse, at, p.dtype);
  table.cross_entropy(row);
  if (row.lse_known) return;
  set_number(p.loss, at, p.dtype, row.loss);
  set_number(p.lse, at, p.dtype, row.lse);
}

}  // namespace

void cross_entropy(const CrossEntropyProblem& problem) {
  const KernelTable& table = kernels();
  const FloatMode ieee;
  const CrossEntropyOptions& options = problem.options;
  CrossEntropyRow shared{};
  shared.dtype = problem.dtype;
  shared.numbers = {options.label_smoothing, options.z_loss, options.softcap};
  shared.cols = problem.cols;
  shared.dloss = options.dloss;
  shared.lse_known = problem.loss.data == nullptr;
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
  const auto run = [&](const LogitRows& rows) {
    CrossEntropyRow row = shared;
    row.logits_col_stride = rows.logits_col_stride;
    row.dlogits_col_stride = rows.dlogits_col_stride;
    row.bypass_cache = rows.bypass_cache;
    row.ask_distance = rows.ask_ahead ? distance : 0;
    for (std::int64_t i = 0; i < rows.rows; ++i) {
      row.logits = behind(rows.logits, i * rows.logits_row_stride, rows.dtype);
      row.dlogits = behind(rows.dlogits, i * rows.dlogits_row_stride, rows.dtype);
      run_row(problem, row, rows.first + i, table);
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
