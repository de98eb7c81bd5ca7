// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/array/blocks.hpp"
#include "cpu/array/transpose.hpp"
#include "cpu/float_mode.hpp"
#include "cpu/parallel.hpp"
#include "cpu/rows.hpp"

namespace membound::cpu {

namespace {

constexpr std::int64_t kBytesPerPart = 256 << 10;

std::int64_t grain_of(DType dtype) { return kBytesPerPart / size_in_bytes(dtype); }

void copy_dense(const ArrayCopy& problem, std::int64_t size, bool non_temporal,
                const KernelTable& table) {
  const std::int64_t bytes = size_in_bytes(problem.result.dtype);
  parallel_for(size, grain_of(problem.result.dtype), [&](std::int64_t first, std::int64_t last) {
    table.array_store({static_cast<const char*>(problem.source.data) + first * bytes,
                       static_cast<char*>(problem.result.data) + first * bytes,
                       (last - first) * bytes, non_temporal});
    if (non_temporal) fence_stores();
  });
}

// Rows that are contiguous in both arrays, as many at once as one stride leads to.
void copy_rows(const ArrayCopy& problem, std::int64_t size, bool non_temporal,
               const KernelTable& table) {
  const std::int64_t bytes = size_in_bytes(problem.result.dtype);
  const std::int64_t row = problem.dims.shape[problem.dims.rank - 1];
  ArrayDims rows = problem.dims;  // without the last dimension
  --rows.rank;
  const int last = rows.rank - 1;
  const std::int64_t from_stride = problem.source.strides[last];
  const std::int64_t to_stride = problem.result.strides[last];
  parallel_for(size / row, grain_of(problem.result.dtype) / row + 1,
               [&](std::int64_t first, std::int64_t last_row) {
                 std::int64_t at = first;
                 each_run(rows, problem.source.strides, first, last_row - first,
                          [&](std::int64_t from, std::int64_t run) {
                            const std::int64_t to = offset_of(rows, problem.result.strides, at);
                            const char* source = static_cast<const char*>(problem.source.data);
                            table.array_store({source + from * bytes,
                                               static_cast<char*>(problem.result.data) + to * bytes,
                                               row * bytes, non_temporal, run, from_stride * bytes,
                                               to_stride * bytes});
                            at += run;
                          });
                 if (non_temporal) fence_stores();
               });
}

void copy_blocks(const ArrayCopy& problem, const ArrayDims& dims, bool non_temporal,
                 const KernelTable& table) {
  const DType dtype = problem.source.dtype;
  const std::int64_t block =
      kBlockBytes / std::max(size_in_bytes(dtype), size_in_bytes(problem.result.dtype));
  // A number is converted once, not in every block.
  const bool is_number = problem.source.data == nullptr;
  const DType read_as = is_number ? problem.result.dtype : dtype;
  parallel_for(
      dims.size(), grain_of(problem.result.dtype), [&](std::int64_t first, std::int64_t last) {
        const FloatMode ieee;
        BlockReader reader(dims, problem.source, read_as,
                           is_number ? block_elements(read_as) : block, table);
        BlockWriter writer(dims, problem.result, read_as, non_temporal, table);
        each_block(dims, first, last, block, true, [&](std::int64_t at, std::int64_t count) {
          const void* values = reader.read(at, count, writer.begin(at, count));
          writer.end(at, count, const_cast<void*>(values));
        });
      });
}

}  // namespace

void array_copy(const ArrayCopy& problem) {
  const KernelTable& table = kernels();
  const ArrayDims dims = at_least_one(problem.dims);
  const std::int64_t size = dims.size();
  const bool non_temporal = pays_to_bypass_cache(size * size_in_bytes(problem.result.dtype));
  if (problem.source.data != nullptr && problem.dims.rank > 0) {
    const bool dense =
        is_dense(dims, problem.source.strides) && is_dense(dims, problem.result.strides);
    if (dense && problem.source.dtype == problem.result.dtype)
      return copy_dense(problem, size, non_temporal, table);
    constexpr std::int64_t kLongRow = 64 << 10;  // elements: threads share it out
    const int inner = dims.rank - 1;
    if (problem.source.dtype == problem.result.dtype && dims.shape[inner] < kLongRow &&
        problem.source.strides[inner] == 1 && problem.result.strides[inner] == 1)
      return copy_rows(problem, size, non_temporal, table);
    constexpr std::int64_t kFewElements = 1024;  // stay in the L1 cache
    const int axis = TiledCopy::source_axis(problem);
    if (axis != inner && size >= kFewElements)
      return TiledCopy(problem, axis, non_temporal, table).run();
  }
  copy_blocks(problem, dims, non_temporal, table);
}

}  // namespace membound::cpu
