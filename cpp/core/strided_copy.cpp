// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/strided_copy.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace membound {

namespace {

// Some columns of consecutive segments; packed memory holds them without gaps.
struct Block {
  std::int64_t segment, segments;
  std::int64_t col, cols;
};

template <bool kGather>
void move(char* strided, char* packed, std::size_t bytes) {
  std::memcpy(kGather ? packed : strided, kGather ? strided : packed, bytes);
}

// Tiles of segments by columns: where neighbouring segments share cache lines (a transposed array),
// each line is used up while it is cached. The shorter stride is the inner loop. Tiles of 64
// segments are less than half as fast at the worst stride.
constexpr std::int64_t kBlockSegments = 16;
constexpr std::int64_t kBlockCols = 16;

template <bool kGather, std::size_t kElementBytes>
void copy_elements(const StridedLayout& layout, char* array, char* packed, const Block& block) {
  constexpr auto kSize = static_cast<std::int64_t>(kElementBytes);
  const std::int64_t step = layout.col_stride * kSize;
  for (std::int64_t first = 0; first < block.segments; first += kBlockSegments) {
    const std::int64_t segments = std::min(kBlockSegments, block.segments - first);
    char* starts[kBlockSegments];
    for (std::int64_t i = 0; i < segments; ++i) {
      starts[i] =
          array + layout.segments.offset(block.segment + first + i) * kSize + block.col * step;
    }
    const auto copy = [&](std::int64_t i, std::int64_t col) {
      move<kGather>(starts[i] + col * step, packed + ((first + i) * block.cols + col) * kSize,
                    kElementBytes);
    };
    const bool segments_are_near = segments > 1 && std::abs(starts[1] - starts[0]) < std::abs(step);
    const std::int64_t tile_cols = segments_are_near ? kBlockCols : block.cols;
    for (std::int64_t tile = 0; tile < block.cols; tile += tile_cols) {
      const std::int64_t end = std::min(tile + tile_cols, block.cols);
      if (segments_are_near) {
        for (std::int64_t col = tile; col < end; ++col) {
          for (std::int64_t i = 0; i < segments; ++i) copy(i, col);
        }
      } else {
        for (std::int64_t i = 0; i < segments; ++i) {
          for (std::int64_t col = tile; col < end; ++col) copy(i, col);
        }
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

bool is_contiguous(const StridedLayout& layout) {
  const RowLayout& segments = layout.segments;
  return layout.col_stride == 1 &&
         (segments.rank == 0 || (segments.rank == 1 && segments.strides[0] == layout.cols));
}

template <bool kGather>
void copy_range(const StridedLayout& layout, char* array, std::int64_t first, std::int64_t count,
                char* packed) {
  const auto size = static_cast<std::int64_t>(layout.element_bytes);
  if (is_contiguous(layout)) return move<kGather>(array + first * size, packed, count * size);
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
