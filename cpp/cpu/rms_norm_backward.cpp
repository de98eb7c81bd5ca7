// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/rms_norm_backward.hpp"

#include <algorithm>
#include <cstring>

#include "cpu/float_mode.hpp"
#include "cpu/isa.hpp"
#include "cpu/parallel.hpp"
#include "cpu/rows.hpp"
#include "cpu/upright.hpp"

namespace membound::cpu {

namespace {

// Rows whose sums for dweight and dbias are one task of one thread: blocks in sequence. At most 64
// chunks keep the partial sums below 1 % of the traffic.
struct Chunks {
  std::int64_t rows_each;
  std::int64_t count;
};
Chunks chunks_of(std::int64_t rows) {
  constexpr std::int64_t kMost = 64;
  const std::int64_t blocks = (rows + kBlockOfRows - 1) / kBlockOfRows;
  const std::int64_t each = std::max<std::int64_t>(1, (blocks + kMost - 1) / kMost) * kBlockOfRows;
  return {each, (rows + each - 1) / each};
}

std::int64_t arrays_of(const RmsNormBackwardProblem& problem) {
  return 2 + (problem.dx != nullptr) + (problem.dsum != nullptr) + (problem.gate != nullptr) +
         (problem.dgate != nullptr);
}

std::int64_t matrix_bytes(const RmsNormBackwardProblem& problem) {
  const auto size = static_cast<std::int64_t>(dtype_size(problem.dtype));
  return problem.rows * problem.cols * size * arrays_of(problem);
}

bool is_in_place(const RmsNormBackwardProblem& problem) {
  const auto was_read = [&](const void* gradient) {
    return gradient != nullptr && (gradient == problem.dy || gradient == problem.x ||
                                   gradient == problem.dsum || gradient == problem.gate);
  };
  return was_read(problem.dx) || was_read(problem.dgate);
}

// What all rows share; row pointers and their number come with each run.
RmsNormBackwardRows shared_part(const RmsNormBackwardProblem& problem) {
  RmsNormBackwardRows rows{};
  rows.dtype = problem.dtype;
  rows.round_before_weight = problem.rounding == Rounding::kBeforeWeight;
  rows.norm_before_gate = problem.norm_before_gate;
  const NormMemory memory = norm_memory(matrix_bytes(problem), problem.gate != nullptr);
  rows.ask_ahead = memory.ask_ahead;
  // Never in place: the lines are there.
  rows.bypass_cache = memory.around_cache && !is_in_place(problem);
  rows.cols = problem.cols;
  rows.dy_row_stride = row_stride(problem.dy_rows);
  rows.x_row_stride = row_stride(problem.x_rows);
  rows.mean_row_stride = problem.mean ? row_stride(problem.mean_rows) : 0;
  rows.rstd_row_stride = row_stride(problem.rstd_rows);
  rows.dsum_row_stride = problem.dsum ? row_stride(problem.dsum_rows) : 0;
  rows.dx_row_stride = problem.dx ? row_stride(problem.dx_rows) : 0;
  rows.gate_row_stride = problem.gate ? row_stride(problem.gate_rows) : 0;
  rows.dgate_row_stride = problem.dgate ? row_stride(problem.dgate_rows) : 0;
  rows.dy_col_stride = problem.dy_col_stride;
  rows.x_col_stride = problem.x_col_stride;
  rows.dsum_col_stride = problem.dsum_col_stride;
  rows.dx_col_stride = problem.dx_col_stride;
  rows.gate_col_stride = problem.gate_col_stride;
  rows.dgate_col_stride = problem.dgate_col_stride;
  return rows;
}

std::array<MatrixField, 6> fields_of(RmsNormBackwardRows& rows) {
  return {matrix_field(rows.dy, rows.dy_row_stride, rows.dy_col_stride),
          matrix_field(rows.x, rows.x_row_stride, rows.x_col_stride),
          matrix_field(rows.dsum, rows.dsum_row_stride, rows.dsum_col_stride),
          matrix_field(rows.gate, rows.gate_row_stride, rows.gate_col_stride),
          matrix_field(rows.dx, rows.dx_row_stride, rows.dx_col_stride),
          matrix_field(rows.dgate, rows.dgate_row_stride, rows.dgate_col_stride)};
}

// Rows [first, last) of the problem, cut where a layout leaves its innermost axis. This thread goes
// on to row `end`.
void run_rows(const RmsNormBackwardProblem& problem, RmsNormBackwardRows rows,
              const KernelTable& table, std::int64_t first, std::int64_t last, std::int64_t end) {
  const DType dtype = problem.dtype;
  const auto run = problem.gate      ? table.rms_norm_backward_gated
                   : problem.centred ? table.rms_norm_backward_centred
                                     : table.rms_norm_backward;
  for (std::int64_t row = first; row < last; row += rows.rows) {
    rows.rows = end - row;
    enter_row(rows.dy, problem.dy, problem.dy_rows, dtype, row, rows.rows);
    enter_row(rows.x, problem.x, problem.x_rows, dtype, row, rows.rows);
    enter_row(rows.dsum, problem.dsum, problem.dsum_rows, dtype, row, rows.rows);
    enter_row(rows.gate, problem.gate, problem.gate_rows, dtype, row, rows.rows);
    enter_row(rows.dx, problem.dx, problem.dx_rows, dtype, row, rows.rows);
    enter_row(rows.dgate, problem.dgate, problem.dgate_rows, dtype, row, rows.rows);
    enter_row(rows.mean, problem.mean, problem.mean_rows, accumulate_dtype(dtype), row, rows.rows);
    enter_row(rows.rstd, problem.rstd, problem.rstd_rows, accumulate_dtype(dtype), row, rows.rows);
    rows.rows_behind = std::max<std::int64_t>(0, row + rows.rows - last);
    rows.rows -= rows.rows_behind;
    run_by_memory(
        rows, fields_of,
        [](RmsNormBackwardRows& part, const RmsNormBackwardRows& all, std::int64_t at) {
          const DType wide = accumulate_dtype(all.dtype);
          part.rows_behind = 0;
          part.mean = behind(all.mean, at * all.mean_row_stride, wide);
          part.rstd = behind(all.rstd, at * all.rstd_row_stride, wide);
        },
        run);
  }
}

// Sums down the columns: dy * h for dweight and, of centred rows, dy for dbias.
struct ColumnSums {
  ColumnSums(const RmsNormBackwardProblem& problem, std::int64_t chunks)
      : kinds(problem.centred ? 2 : 1),
        padded(problem.cols + kPreparedPadding),
        block_bytes(static_cast<std::size_t>(padded) * dtype_size(accumulate_dtype(problem.dtype))),
        blocks(static_cast<std::size_t>(kinds * chunks) * block_bytes, Device::cpu()),
        totals(static_cast<std::size_t>(kinds * chunks * padded) * sizeof(double), Device::cpu()),
        chunks_(chunks) {}

  // Of one block of rows, in the dtype of sums; kind 0 is for dweight, 1 for dbias.
  char* block(int kind, std::int64_t chunk) const {
    return blocks.as<char>() + static_cast<std::size_t>(chunk * kinds + kind) * block_bytes;
  }
  double* total(int kind, std::int64_t chunk) const {
    return totals.as<double>() + (kind * chunks_ + chunk) * padded;
  }

  const int kinds;
  const std::int64_t padded;
  const std::size_t block_bytes;

 private:
  DeviceBuffer blocks, totals;
  const std::int64_t chunks_;
};

// One chunk: its sums, and dx when it is wanted. `task` is the first chunk of this thread's, whose
// blocks are used again.
void run_chunk(const RmsNormBackwardProblem& problem, RmsNormBackwardRows rows,
               const KernelTable& table, const ColumnSums& sums, std::int64_t task,
               std::int64_t chunk, std::int64_t first, std::int64_t last) {
  rows.weight_sum = sums.block(0, task);
  rows.bias_sum = sums.kinds == 2 ? sums.block(1, task) : nullptr;
  for (std::int64_t row = first; row < last; row += kBlockOfRows) {
    std::memset(rows.weight_sum, 0, static_cast<std::size_t>(sums.kinds) * sums.block_bytes);
    run_rows(problem, rows, table, row, std::min(last, row + kBlockOfRows), last);
    for (int kind = 0; kind < sums.kinds; ++kind) {
      table.rms_norm_backward_block({sums.block(kind, task), sums.total(kind, chunk), row == first,
                                     problem.dtype, problem.cols});
    }
  }
}

void with_column_sums(const RmsNormBackwardProblem& problem, const RmsNormBackwardRows& rows,
                      const KernelTable& table, std::int64_t grain) {
  const Chunks chunks = chunks_of(problem.rows);
  const ColumnSums sums(problem, chunks.count);
  const std::int64_t chunk_grain = std::max<std::int64_t>(1, grain / chunks.rows_each);
  parallel_for(chunks.count, chunk_grain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t chunk = first; chunk < last; ++chunk) {
      const std::int64_t row = chunk * chunks.rows_each;
      run_chunk(problem, rows, table, sums, first, chunk, row,
                std::min(problem.rows, row + chunks.rows_each));
    }
  });
  const auto write = [&](int kind, void* to, DType dtype, std::int64_t stride) {
    if (to == nullptr) return;
    table.rms_norm_backward_weight({sums.total(kind, 0), chunks.count, problem.cols, problem.dtype,
                                    to, dtype, stride, problem.accumulate});
  };
  write(0, problem.dweight, problem.dweight_dtype, problem.dweight_stride);
  write(1, problem.dbias, problem.dbias_dtype, problem.dbias_stride);
}

}  // namespace

void rms_norm_backward(const RmsNormBackwardProblem& problem) {
  const KernelTable& table = kernels();
  const FloatMode ieee;
  RmsNormBackwardRows rows = shared_part(problem);
  const auto size = static_cast<std::int64_t>(dtype_size(problem.dtype));
  WeightSource source{problem.weight, problem.weight_dtype,  problem.weight_stride,
                      problem.cols,   problem.weight_offset, problem.dtype};
  const bool gated = problem.gate != nullptr;
  if (problem.weight == nullptr) source = ones(source);
  const PreparedWeight weight = prepare_weight(source, /*widen=*/size == 2 || gated, table);
  rows.weight = weight.data;

  const std::int64_t grain =
      std::max<std::int64_t>(1, kBytesPerThread / (arrays_of(problem) * problem.cols * size));
  if (problem.dweight != nullptr || problem.dbias != nullptr)
    return with_column_sums(problem, rows, table, grain);
  parallel_for(problem.rows, grain, [&](std::int64_t first, std::int64_t last) {
    run_rows(problem, rows, table, first, last, last);
  });
}

}  // namespace membound::cpu
