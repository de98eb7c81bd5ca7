// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/layout.hpp"

namespace membound {

// How to traverse the elements of a host array in C order.
struct StridedLayout {
  RowLayout segments;  // start of each run along the last axis
  std::int64_t cols = 1;
  std::int64_t col_stride = 1;
  std::size_t element_bytes = 1;
};
StridedLayout strided_layout(const ConstTensorView& view, const char* op, const char* argument);

// Copies elements [first, first + count), counted in C order, to or from contiguous memory.
void gather(const StridedLayout& layout, const void* array, std::int64_t first, std::int64_t count,
            void* packed);
void scatter(const StridedLayout& layout, void* array, std::int64_t first, std::int64_t count,
             const void* packed);

}  // namespace membound
