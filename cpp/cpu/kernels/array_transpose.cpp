// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/copy_bytes.hpp"
#include "cpu/kernels/array.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

// RegisterSquares of 16 bytes a side, one in each 16-byte lane of a vector of kBytes.
template <class T, int kBytes>
struct RegisterSquares {
  typedef T V __attribute__((vector_size(kBytes)));
  static constexpr int kSide = 16 / sizeof(T), kElements = kBytes / sizeof(T);

  template <int... k>
  struct Indices {};
  template <int kCount, int... k>
  struct Count : Count<kCount - 1, kCount - 1, k...> {};
  template <int... k>
  struct Count<0, k...> {
    using type = Indices<k...>;
  };

  // Interleaves, in each lane, elements from kFirst on of a and b.
  template <int kFirst, int... k>
  static MEMBOUND_ALWAYS_INLINE V merge(V a, V b, Indices<k...>) {
    return __builtin_shufflevector(
        a, b, (k / kSide * kSide + kFirst + k % kSide / 2 + k % 2 * kElements)...);
  }
  template <int kMergedRows = 1>
  static MEMBOUND_ALWAYS_INLINE void transpose(V (&rows)[kSide]) {
    constexpr typename Count<kElements>::type kIndices;
    V merged[kSide];
#pragma GCC unroll 8
    for (int i = 0; i < kSide / 2; ++i) {
      merged[2 * i] = merge<0>(rows[i], rows[i + kSide / 2], kIndices);
      merged[2 * i + 1] = merge<kSide / 2>(rows[i], rows[i + kSide / 2], kIndices);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kSide; ++i) rows[i] = merged[i];
    if constexpr (2 * kMergedRows < kSide) transpose<2 * kMergedRows>(rows);
  }
  // to[row][col] = from[col][row] for kElements rows and kSide columns.
  static MEMBOUND_ALWAYS_INLINE void copy(const T* from, std::int64_t from_stride, T* to,
                                          std::int64_t to_stride) {
    V rows[kSide];
#pragma GCC unroll 16
    for (int i = 0; i < kSide; ++i) rows[i] = load<V>(from + i * from_stride);
    transpose(rows);
#pragma GCC unroll 4
    for (int lane = 0; lane < kBytes / 16; ++lane) {
#pragma GCC unroll 16
      for (int i = 0; i < kSide; ++i) {
        __builtin_memcpy(to + (lane * kSide + i) * to_stride,
                         reinterpret_cast<const char*>(&rows[i]) + 16 * lane, 16);
      }
    }
  }
};

// Elements one by one; strides are between columns and rows.
template <class T>
void copy_elements(const T* from, std::int64_t from_row, std::int64_t from_col, T* to,
                   std::int64_t to_row, std::int64_t to_col, std::int64_t rows, std::int64_t cols) {
  for (std::int64_t row = 0; row < rows; ++row) {
#pragma GCC ivdep
    for (std::int64_t col = 0; col < cols; ++col)
      to[row * to_row + col * to_col] = from[row * from_row + col * from_col];
  }
}

// kCount sequences, one element of each after the other in memory, apart from each other, or back.
// Compilers make shuffles of it.
template <int kCount, bool kBack, class T>
void separate(const T* from, T* to, std::int64_t stride, std::int64_t count) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < count; ++i) {
#pragma GCC unroll 4
    for (int k = 0; k < kCount; ++k) {
      const std::int64_t together = i * kCount + k, apart = k * stride + i;
      kBack ? to[together] = from[apart] : to[apart] = from[together];
    }
  }
}
template <bool kBack, class T>
void separate(int sequences, const T* from, T* to, std::int64_t stride, std::int64_t count) {
  switch (sequences) {
    case 2: return separate<2, kBack>(from, to, stride, count);
    case 3: return separate<3, kBack>(from, to, stride, count);
    case 4: return separate<4, kBack>(from, to, stride, count);
    default: break;
  }
  kBack ? copy_elements(from, stride, 1, to, 1, sequences, sequences, count)
        : copy_elements(from, 1, sequences, to, stride, 1, sequences, count);
}

template <class T>
class Strips {
 public:
  explicit Strips(const ArrayTranspose& tile)
      : tile_(tile),
        from_stride_(tile.from_col_stride),
        stride_((tile.cols * kSize + kLine - 1) / kLine * kLine / kSize + kLine / kSize) {}

  // A strip is a cache line of each source column: as rows in a buffer, and from there to the
  // result in whole lines.
  void run() {
    if (tile_.from_row_stride == 1 && tile_.cols <= kFewColumns && tile_.to_stride == tile_.cols)
      return interleave();
    for (std::int64_t row = 0, rows; row < tile_.rows; row += rows) {
      const T* const from = source() + row * tile_.from_row_stride;
      const std::int64_t left = tile_.rows - row, whole = kStripRows - past_line(from);
      rows = left < whole ? left : whole;
      read(from, rows, left > rows ? from + rows : static_cast<const T*>(tile_.next));
      write(static_cast<T*>(tile_.to) + row * tile_.to_stride, rows);
    }
  }

 private:
  static constexpr std::int64_t kSize = sizeof(T), kStripRows = kLine / kSize;
  static constexpr int kSide = 16 / kSize, kFewColumns = kSide > 4 ? kSide - 1 : 4;

  // Of a strip's first column; the others mostly are as far past theirs.
  std::int64_t past_line(const T* from) const {
    if (tile_.rows <= kStripRows || tile_.from_row_stride != 1) return 0;
    return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(from) % kLine) / kSize;
  }
  const T* source() const { return static_cast<const T*>(tile_.from); }
  T* at(std::int64_t row, std::int64_t col) {
    return reinterpret_cast<T*>(buffer_) + row * stride_ + col;
  }

  // Few columns, whose rows follow one another in the result.
  void interleave() {
    const std::int64_t cols = tile_.cols, most = kTransposeBytes / (cols * kSize);
    for (std::int64_t row = 0; row < tile_.rows; row += most) {
      const std::int64_t rows = tile_.rows - row < most ? tile_.rows - row : most;
      separate<true>(static_cast<int>(cols), source() + row, at(0, 0), from_stride_, rows);
      copy_bytes(buffer_, reinterpret_cast<char*>(static_cast<T*>(tile_.to) + row * cols),
                 rows * cols * kSize, tile_.non_temporal);
    }
  }

  void read(const T* from, std::int64_t rows, const T* next) {
    if (tile_.from_row_stride != 1 || rows < kSide) {
      if (tile_.from_row_stride == 1 && from_stride_ == rows)
        return separate<false>(static_cast<int>(rows), from, at(0, 0), stride_, tile_.cols);
      return read_elements(from, rows, 0, 0);
    }
    const std::int64_t whole_rows = rows / kSide * kSide, whole_cols = tile_.cols / kSide * kSide;
    for (std::int64_t col = 0; col < whole_cols; col += kSide) {
      const T* columns = from + col * from_stride_;
      // Into L2: where strides are powers of two, L1 keeps few columns.
      for (int i = 0; i < kSide; ++i)
        __builtin_prefetch(next + (col + i) * from_stride_ + kStripRows - 1, 0, 2);
      if (rows == kStripRows) {
        for (std::int64_t row = 0; row < kStripRows; row += kVectorBytes / kSize)
          RegisterSquares<T, kVectorBytes>::copy(columns + row, from_stride_, at(row, col),
                                                 stride_);
      } else {
        for (std::int64_t row = 0; row < whole_rows; row += kSide)
          RegisterSquares<T, 16>::copy(columns + row, from_stride_, at(row, col), stride_);
      }
    }
    read_elements(from, rows, whole_rows, 0);
    read_elements(from, whole_rows, 0, whole_cols);
  }
  // Rows [first_row, rows) of columns [first_col, cols).
  void read_elements(const T* from, std::int64_t rows, std::int64_t first_row,
                     std::int64_t first_col) {
    copy_elements(from + first_row * tile_.from_row_stride + first_col * from_stride_,
                  tile_.from_row_stride, from_stride_, at(first_row, first_col), stride_, 1,
                  rows - first_row, tile_.cols - first_col);
  }

  void write(T* to, std::int64_t rows) {
    const std::int64_t bytes = tile_.cols * kSize;
    const std::uint64_t uneven = reinterpret_cast<std::uintptr_t>(to) |
                                 static_cast<std::uint64_t>(bytes | tile_.to_stride * kSize);
    const bool whole = tile_.non_temporal && uneven % kLine == 0;
    for (std::int64_t row = 0; row < rows; ++row, to += tile_.to_stride) {
      const char* from = reinterpret_cast<const char*>(at(row, 0));
      char* place = reinterpret_cast<char*>(to);
      if (!whole) {
        copy_bytes(from, place, bytes, tile_.non_temporal);
        continue;
      }
      for (std::int64_t i = 0; i < bytes; i += kVectorBytes) stream(place + i, load<F32>(from + i));
    }
  }

  const ArrayTranspose& tile_;
  const std::int64_t from_stride_, stride_;
  alignas(kLine) char buffer_[kTransposeBytes + 2 * kLine * (kLine / kSize)];
};

}  // namespace

void array_transpose(const ArrayTranspose& tile) {
  switch (tile.size) {
    case 1: return Strips<std::uint8_t>(tile).run();
    case 2: return Strips<std::uint16_t>(tile).run();
    case 4: return Strips<std::uint32_t>(tile).run();
    default: return Strips<std::uint64_t>(tile).run();
  }
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
