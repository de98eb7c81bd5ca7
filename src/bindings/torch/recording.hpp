// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

namespace membound::python::torch {

namespace nb = nanobind;

// A call whose gradient is recorded. Its tensors, its options and its results are counted in a row.
struct Recording {
  nb::object forward;      // (*tensors, *options) -> results
  nb::object backward;     // (*gradients of results, *saved, *options, wanted) -> gradients
  nb::object by_operator;  // the same where it has to be one: their gradients, modes, batches
  int tensors;
  int differentiable;             // of the results, the first ones
  std::vector<int> saved;         // what the backward reads, by its place in that row
  std::vector<int> gradients_of;  // of each tensor the gradient it gets, -1: none
};

// Gives a torch.autograd.Function its forward, whose arguments are the context, the tensors and a
// tuple of the options, and what autograd's engine calls in place of its backward.
void implement_function(nb::handle function, Recording recording);

}  // namespace membound::python::torch
