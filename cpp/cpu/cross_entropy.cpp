// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/cross_entropy.hpp"

#include <algorithm>

#include "cpu/float_mode.hpp"
#include "cpu/parallel.hpp"
#include "cpu/rows.hpp"

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

void run_row(const CrossEntropyProblem& p, CrossEntropyRow row, std::int64_t at,
             const KernelTable& table) {
  const auto size = static_cast<std::int64_t>(dtype_size(p.dtype));
  row.logits = static_cast<const char*>(p.logits) + p.logits_rows.offset(at) * size;
  if (p.dlogits != nullptr) {
    row.dlogits = static_cast<char*>(p.dlogits) + p.dlogits_rows.offset(at) * size;
  }
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
  shared.logits_col_stride = problem.logits_col_stride;
  shared.dlogits_col_stride = problem.dlogits_col_stride;
  shared.dloss = options.dloss;
  shared.lse_known = problem.loss.data == nullptr;
  const std::int64_t logits_bytes =
      problem.cols * static_cast<std::int64_t>(dtype_size(problem.dtype));
  const std::int64_t row_bytes = (problem.dlogits ? 2 : 1) * logits_bytes;
  // Never in place: the lines are there.
  shared.bypass_cache =
      problem.dlogits != problem.logits && pays_to_bypass_cache(problem.rows * logits_bytes);
  shared.ask_distance = ask_distance(problem.rows * logits_bytes);
  const std::int64_t grain = std::max<std::int64_t>(1, kBytesPerThread / row_bytes);
  parallel_for(problem.rows, grain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) run_row(problem, shared, row, table);
  });
}

}  // namespace membound::cpu
