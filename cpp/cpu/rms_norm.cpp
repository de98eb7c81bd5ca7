// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/rms_norm.hpp"

#include <algorithm>
#include <cstdio>

#include "core/dispatch.hpp"
#include "core/memory.hpp"
#include "core/safe_scale.hpp"
#include "cpu/float_mode.hpp"
#include "cpu/isa.hpp"
#include "cpu/parallel.hpp"
#include "membound/device_buffer.hpp"

namespace membound::cpu {

namespace {

// One thread's share below this costs less than waking another (research: hot crossover 8 rows x
// 4096 float32, cold ten times that).
constexpr std::int64_t kBytesPerThread = 128 << 10;

// Bytes of the last cache that core 0 sees; 16 MiB where the system does not say.
std::int64_t last_cache_bytes() {
  long kibibytes = 0;
  if (std::FILE* file = std::fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r")) {
    if (std::fscanf(file, "%ldK", &kibibytes) != 1) kibibytes = 0;
    std::fclose(file);
  }
  return std::int64_t{kibibytes > 0 ? kibibytes : 16 << 10} << 10;
}

// Non-temporal stores pay from half the last cache on (32 MiB cache: 8 MiB output 1.0 x, 16 MiB
// 1.4 x with a consumer that reads the output at once), and never in place: the line is there.
bool pays_to_bypass_cache(const RmsNormProblem& problem) {
  static const std::int64_t threshold = last_cache_bytes() / 2;
  const auto size = static_cast<std::int64_t>(dtype_size(problem.dtype));
  return problem.x != problem.out && problem.rows * problem.cols >= threshold / size;
}

std::int64_t row_stride(const RowLayout& layout) {
  return layout.rank == 0 ? 0 : layout.strides[layout.rank - 1];
}

// Reading a 16-bit weight as it is costs a conversion per row and element. Enough rows pay for
// widening it once; stores around the cache need their lines undivided for that.
bool pays_to_widen_weight(const RmsNormProblem& problem, bool bypass_cache) {
  constexpr std::int64_t kRows = 16;
  const std::size_t size = dtype_size(problem.dtype);
  if (size != 2 || problem.rows < kRows) return false;
  const bool on_lines = reinterpret_cast<std::uintptr_t>(problem.out) % 64 == 0 &&
                        row_stride(problem.out_rows) * 2 % 64 == 0;
  return on_lines || !bypass_cache;
}

template <class T>
int safe_exponent_of(double largest, double eps) {
  constexpr bool wide = sizeof(accumulate_t<T>) == 8;
  return safe_exponent(largest, eps, wide ? kSafeExponentLimitDouble : kSafeExponentLimitFloat);
}

// What all rows share; row pointers and their number come with each run.
RmsNormRows shared_part(const RmsNormProblem& problem) {
  RmsNormRows rows{};
  rows.dtype = problem.dtype;
  rows.weight = problem.weight;
  rows.weight_form = problem.weight ? WeightForm::kNative : WeightForm::kNone;
  rows.round_before_weight = problem.rounding == Rounding::kBeforeWeight;
  rows.cols = problem.cols;
  rows.x_col_stride = problem.x_col_stride;
  rows.out_col_stride = problem.out_col_stride;
  rows.eps = problem.eps;
  rows.bypass_cache = pays_to_bypass_cache(problem);
  dispatch_floating(problem.dtype, "rms_norm", [&]<class T>() {
    const auto range = safe_range(problem.eps, accumulate_t<T>{});
    rows.safe_low = range.low;
    rows.safe_high = range.high;
    rows.safe_exponent = safe_exponent_of<T>;
  });
  return rows;
}

// Rows from `row` on that share one stride, at most `limit`.
std::int64_t run_length(const RowLayout& layout, std::int64_t row, std::int64_t limit) {
  if (layout.rank <= 1) return limit;
  const std::int64_t inner = layout.shape[layout.rank - 1];
  return std::min(limit, inner - row % inner);
}

// Rows [first, last) of the problem, cut where a layout leaves its innermost axis.
void run_rows(const RmsNormProblem& problem, RmsNormRows rows, const KernelTable& table,
              std::int64_t first, std::int64_t last) {
  const auto size = static_cast<std::int64_t>(dtype_size(problem.dtype));
  const auto rstd_size = static_cast<std::int64_t>(dtype_size(accumulate_dtype(problem.dtype)));
  rows.x_row_stride = row_stride(problem.x_rows);
  rows.out_row_stride = row_stride(problem.out_rows);
  rows.rstd_row_stride = problem.rstd ? row_stride(problem.rstd_rows) : 0;
  for (std::int64_t row = first; row < last; row += rows.rows) {
    rows.rows = run_length(problem.out_rows, row, run_length(problem.x_rows, row, last - row));
    rows.x = static_cast<const char*>(problem.x) + problem.x_rows.offset(row) * size;
    rows.out = static_cast<char*>(problem.out) + problem.out_rows.offset(row) * size;
    if (problem.rstd) {
      rows.rows = run_length(problem.rstd_rows, row, rows.rows);
      rows.rstd = static_cast<char*>(problem.rstd) + problem.rstd_rows.offset(row) * rstd_size;
    }
    table.rms_norm(rows);
  }
}

}  // namespace

void rms_norm(const RmsNormProblem& problem) {
  const KernelTable& table = kernels();
  const FloatMode ieee;
  RmsNormRows rows = shared_part(problem);

  DeviceBuffer prepared;
  const bool native = problem.weight_dtype == problem.dtype && problem.weight_stride == 1 &&
                      problem.weight_offset == 0.0;
  if (problem.weight != nullptr && (!native || pays_to_widen_weight(problem, rows.bypass_cache))) {
    const std::size_t bytes = static_cast<std::size_t>(problem.cols + kPreparedPadding) *
                              dtype_size(accumulate_dtype(problem.dtype));
    prepared = DeviceBuffer(bytes, Device::cpu());
    table.rms_norm_weight({problem.weight, problem.weight_dtype, problem.weight_stride,
                           problem.cols, problem.weight_offset, problem.dtype, prepared.data()});
    rows.weight = prepared.data();
    rows.weight_form = WeightForm::kPrepared;
  }

  const std::int64_t row_bytes =
      2 * problem.cols * static_cast<std::int64_t>(dtype_size(problem.dtype));
  const std::int64_t grain = std::max<std::int64_t>(1, kBytesPerThread / row_bytes);
  parallel_for(problem.rows, grain, [&](std::int64_t first, std::int64_t last) {
    run_rows(problem, rows, table, first, last);
  });
}

}  // namespace membound::cpu
