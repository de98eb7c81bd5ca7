// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/rms_norm_quant.hpp"

#include <algorithm>

#include "cpu/float_mode.hpp"
#include "cpu/parallel.hpp"
#include "cpu/rms_norm.hpp"
#include "membound/device.hpp"

namespace membound::cpu {

namespace {

// Rows of the norm on their way to the codes: as many as fit half of a first cache of 32 KiB, so
// that the second pass finds them there. Rows start on lines of the cache.
struct Scratch {
  explicit Scratch(const RmsNormProblem& norm)
      : size(static_cast<std::int64_t>(dtype_size(norm.dtype))),
        row_stride((norm.cols * size + kLine - 1) / kLine * kLine / size),
        rows(std::clamp<std::int64_t>(kBytes / (row_stride * size), 1, norm.rows)) {}

  std::int64_t bytes() const { return rows * row_stride * size; }

  std::int64_t size, row_stride, rows;

 private:
  static constexpr std::int64_t kBytes = 16 << 10;
  static constexpr std::int64_t kLine = 64;
};

PreparedNorm prepare_norm_into(const Scratch& scratch, RmsNormProblem norm,
                               const KernelTable& table) {
  norm.out_rows.rank = 1;
  norm.out_rows.strides[0] = scratch.row_stride;
  norm.out_col_stride = 1;
  PreparedNorm prepared = prepare_norm(norm, table);
  prepared.rows.bypass_cache = false;
  return prepared;
}

RmsNormQuantRows shared_part(const RmsNormQuantProblem& problem, const Scratch& scratch) {
  RmsNormQuantRows rows{};
  rows.static_scale = problem.static_scale;
  rows.dtype = problem.norm.dtype;
  rows.out_dtype = problem.out_dtype;
  rows.cols = problem.norm.cols;
  rows.group_size = problem.group_size;
  rows.y_row_stride = scratch.row_stride;
  rows.out_row_stride = row_stride(problem.out_rows);
  rows.out_col_stride = problem.out_col_stride;
  rows.scale_row_stride = problem.scale ? row_stride(problem.scale_rows) : 0;
  rows.scale_col_stride = problem.scale_col_stride;
  rows.scale_upper_bound = problem.scale_upper_bound;
  return rows;
}

}  // namespace

void rms_norm_quant(const RmsNormQuantProblem& problem) {
  const KernelTable& table = kernels();
  const FloatMode ieee;
  const std::int64_t total = problem.norm.rows;
  const Scratch scratch(problem.norm);
  const PreparedNorm norm = prepare_norm_into(scratch, problem.norm, table);
  const RmsNormQuantRows quant = shared_part(problem, scratch);

  // One part of the rows for each thread, which has a scratch of its own.
  const std::int64_t row_bytes =
      problem.norm.cols * ((problem.norm.residual ? 3 : 1) * scratch.size + 1);
  const std::int64_t grain = std::max<std::int64_t>(1, kBytesPerThread / row_bytes);
  const std::int64_t parts = std::clamp<std::int64_t>(total / grain, 1, cpu_threads());
  void* const scale = problem.scale;
  const DeviceBuffer storage(static_cast<std::size_t>(parts * scratch.bytes()), Device::cpu());
  const auto first_row = [&](std::int64_t part) {
    return total / parts * part + std::min(part, total % parts);
  };
  parallel_for(parts, 1, [&](std::int64_t first, std::int64_t last) {
    RmsNormRows rows = norm.rows;
    RmsNormQuantRows codes = quant;
    rows.out = storage.as<char>() + first * scratch.bytes();
    codes.y = rows.out;
    const std::int64_t end = first_row(last);
    for (std::int64_t row = first_row(first); row < end; row += rows.rows) {
      rows.rows = std::min(scratch.rows, end - row);
      enter_rows(rows, problem.norm, row);
      enter_row(codes.out, problem.out, problem.out_rows, problem.out_dtype, row, rows.rows);
      enter_row(codes.scale, scale, problem.scale_rows, DType::kFloat32, row, rows.rows);
      codes.rows = rows.rows;
      table.rms_norm(rows);
      table.rms_norm_quant(codes);
    }
  });
}

}  // namespace membound::cpu
