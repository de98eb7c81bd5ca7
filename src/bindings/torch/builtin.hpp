// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "torch/kernel.hpp"

namespace membound::python::torch {

namespace nb = nanobind;

// A builtin that takes what the operator takes, and is called as the operator is where this does
// not do. None: the torch that is loaded has no way to it.
nb::object builtin_of(const Kernel& kernel, nb::handle torch_operator);

}  // namespace membound::python::torch
