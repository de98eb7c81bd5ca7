// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "membound/membound.hpp"

// The element-wise ops, for what calls every op: launches/, hostile_calls.cpp and the driver of
// compute-sanitizer.
namespace membound_test {

using namespace membound;

struct ElementwiseOp {
  std::string name;
  void (*forward)(const ConstTensorView& x, const TensorView& out, StreamView stream);
  void (*backward)(const ConstTensorView& dy, const ConstTensorView& x, const TensorView& dx,
                   StreamView stream);
};

inline std::vector<ElementwiseOp> elementwise_ops() { return {}; }

}  // namespace membound_test
