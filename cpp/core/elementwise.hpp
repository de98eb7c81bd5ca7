// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>

#include "core/rows.hpp"

namespace membound {

// What the back ends of an element-wise op receive: checked, flattened to rows x cols.
struct ElementwiseProblem {
  InputRows inputs[2];  // the second one's data is null if there is one input
  OutputRows out;       // may be an input: in place
  DType dtype;
  std::int64_t rows, cols;  // 0 if there are no elements

  bool has_two_inputs() const { return inputs[1].data != nullptr; }
  bool is_in_place() const { return out.data == inputs[0].data || out.data == inputs[1].data; }
};

struct ElementwiseInput {
  const char* name;
  ConstTensorView view;
};

// Checks the arrays of a call: one or two inputs, the second like the first, and a result like it.
ElementwiseProblem elementwise_problem(const char* op,
                                       std::initializer_list<ElementwiseInput> inputs,
                                       const char* out_name, const TensorView& out);

}  // namespace membound
