// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/array.hpp"
#include "cpu/vec.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

// Two vectors wide, and as many rows as leave registers for a row of b and an element of a.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kTileRows = 12;
#else
constexpr int kTileRows = 6;
#endif

template <class T>
struct Tile {
  typedef T V __attribute__((vector_size(kVectorBytes)));
  static constexpr int kLanes = kVectorBytes / sizeof(T), kColumns = 2 * kLanes;

  static MEMBOUND_ALWAYS_INLINE V add_product(V a, V b, V sum) {
    if constexpr (T(0.5) != T(0)) {
      return multiply_add(a, b, sum);
    } else {
      return a * b + sum;
    }
  }

  // One tile: sums[row] over p of a[p][row] * b[p].
  static MEMBOUND_ALWAYS_INLINE void multiply(const T* a, const T* b, std::int64_t inner,
                                              V (&sums)[kTileRows][2]) {
    for (auto& row : sums) row[0] = row[1] = V{};
    for (std::int64_t p = 0; p < inner; ++p, a += kTileRows, b += kColumns) {
      const V first = load<V>(b), second = load<V>(b + kLanes);
#pragma GCC unroll 12
      for (int row = 0; row < kTileRows; ++row) {
        const V value = a[row] - V{};  // a + 0 would be an addition
        sums[row][0] = add_product(value, first, sums[row][0]);
        sums[row][1] = add_product(value, second, sums[row][1]);
      }
    }
  }
  static MEMBOUND_ALWAYS_INLINE void store_whole(V (&sums)[kTileRows][2], T* to,
                                                 std::int64_t stride, bool accumulates) {
#pragma GCC unroll 12
    for (int row = 0; row < kTileRows; ++row, to += stride) {
      for (int half = 0; half < 2; ++half) {
        T* at = to + half * kLanes;
        store(at, accumulates ? sums[row][half] + load<V>(at) : sums[row][half]);
      }
    }
  }
  static void store_part(V (&sums)[kTileRows][2], T* to, std::int64_t stride, std::int64_t rows,
                         std::int64_t columns, bool accumulates) {
    T values[kTileRows][kColumns];
    __builtin_memcpy(values, sums, sizeof(values));
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t col = 0; col < columns; ++col) {
        T& at = to[row * stride + col];
        at = accumulates ? at + values[row][col] : values[row][col];
      }
    }
  }

  static void block(const MatmulBlock& block) {
    const T* a = static_cast<const T*>(block.a);
    const T* b = static_cast<const T*>(block.b);
    T* result = static_cast<T*>(block.result);
    for (std::int64_t col = 0; col < block.columns; col += kColumns) {
      for (std::int64_t row = 0; row < block.rows; row += kTileRows) {
        V sums[kTileRows][2];
        multiply(a + row * block.inner, b + col * block.inner, block.inner, sums);
        T* to = result + row * block.result_stride + col;
        const std::int64_t rows = block.rows - row, columns = block.columns - col;
        if (rows >= kTileRows && columns >= kColumns) {
          store_whole(sums, to, block.result_stride, block.accumulates);
        } else {
          store_part(sums, to, block.result_stride, rows < kTileRows ? rows : kTileRows,
                     columns < kColumns ? columns : kColumns, block.accumulates);
        }
      }
    }
  }
};

}  // namespace

void array_matmul(const MatmulBlock& block) {
  switch (block.dtype) {
    case DType::kFloat32: return Tile<float>::block(block);
    case DType::kFloat64: return Tile<double>::block(block);
    case DType::kUInt32: return Tile<std::uint32_t>::block(block);
    default: return Tile<std::uint64_t>::block(block);
  }
}

void array_matmul_tile(MatmulTile& tile) {
  const bool is_narrow = tile.dtype == DType::kFloat32 || tile.dtype == DType::kUInt32;
  tile.rows = kTileRows;
  tile.columns = 2 * kVectorBytes / (is_narrow ? 4 : 8);
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
