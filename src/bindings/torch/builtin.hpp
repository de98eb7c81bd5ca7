// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "torch/kernel.hpp"

namespace membound::python::torch {

namespace nb = nanobind;

// A builtin with the operator's arguments, which falls back to the operator. None: the loaded torch
// does not support it.
nb::object builtin_of(const Kernel& kernel, nb::handle torch_operator);

}  // namespace membound::python::torch
