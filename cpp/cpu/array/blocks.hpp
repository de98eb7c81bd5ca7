// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "cpu/array/strided.hpp"
#include "cpu/isa.hpp"

// Arrays of any strides and dtype, as blocks of contiguous elements of one dtype that stay in the
// L1 cache. Kernels see nothing else, so none is made for a layout or for a pair of dtypes.
namespace membound::cpu {

inline constexpr std::int64_t kBlockBytes = 4096;

// Elements of a block of that dtype, and of no smaller one.
inline std::int64_t block_elements(DType dtype) {
  return kBlockBytes / std::max<std::int64_t>(size_in_bytes(dtype), 1);
}

// The dtype that kernels compute in.
inline DType kernel_dtype(DType dtype) {
  return is_floating(dtype) ? accumulate_dtype(dtype) : dtype;
}

struct alignas(64) BlockMemory {
  char bytes[kBlockBytes];
};

// The dimensions of a problem; those of a single element have one of 1.
inline ArrayDims at_least_one(ArrayDims dims) {
  if (dims.rank == 0) {
    dims.rank = 1;
    dims.shape[0] = 1;
  }
  return dims;
}

// Reads an operand as `dtype`. Blocks have at most block_elements of the smaller dtype's... of the
// largest dtype in play, which the caller knows.
class BlockReader {
 public:
  BlockReader(const ArrayDims& dims, const ArrayOperand& operand, DType dtype, std::int64_t block,
              const KernelTable& table)
      : dims_(dims), operand_(operand), dtype_(dtype), table_(table) {
    if (dims.rank == 1 && dims.shape[0] == 1) operand_.strides[0] = 1;
    if (operand.data == nullptr || is_repeated()) {
      fill(block);
    } else {
      dense_ = is_dense(dims, operand_.strides);
    }
  }

  bool is_constant() const { return constant_; }
  // Blocks are where they are in memory.
  bool is_direct() const { return dense_ && operand_.dtype == dtype_; }
  // Elements [first, first + count).
  const void* read(std::int64_t first, std::int64_t count) {
    return read(first, count, gathered_.bytes);
  }
  // The same, in `room` if they are gathered.
  const void* read(std::int64_t first, std::int64_t count, void* room) {
    if (constant_) return values_.bytes;
    const std::int64_t size = size_in_bytes(operand_.dtype);
    const void* from = room;
    if (dense_) {
      from = static_cast<const char*>(operand_.data) + first * size;
    } else if (!in_one_row(first, count, from)) {
      gather_elements(dims_, operand_, first, count, room);
    }
    if (operand_.dtype == dtype_) return from;
    table_.array_convert({from, values_.bytes, operand_.dtype, dtype_, count});
    return values_.bytes;
  }

 private:
  bool is_repeated() const {
    return std::all_of(operand_.strides, operand_.strides + dims_.rank,
                       [](std::int64_t stride) { return stride == 0; });
  }
  void fill(std::int64_t block) {
    constant_ = true;
    const void* from = operand_.data != nullptr ? operand_.data : operand_.scalar;
    table_.array_convert({from, values_.bytes, operand_.dtype, dtype_, 1});
    with_bytes(size_in_bytes(dtype_), [&]<class T>(T value) {
      std::memcpy(&value, values_.bytes, sizeof(T));
      std::fill_n(reinterpret_cast<T*>(values_.bytes), block, value);
    });
  }
  bool in_one_row(std::int64_t first, std::int64_t count, const void*& from) const {
    const int last = dims_.rank - 1;
    if (operand_.strides[last] != 1 || first % dims_.shape[last] + count > dims_.shape[last])
      return false;
    from = static_cast<const char*>(operand_.data) +
           offset_of(dims_, operand_.strides, first) * size_in_bytes(operand_.dtype);
    return true;
  }

  const ArrayDims& dims_;
  ArrayOperand operand_;
  DType dtype_;
  const KernelTable& table_;
  bool constant_ = false, dense_ = false;
  BlockMemory values_, gathered_;
};

// Where a kernel writes a block, and how it gets to the result; other threads see all of it when
// the writer is gone.
class BlockWriter {
 public:
  BlockWriter(const ArrayDims& dims, const ArrayOperand& result, DType dtype, bool non_temporal,
              const KernelTable& table)
      : dims_(dims), result_(result), dtype_(dtype), non_temporal_(non_temporal), table_(table) {
    if (dims.rank == 1 && dims.shape[0] == 1) result_.strides[0] = 1;
    dense_ = is_dense(dims, result_.strides);
  }

  ~BlockWriter() {
    if (non_temporal_) fence_stores();
  }
  BlockWriter(const BlockWriter&) = delete;
  BlockWriter& operator=(const BlockWriter&) = delete;

  bool is_direct() const { return dense_ && result_.dtype == dtype_ && !non_temporal_; }
  void* begin(std::int64_t first, std::int64_t count) {
    row_ = nullptr;
    if (dense_) {
      row_ = static_cast<char*>(result_.data) + first * size_in_bytes(result_.dtype);
    } else if (result_.strides[dims_.rank - 1] == 1) {
      row_ = row_at(first, count);
    }
    return row_ != nullptr && result_.dtype == dtype_ && !non_temporal_ ? row_ : values_.bytes;
  }
  void end(std::int64_t first, std::int64_t count, void* written) {
    if (written == row_) return;
    if (result_.dtype != dtype_) {
      const bool straight = row_ != nullptr && !non_temporal_;
      void* to = straight ? row_ : static_cast<void*>(converted_.bytes);
      table_.array_convert({written, to, dtype_, result_.dtype, count});
      if (straight) return;
      written = to;
    }
    if (row_ != nullptr) {
      table_.array_store({written, row_, count * size_in_bytes(result_.dtype), non_temporal_});
    } else {
      scatter_elements(dims_, result_, first, count, written);
    }
  }

 private:
  char* row_at(std::int64_t first, std::int64_t count) const {
    const int last = dims_.rank - 1;
    if (first % dims_.shape[last] + count > dims_.shape[last]) return nullptr;
    return static_cast<char*>(result_.data) +
           offset_of(dims_, result_.strides, first) * size_in_bytes(result_.dtype);
  }

  const ArrayDims& dims_;
  ArrayOperand result_;
  DType dtype_;
  bool non_temporal_;
  const KernelTable& table_;
  bool dense_ = false;
  char* row_ = nullptr;
  BlockMemory values_, converted_;
};

// Calls body(first, count) for the blocks of [first, last): whole rows of the last dimension, or
// parts of them, unless rows are short.
template <class Body>
void each_block(const ArrayDims& dims, std::int64_t first, std::int64_t last, std::int64_t block,
                bool by_rows, Body body) {
  constexpr std::int64_t kShortRow = 64;
  const std::int64_t row = dims.shape[dims.rank - 1];
  by_rows = by_rows && row >= kShortRow;
  while (first < last) {
    std::int64_t count = std::min(block, last - first);
    if (by_rows) count = std::min(count, row - first % row);
    body(first, count);
    first += count;
  }
}

}  // namespace membound::cpu
