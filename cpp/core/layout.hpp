// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "membound/tensor_view.hpp"

namespace membound {

// The most leading axes after merging those that share one stride. Slicing and transposing arrays
// of usual rank cannot reach it.
inline constexpr int kMaxRowRank = 8;

// Offsets of the rows of a view: its leading axes in C order, strides in elements.
struct RowLayout {
  std::int32_t rank = 0;  // 0: one row, strides[0] is 0. 1: row r starts at r * strides[0].
  std::int64_t shape[kMaxRowRank];
  std::int64_t strides[kMaxRowRank];

  MEMBOUND_HOST_DEVICE std::int64_t offset(std::int64_t row) const {
    std::int64_t at = 0;
#ifdef __CUDACC__
#pragma unroll 1  // otherwise 7 KB per kernel
#endif
    for (int axis = rank - 1; axis > 0; --axis) {
      // GPUs divide 32-bit numbers several times faster than 64-bit ones.
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

// The first `axes` axes of a view, merged where they share one stride. op and argument name the
// array in the error if more than kMaxRowRank axes remain.
RowLayout row_layout(const ConstTensorView& view, int axes, const char* op, const char* argument);

// The stride of the last axis; 1 for a single element, whose stride is meaningless.
template <class Pointer>
std::int64_t column_stride(const BasicTensorView<Pointer>& view) {
  return view.shape[view.rank - 1] == 1 ? 1 : view.strides[view.rank - 1];
}

// The bytes that a view spans: [first, last), negative strides included.
struct ByteSpan {
  const char* first;
  const char* last;
};
ByteSpan byte_span(const ConstTensorView& view);

// True if no two elements share an address, as they do with zero strides or self-crossing layouts.
bool is_injective(const ConstTensorView& view);

// Same pointer, dtype, shape and strides: the exact alias that in-place ops accept.
bool is_same_array(const ConstTensorView& a, const ConstTensorView& b);

// True if some byte may belong to both. Exact for views of one buffer with the same row stride
// (disjoint column slices, or even and odd columns, do not overlap), conservative otherwise.
bool may_overlap(const ConstTensorView& a, const ConstTensorView& b);

}  // namespace membound
