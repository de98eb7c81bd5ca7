// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "membound/tensor_view.hpp"

namespace membound {

// Leading axes that are left after neighbours with one common stride have been merged. Eight cannot
// be reached by slicing and transposing arrays of everyday rank.
inline constexpr int kMaxRowRank = 8;

// Where row r starts: the leading axes of a view in C order, strides in elements.
struct RowLayout {
  std::int32_t rank = 0;  // 0: one row, strides[0] is 0. 1: row r starts at r * strides[0].
  std::int64_t shape[kMaxRowRank];
  std::int64_t strides[kMaxRowRank];

  MEMBOUND_HOST_DEVICE std::int64_t offset(std::int64_t row) const {
    std::int64_t at = 0;
#ifdef __CUDACC__
#pragma unroll 1  // 7 KB in each kernel otherwise
#endif
    for (int axis = rank - 1; axis > 0; --axis) {
      // GPUs divide 32 bits several times faster than 64.
      const bool narrow = ((row | shape[axis]) >> 32) == 0;
      const std::int64_t outer =
          narrow ? static_cast<std::int64_t>(static_cast<std::uint32_t>(row) /
                                             static_cast<std::uint32_t>(shape[axis]))
                 : row / shape[axis];
      at += (row - outer * shape[axis]) * strides[axis];
      row = outer;
    }
    return at + row * strides[0];
  }
};

// The first `axes` axes of a view, merged where neighbours share one stride. op and argument name
// the caller's array when more than kMaxRowRank axes stay.
RowLayout row_layout(const ConstTensorView& view, int axes, const char* op, const char* argument);

// Between neighbours of the last axis; 1 where there is one element, whose stride says nothing.
inline std::int64_t column_stride(const ConstTensorView& view) {
  return view.shape[view.rank - 1] == 1 ? 1 : view.strides[view.rank - 1];
}

// The bytes that a view spans: [first, last) around data, negative strides included.
struct ByteSpan {
  const char* first;
  const char* last;
};
ByteSpan byte_span(const ConstTensorView& view);

// No two elements share an address (zero strides and self-crossing layouts do).
bool is_injective(const ConstTensorView& view);

// Same pointer, dtype, shape and strides: the exact alias that in-place ops take.
bool is_same_array(const ConstTensorView& a, const ConstTensorView& b);

// Some byte belongs to both. Exact for views of one buffer with one stride between rows (two column
// slices of it, or its even and its odd columns, do not overlap), conservative for what lies
// beyond.
bool may_overlap(const ConstTensorView& a, const ConstTensorView& b);

}  // namespace membound
