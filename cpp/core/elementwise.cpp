// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/elementwise.hpp"

#include "core/flattened_rows.hpp"
#include "core/validate.hpp"

namespace membound {

ElementwiseProblem elementwise_problem(const char* op,
                                       std::initializer_list<ElementwiseInput> inputs,
                                       const char* out_name, const TensorView& out) {
  const auto& [name, like] = *inputs.begin();
  check_axes(like, op, name);
  check_floating(like, op, name);
  for (const ElementwiseInput& input : inputs) check_like(input.view, input.name, like, name, op);
  check_like(out, out_name, like, name, op);
  check_writable(out, op, out_name);
  for (const ElementwiseInput& input : inputs)
    check_overlap(out, out_name, input.view, input.name, op, true);

  ElementwiseProblem problem{};
  problem.dtype = like.dtype;
  if (like.size() == 0) return problem;
  const ConstTensorView written = out;
  FlattenedRows flattened(like, false, op);
  for (const ElementwiseInput& input : inputs) flattened.add(&input.view);
  flattened.add(&written);
  problem.rows = flattened.rows();
  problem.cols = flattened.cols();
  InputRows* to = problem.inputs;
  for (const ElementwiseInput& input : inputs) *to++ = flattened.array(input.view, input.name);
  problem.out = flattened.array(out, out_name);
  return problem;
}

}  // namespace membound
