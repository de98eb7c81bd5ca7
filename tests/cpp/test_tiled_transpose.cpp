// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "cpu/tiled_transpose.hpp"

using namespace membound;
using namespace membound::cpu;

namespace {

// Bytes that encode their position.
std::vector<std::uint8_t> numbered(std::int64_t bytes) {
  std::vector<std::uint8_t> values(static_cast<std::size_t>(bytes));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<std::uint8_t>(i * 37 + i / 251);
  }
  return values;
}

}  // namespace

TEST_CASE("rows go to their buffer and back, whatever is left of squares, and nothing else does") {
  const auto check = [](DType dtype, bool codes, std::int64_t cols, std::int64_t count,
                        std::int64_t step) {
    CAPTURE(dtype_name(dtype));
    CAPTURE(codes);
    CAPTURE(cols);
    CAPTURE(count);
    CAPTURE(step);
    const auto size = codes ? 1 : static_cast<std::int64_t>(dtype_size(dtype));
    const std::int64_t apart = count * 2 + 3;
    std::vector<std::uint8_t> memory = numbered((cols * apart + 1) * size);
    const std::int64_t start = step < 0 ? count - 1 : 0;
    void* data = memory.data() + start * size;
    std::int64_t row_stride = step, col_stride = apart;
    const MatrixArgument field = codes ? codes_field(data, row_stride, col_stride)
                                       : matrix_field(data, row_stride, col_stride);
    CHECK(field.is_transposed());
    const TransposedRows rows(dtype, cols);
    std::vector<std::uint8_t> buffer(static_cast<std::size_t>(count * rows.stride(field) * size));
    rows.copy<false>(field, buffer.data(), count);
    const auto there = [&](std::int64_t row, std::int64_t col) {
      return memory.data() + (start + row * step + col * apart) * size;
    };
    const auto here = [&](std::int64_t row, std::int64_t col) {
      return buffer.data() + (row * rows.stride(field) + col) * size;
    };
    int wrong = 0;
    for (std::int64_t row = 0; row < count; ++row) {
      for (std::int64_t col = 0; col < cols; ++col) {
        wrong += std::memcmp(here(row, col), there(row, col), size_t(size)) != 0;
        for (std::int64_t i = 0; i < size; ++i) here(row, col)[i] ^= 0xFF;
      }
    }
    CHECK(wrong == 0);
    std::vector<std::uint8_t> wanted = memory;
    for (std::int64_t row = 0; row < count; ++row) {
      for (std::int64_t col = 0; col < cols; ++col) {
        std::memcpy(wanted.data() + (there(row, col) - memory.data()), here(row, col),
                    size_t(size));
      }
    }
    rows.copy<true>(field, buffer.data(), count);
    CHECK(memory == wanted);
  };
  for (DType dtype : {DType::kFloat16, DType::kFloat32, DType::kFloat64}) {
    for (std::int64_t cols : {1, 3, 8, 17, 66}) {
      for (std::int64_t count : {1, 4, 15, 16, 41, 64}) {
        for (std::int64_t step : {1, 2, -1}) {
          check(dtype, false, cols, count, step);
          check(dtype, true, cols, count, step);
        }
      }
    }
  }
}

TEST_CASE("whole lines of columns at once, and rows that do not share sets of the first cache") {
  for (DType dtype : {DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
    const auto size = static_cast<std::int64_t>(dtype_size(dtype));
    for (std::int64_t cols : {1, 100, 1000, 1024, 5120, 12288, 50257, 131072}) {
      CAPTURE(cols);
      const TransposedRows rows(dtype, cols);
      CHECK(rows.rows_per_pass() >= 64 / size);
      CHECK(rows.rows_per_pass() * size % 64 == 0);
      CHECK(rows.rows_per_pass() <= 64);
      void* data = nullptr;
      std::int64_t row_stride = 1, col_stride = 64;
      const MatrixArgument numbers = matrix_field(data, row_stride, col_stride);
      const MatrixArgument codes = codes_field(data, row_stride, col_stride);
      CHECK(rows.stride(numbers) >= cols);
      CHECK(rows.stride(numbers) * size % 128 == 64);
      CHECK(rows.stride(codes) >= cols);
      CHECK(rows.stride(codes) % 128 == 64);
    }
  }
}
