// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include "membound/tensor_view.hpp"

// Results as Python's objects, and new ones made without torch's Python functions.
namespace membound::python::torch {

namespace nb = nanobind;

// Whether the torch that is loaded has a way to make Python's object of a tensor's handle. Needs
// the GIL.
bool find_wrapping();

// Whether new_array can be asked: torch's C interface is there, too. Needs the GIL.
bool makes_arrays();

// A C-contiguous one of wanted's shape, dtype and device, on the CPU or a CUDA device, with its
// geometry and address in `wanted`. Invalid where torch failed: its Python functions say why.
nb::object new_array(TensorView& wanted);

}  // namespace membound::python::torch
