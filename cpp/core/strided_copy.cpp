// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/strided_copy.hpp"

#include <algorithm>
#include <cstring>

namespace membound {

namespace {

// Some columns of some neighbouring segments; packed memory holds them without gaps.
struct Block {
  std::int64_t segment, segments;
  std::int64_t col, cols;
};

template <bool kGather>
void move(char* strided, char* packed, std::size_t bytes) {
  std::memcpy(kGather ? packed : strided, kGather ? strided : packed, bytes);
}

// Segments that touch the same cache lines (a transposed array) follow each other inside a tile of
// columns, so that each line is fetched once.
constexpr std::int64_t kTileCols = 64;

template <bool kGather, std::size_t kElementBytes>
void copy_elements(const StridedLayout& layout, char* array, char* packed, const Block& block) {
  const std::int64_t step = layout.col_stride * static_cast<std::int64_t>(kElementBytes);
  for (std::int64_t tile = 0; tile < block.cols; tile += kTileCols) {
    const std::int64_t tile_cols = std::min(kTileCols, block.cols - tile);
    for (std::int64_t i = 0; i < block.segments; ++i) {
      char* strided = array + layout.segments.offset(block.segment + i) * kElementBytes +
                      (block.col + tile) * step;
      char* dense = packed + (i * block.cols + tile) * kElementBytes;
      for (std::int64_t col = 0; col < tile_cols; ++col) {
        move<kGather>(strided + col * step, dense + col * kElementBytes, kElementBytes);
      }
    }
  }
}

template <bool kGather>
void copy_block(const StridedLayout& layout, char* array, char* packed, const Block& block) {
  if (layout.col_stride != 1) {
    switch (layout.element_bytes) {
      case 1: return copy_elements<kGather, 1>(layout, array, packed, block);
      case 2: return copy_elements<kGather, 2>(layout, array, packed, block);
      case 4: return copy_elements<kGather, 4>(layout, array, packed, block);
      case 8: return copy_elements<kGather, 8>(layout, array, packed, block);
      default: return copy_elements<kGather, 16>(layout, array, packed, block);
    }
  }
  const auto size = static_cast<std::int64_t>(layout.element_bytes);
  for (std::int64_t i = 0; i < block.segments; ++i) {
    char* strided = array + (layout.segments.offset(block.segment + i) + block.col) * size;
    move<kGather>(strided, packed + i * block.cols * size, block.cols * size);
  }
}

bool is_dense(const StridedLayout& layout) {
  const RowLayout& segments = layout.segments;
  return layout.col_stride == 1 &&
         (segments.rank == 0 || (segments.rank == 1 && segments.strides[0] == layout.cols));
}

template <bool kGather>
void copy_range(const StridedLayout& layout, char* array, std::int64_t first, std::int64_t count,
                char* packed) {
  const auto size = static_cast<std::int64_t>(layout.element_bytes);
  if (is_dense(layout)) return move<kGather>(array + first * size, packed, count * size);
  while (count > 0) {  // the rest of a segment, whole segments, the start of one
    const std::int64_t col = first % layout.cols;
    Block block{first / layout.cols, 1, col, std::min(count, layout.cols - col)};
    if (block.cols == layout.cols) block.segments = count / layout.cols;
    copy_block<kGather>(layout, array, packed, block);
    const std::int64_t copied = block.segments * block.cols;
    first += copied;
    count -= copied;
    packed += copied * size;
  }
}

}  // namespace

StridedLayout strided_layout(const ConstTensorView& view, const char* op, const char* argument) {
  StridedLayout layout;
  layout.element_bytes = dtype_size(view.dtype);
  layout.segments.strides[0] = 0;
  if (view.rank == 0) return layout;
  layout.segments = row_layout(view, view.rank - 1, op, argument);
  layout.cols = view.shape[view.rank - 1];
  layout.col_stride = layout.cols == 1 ? 1 : view.strides[view.rank - 1];
  return layout;
}

void gather(const StridedLayout& layout, const void* array, std::int64_t first, std::int64_t count,
            void* packed) {
  copy_range<true>(layout, static_cast<char*>(const_cast<void*>(array)), first, count,
                   static_cast<char*>(packed));
}

void scatter(const StridedLayout& layout, void* array, std::int64_t first, std::int64_t count,
             const void* packed) {
  copy_range<false>(layout, static_cast<char*>(array), first, count,
                    static_cast<char*>(const_cast<void*>(packed)));
}

}  // namespace membound
