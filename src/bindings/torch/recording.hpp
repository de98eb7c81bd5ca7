// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

namespace membound::python::torch {

namespace nb = nanobind;

// A call whose gradient is recorded. Tensors, options and results are indexed as one row.
struct Recording {
  nb::object forward;      // (*tensors, *options) -> results
  nb::object backward;     // (*gradients of results, *saved, *options, wanted) -> gradients
  nb::object by_operator;  // the same for gradients of gradients, modes and batches
  int tensors;
  int differentiable;             // number of differentiable results, which come first
  std::vector<int> saved;         // indices in that row of what the backward reads
  std::vector<int> gradients_of;  // per tensor the index of its gradient, -1: none
};

// Gives a torch.autograd.Function its forward, with the arguments context, tensors and a tuple of
// options, and the function that autograd's engine calls in place of its backward.
void implement_function(nb::handle function, Recording recording);

}  // namespace membound::python::torch
