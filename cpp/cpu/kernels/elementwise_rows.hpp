// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/dtype.hpp"

// The interface between cpu/elementwise.hpp and the units per instruction set: plain data only.
namespace membound::cpu {

// A matrix of evenly spaced rows; strides in elements.
template <class Pointer>
struct EvenRows {
  Pointer data;
  std::int64_t row_stride, col_stride;
};

struct ElementwiseRows {
  EvenRows<const void*> inputs[2];  // the second one's data is null if there is one input
  EvenRows<void*> out;
  DType dtype;
  std::int64_t rows, cols;
  bool bypass_cache;
  std::int64_t prefetch_distance;
};

}  // namespace membound::cpu
