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

// Calls body(from, to, count, from_stride, to_stride), in bytes, for rows of the last dimension, as
// many at once as one stride leads to.
template <class Body>
void each_rows(const ArrayCopy& problem, std::int64_t size, Body body) {
  const std::int64_t bytes = size_in_bytes(problem.result.dtype);
  const std::int64_t row = problem.dims.shape[problem.dims.rank - 1];
  ArrayDims rows = problem.dims;  // without the last dimension
  --rows.rank;
  const int last = rows.rank - 1;
  const std::int64_t from_stride = problem.source.strides[last] * bytes;
  const std::int64_t to_stride = problem.result.strides[last] * bytes;
  parallel_for(size / row, grain_of(problem.result.dtype) / row + 1,
               [&](std::int64_t first, std::int64_t last_row) {
                 std::int64_t at = first;
                 each_run(rows, problem.source.strides, first, last_row - first,
                          [&](std::int64_t from, std::int64_t run) {
                            const std::int64_t to = offset_of(rows, problem.result.strides, at);
                            body(static_cast<const char*>(problem.source.data) + from * bytes,
                                 static_cast<char*>(problem.result.data) + to * bytes, run,
                                 from_stride, to_stride);
                            at += run;
                          });
                 fence_stores();
               });
}

// Rows that are contiguous in both arrays.
void copy_rows(const ArrayCopy& problem, std::int64_t size, bool non_temporal,
               const KernelTable& table) {
  const std::int64_t row =
      problem.dims.shape[problem.dims.rank - 1] * size_in_bytes(problem.result.dtype);
  each_rows(problem, size,
            [&](const char* from, char* to, std::int64_t count, std::int64_t from_stride,
                std::int64_t to_stride) {
              table.array_store({from, to, row, non_temporal, count, from_stride, to_stride});
            });
}

// Writes `count` times a value, in vectors of 16 bytes of which the last two may overlap.
template <class T>
void repeat_value(T value, T* to, std::int64_t count) {
  constexpr std::int64_t kVector = 16 / sizeof(T);
  if (count < kVector) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = value;
    return;
  }
  T values[kVector];
  std::fill_n(values, kVector, value);
#pragma GCC unroll 4
  for (std::int64_t at = 0; at < count - kVector; at += kVector)
    std::memcpy(to + at, values, sizeof(values));
  std::memcpy(to + count - kVector, values, sizeof(values));
}

// Whether the rows of one element each are columns that kernels interleave.
bool is_few_columns(const ArrayCopy& problem) {
  const int inner = problem.dims.rank - 1;
  const std::int64_t times = problem.dims.shape[inner];
  return times <= 4 && problem.source.strides[inner - 1] == 1 &&
         problem.result.strides[inner - 1] == times;
}

// Rows of one element each in the source.
void copy_repeated(const ArrayCopy& problem, std::int64_t size) {
  const std::int64_t times = problem.dims.shape[problem.dims.rank - 1];
  with_bytes(size_in_bytes(problem.result.dtype), [&]<class T>(T) {
    each_rows(problem, size,
              [&](const char* from, char* to, std::int64_t count, std::int64_t from_stride,
                  std::int64_t to_stride) {
                for (; count > 0; --count, from += from_stride, to += to_stride)
                  repeat_value(*reinterpret_cast<const T*>(from), reinterpret_cast<T*>(to), times);
              });
  });
}

void copy_blocks(const ArrayCopy& problem, const ArrayDims& dims, bool non_temporal,
                 const KernelTable& table) {
  const DType dtype = problem.source.dtype;
  const int inner = problem.dims.rank - 1;
  // Long rows are read where they are: short ones are left to copy_rows.
  const bool in_place = inner >= 0 && dtype == problem.result.dtype &&
                        problem.source.strides[inner] == 1 && problem.result.strides[inner] == 1;
  const std::int64_t block = (in_place ? kBytesPerPart : kBlockBytes) /
                             std::max(size_in_bytes(dtype), size_in_bytes(problem.result.dtype));
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

// A number whose bytes are equal, as those of 0, by memset. False if it is another.
bool fill_bytes(const ArrayCopy& problem, std::int64_t size, const KernelTable& table) {
  const std::int64_t bytes = size_in_bytes(problem.result.dtype);
  char value[8];
  table.array_convert(
      {problem.source.scalar, value, problem.source.dtype, problem.result.dtype, 1});
  if (!std::all_of(value, value + bytes, [&](char byte) { return byte == value[0]; })) return false;
  char* const to = static_cast<char*>(problem.result.data);
  parallel_for(size * bytes, kBytesPerPart, [&](std::int64_t first, std::int64_t last) {
    std::memset(to + first, value[0], static_cast<std::size_t>(last - first));
  });
  return true;
}

}  // namespace

void array_copy(const ArrayCopy& problem) {
  const KernelTable& table = kernels();
  const ArrayDims dims = at_least_one(problem.dims);
  const std::int64_t size = dims.size();
  const bool non_temporal = pays_to_bypass_cache(size * size_in_bytes(problem.result.dtype));
  if (problem.source.data == nullptr && is_dense(problem.dims, problem.result.strides) &&
      fill_bytes(problem, size, table))
    return;
  if (problem.source.data != nullptr && problem.dims.rank > 0) {
    const bool dense =
        is_dense(dims, problem.source.strides) && is_dense(dims, problem.result.strides);
    if (dense && problem.source.dtype == problem.result.dtype)
      return copy_dense(problem, size, non_temporal, table);
    constexpr std::int64_t kLongRow = 64 << 10;  // elements: threads share it out
    const int inner = dims.rank - 1;
    if (problem.source.dtype == problem.result.dtype && dims.shape[inner] < kLongRow &&
        problem.result.strides[inner] == 1) {
      if (problem.source.strides[inner] == 1) return copy_rows(problem, size, non_temporal, table);
      if (problem.source.strides[inner] == 0 && inner > 0) {
        if (is_few_columns(problem))
          return TiledCopy(problem, inner - 1, non_temporal, table).run();
        return copy_repeated(problem, size);
      }
    }
    constexpr std::int64_t kFewElements = 1024;  // stay in the L1 cache
    const int axis = TiledCopy::source_axis(problem);
    if (axis != inner && size >= kFewElements)
      return TiledCopy(problem, axis, non_temporal, table).run();
  }
  copy_blocks(problem, dims, non_temporal, table);
}

}  // namespace membound::cpu
