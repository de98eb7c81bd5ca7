// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cpu/array/strided.hpp"
#include "cpu/float_mode.hpp"
#include "cpu/isa.hpp"
#include "cpu/parallel.hpp"
#include "cpu/thread_memory.hpp"
#include "membound/device_buffer.hpp"
#include "ops/array/operands.hpp"

// Blocks of a and b are packed, so that the kernel reads both contiguously whatever the strides
// and dtypes are. The sum over `inner` is cut into parts of a fixed length: bits do not depend on
// the number of threads.
namespace membound::cpu {

namespace {

// Narrow integers are multiplied modulo 2^32, 16-bit floats in float32.
DType product_dtype(DType dtype) {
  if (is_floating(dtype)) return accumulate_dtype(dtype);
  return dtype_size(dtype) == 8 ? DType::kUInt64 : DType::kUInt32;
}

// A strided matrix, or its part.
struct Matrix {
  const char* data;
  DType dtype;
  std::int64_t row_stride, col_stride;

  const char* at(std::int64_t row, std::int64_t col) const {
    return data + (row * row_stride + col * col_stride) * size_in_bytes(dtype);
  }
  Matrix transposed() const { return {data, dtype, col_stride, row_stride}; }
};

// to[row / tile][col][row % tile], padded with zeros.
template <class T>
void pack_as(const Matrix& from, std::int64_t rows, std::int64_t cols, std::int64_t tile, T* to) {
  for (std::int64_t row = 0; row < rows; row += tile, to += tile * cols) {
    const T* x = reinterpret_cast<const T*>(from.at(row, 0));
    const std::int64_t count = std::min(tile, rows - row);
    if (count < tile) std::fill_n(to, tile * cols, T{});
    if (from.row_stride == 1) {
      for (std::int64_t col = 0; col < cols; ++col)
        std::memcpy(to + col * tile, x + col * from.col_stride,
                    static_cast<std::size_t>(count) * sizeof(T));
      continue;
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const T* line = x + i * from.row_stride;
      for (std::int64_t col = 0; col < cols; ++col)
        to[col * tile + i] = line[col * from.col_stride];
    }
  }
}

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

class Product {
 public:
  explicit Product(const ArrayMatmul& problem)
      : problem_(problem),
        table_(kernels()),
        dtype_(product_dtype(problem.dtype)),
        size_(size_in_bytes(dtype_)),
        direct_(problem.result_strides[1] == 1 && problem.dtype == dtype_),
        inner_part_(kPackedBytes / kRowsPerPart / size_),
        columns_part_(kPackedColumnBytes / size_) {
    tile_.dtype = dtype_;
    table_.array_matmul_tile(tile_);
    if (problem.result.dtype != dtype_ && dtype_size(problem.dtype) == dtype_size(dtype_))
      direct_ = problem.result_strides[1] == 1;  // signed integers
  }

  void run() {
    const std::int64_t inner = std::min(inner_part_, problem_.inner);
    const std::int64_t columns = round_up(std::min(columns_part_, problem_.columns), tile_.columns);
    packed_b_ = DeviceBuffer(static_cast<std::size_t>(2 * inner * columns * size_), Device::cpu());
    if (!direct_) {
      sums_ = DeviceBuffer(static_cast<std::size_t>(
                               problem_.rows * std::min(columns_part_, problem_.columns) * size_),
                           Device::cpu());
    }
    const ArrayDims batch = at_least_one_batch();
    each_run(batch, index_strides_, 0, batch.size(), [&](std::int64_t first, std::int64_t count) {
      for (std::int64_t at = first; at < first + count; ++at) multiply(batch, at);
    });
  }

 private:
  static constexpr std::int64_t kPackedBytes = 96 << 10, kRowsPerPart = 96;
  static constexpr std::int64_t kPackedColumnBytes = 4096;  // of columns

  ArrayDims at_least_one_batch() {
    ArrayDims batch = problem_.batch;
    if (batch.rank == 0) {
      batch.rank = 1;
      batch.shape[0] = 1;
      for (ArrayOperand* operand : {&problem_.result, &problem_.a, &problem_.b})
        operand->strides[0] = 0;
    }
    std::int64_t stride = 1;
    for (int axis = batch.rank - 1; axis >= 0; stride *= batch.shape[axis--])
      index_strides_[axis] = stride;
    return batch;
  }
  static char* element(const ArrayOperand& operand, const ArrayDims& batch, std::int64_t at) {
    std::int64_t offset = 0;
    for (int axis = batch.rank - 1; axis >= 0; at /= batch.shape[axis--])
      offset += at % batch.shape[axis] * operand.strides[axis];
    return static_cast<char*>(operand.data) + offset * size_in_bytes(operand.dtype);
  }

  void multiply(const ArrayDims& batch, std::int64_t at) {
    const Matrix a{element(problem_.a, batch, at), problem_.a.dtype, problem_.a_strides[0],
                   problem_.a_strides[1]};
    const Matrix b{element(problem_.b, batch, at), problem_.b.dtype, problem_.b_strides[0],
                   problem_.b_strides[1]};
    char* result = element(problem_.result, batch, at);
    for (std::int64_t col = 0; col < problem_.columns; col += columns_part_) {
      const std::int64_t columns = std::min(columns_part_, problem_.columns - col);
      char* part = result + col * problem_.result_strides[1] * size_in_bytes(problem_.result.dtype);
      for (std::int64_t p = 0; p < problem_.inner; p += inner_part_) {
        const std::int64_t inner = std::min(inner_part_, problem_.inner - p);
        Matrix from = b;
        from.data = b.at(p, col);
        pack_b(from, inner, columns);
        from = a;
        from.data = a.at(0, p);
        multiply_part(from, part, inner, columns, p > 0);
      }
      if (!direct_) convert(part, columns);
    }
  }

  void pack_b(const Matrix& from, std::int64_t inner, std::int64_t columns) {
    const std::int64_t tiles = (columns + tile_.columns - 1) / tile_.columns;
    const std::int64_t each = inner * tile_.columns;
    char* raw = packed_b_.as<char>() + packed_b_.bytes() / 2;
    parallel_for(tiles, std::max<std::int64_t>((256 << 10) / each / size_, 1),
                 [&](std::int64_t first, std::int64_t last) {
                   const std::int64_t col = first * tile_.columns;
                   const std::int64_t count = std::min(last * tile_.columns, columns) - col;
                   Matrix part = from.transposed();
                   part.data = from.at(0, col);
                   pack(part, count, inner, tile_.columns, raw + first * each * size_,
                        packed_b_.as<char>() + first * each * size_);
                 });
  }
  // raw: room for the elements before conversion.
  void pack(const Matrix& from, std::int64_t rows, std::int64_t cols, std::int64_t tile, char* raw,
            char* to) const {
    const bool converts = from.dtype != dtype_ && size_in_bytes(from.dtype) != size_;
    char* packed = converts ? raw : to;
    with_bytes(size_in_bytes(from.dtype),
               [&]<class T>(T) { pack_as(from, rows, cols, tile, reinterpret_cast<T*>(packed)); });
    if (converts) table_.array_convert({raw, to, from.dtype, dtype_, round_up(rows, tile) * cols});
  }

  void multiply_part(const Matrix& a, char* result, std::int64_t inner, std::int64_t columns,
                     bool accumulates) {
    const std::int64_t rows_part = std::max(kRowsPerPart / 2 / tile_.rows * tile_.rows, tile_.rows);
    const std::int64_t parts = (problem_.rows + rows_part - 1) / rows_part;
    const std::int64_t work = rows_part * inner * columns;
    char* to = direct_ ? result : sums_.as<char>();
    const std::int64_t stride = direct_ ? problem_.result_strides[0] : columns;
    parallel_for(
        parts, std::max<std::int64_t>((1 << 20) / work, 1),
        [&](std::int64_t first, std::int64_t last) {
          const FloatMode ieee;
          char* packed = thread_array<char, kThreadMemoryBytes>();
          for (std::int64_t part = first; part < last; ++part) {
            const std::int64_t row = part * rows_part;
            const std::int64_t rows = std::min(rows_part, problem_.rows - row);
            Matrix from = a;
            from.data = a.at(row, 0);
            pack(from, rows, inner, tile_.rows, packed + kThreadMemoryBytes / 2, packed);
            table_.array_matmul({dtype_, packed, packed_b_.data(), to + row * stride * size_,
                                 stride, rows, columns, inner, accumulates});
          }
        });
  }

  void convert(char* result, std::int64_t columns) const {
    ArrayCopy copy;
    copy.dims.rank = 2;
    copy.dims.shape[0] = problem_.rows;
    copy.dims.shape[1] = columns;
    copy.result = problem_.result;
    copy.result.data = result;
    std::copy_n(problem_.result_strides, 2, copy.result.strides);
    copy.source.data = sums_.data();
    copy.source.dtype = dtype_;
    copy.source.strides[0] = columns;
    copy.source.strides[1] = 1;
    merge(copy.dims, {&copy.result, &copy.source});
    array_copy(copy);
  }

  ArrayMatmul problem_;
  const KernelTable& table_;
  const DType dtype_;
  const std::int64_t size_;
  bool direct_;
  const std::int64_t inner_part_, columns_part_;
  MatmulTile tile_{};
  std::int64_t index_strides_[kMaxRank];
  DeviceBuffer packed_b_, sums_;
};

}  // namespace

void array_matmul(const ArrayMatmul& problem) { Product(problem).run(); }

}  // namespace membound::cpu
