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

inline std::vector<ElementwiseOp> elementwise_ops() {
  return {
      {"soft_cap",
       [](const ConstTensorView& x, const TensorView& out, StreamView stream) {
         soft_cap(x, 1.5, out, stream);
       },
       [](const ConstTensorView& dy, const ConstTensorView& x, const TensorView& dx,
          StreamView stream) { soft_cap_backward(dy, x, 1.5, dx, stream); }},
  };
}

}  // namespace membound_test
