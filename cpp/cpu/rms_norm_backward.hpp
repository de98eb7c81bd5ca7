// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstring>

#include "core/rows.hpp"
#include "cpu/isa.hpp"
#include "cpu/parallel.hpp"
#include "membound/device_buffer.hpp"

// dweight and dbias of the norms: sums over the rows, in a reduction tree that depends on the
// number of rows alone.
namespace membound::cpu {

// A chunk is a range of rows that one thread sums for dweight and dbias, block after block. At most
// 64 chunks keep the partial sums below 1 % of the memory traffic.
struct Chunks {
  std::int64_t rows_each;
  std::int64_t count;
};
inline Chunks chunks_of(std::int64_t rows) {
  constexpr std::int64_t kMost = 64;
  const std::int64_t blocks = (rows + kBlockOfRows - 1) / kBlockOfRows;
  const std::int64_t each = std::max<std::int64_t>(1, (blocks + kMost - 1) / kMost) * kBlockOfRows;
  return {each, (rows + each - 1) / each};
}

struct ColumnGradients {
  DType dtype;  // of x; sums use its accumulate dtype
  std::int64_t rows, cols;
  bool centred;
  bool accumulate;
  OutputColumns dweight, dbias;
};

// Column sums: dy * h for dweight and, for centred rows, dy for dbias.
struct ColumnSums {
  ColumnSums(const ColumnGradients& of, std::int64_t chunks)
      : kinds(of.centred ? 2 : 1),
        padded(of.cols + kPreparedPadding),
        block_bytes(static_cast<std::size_t>(padded) * dtype_size(accumulate_dtype(of.dtype))),
        blocks(static_cast<std::size_t>(kinds * chunks) * block_bytes, Device::cpu()),
        totals(static_cast<std::size_t>(kinds * chunks * padded) * sizeof(double), Device::cpu()),
        chunks_(chunks) {}

  // The sums of one block of rows, in the accumulate dtype. kind: 0 for dweight, 1 for dbias.
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

// run_rows(task, weight_sum, bias_sum, first, last, end) adds rows [first, last) to the sums; its
// thread goes on to row `end`. task: the first chunk of the thread, whose block buffers all its
// chunks reuse.
template <class RunRows>
void sum_columns(const ColumnGradients& of, const KernelTable& table, std::int64_t grain,
                 const RunRows& run_rows) {
  const Chunks chunks = chunks_of(of.rows);
  const ColumnSums sums(of, chunks.count);
  const auto run_chunk = [&](std::int64_t task, std::int64_t chunk) {
    char* const weight_sum = sums.block(0, task);
    char* const bias_sum = sums.kinds == 2 ? sums.block(1, task) : nullptr;
    const std::int64_t first = chunk * chunks.rows_each;
    const std::int64_t last = std::min(of.rows, first + chunks.rows_each);
    for (std::int64_t row = first; row < last; row += kBlockOfRows) {
      std::memset(weight_sum, 0, static_cast<std::size_t>(sums.kinds) * sums.block_bytes);
      run_rows(task, weight_sum, bias_sum, row, std::min(last, row + kBlockOfRows), last);
      for (int kind = 0; kind < sums.kinds; ++kind) {
        table.rms_norm_backward_block(
            {sums.block(kind, task), sums.total(kind, chunk), row == first, of.dtype, of.cols});
      }
    }
  };
  const std::int64_t chunk_grain = std::max<std::int64_t>(1, grain / chunks.rows_each);
  parallel_for(chunks.count, chunk_grain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t chunk = first; chunk < last; ++chunk) run_chunk(first, chunk);
  });
  const auto write = [&](int kind, const OutputColumns& to) {
    if (to.data == nullptr) return;
    table.rms_norm_backward_weight({sums.total(kind, 0), chunks.count, of.cols, of.dtype, to.data,
                                    to.dtype, to.stride, of.accumulate});
  };
  write(0, of.dweight);
  write(1, of.dbias);
}

}  // namespace membound::cpu
