// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include "membound/tensor_view.hpp"

// Python objects of results, and new results made without torch's Python functions.
namespace membound::python::torch {

namespace nb = nanobind;

// Whether the loaded torch can make the Python object of a tensor's handle. Needs the GIL.
bool find_wrapping();

// Whether new_array can be used: torch's C interface is available, too. Needs the GIL.
bool makes_arrays();

// A new C-contiguous tensor of wanted's shape, dtype and device, on the CPU or a CUDA device; sets
// its strides and address in `wanted`. Invalid if torch failed: its Python functions give the
// reason.
nb::object new_array(TensorView& wanted);

}  // namespace membound::python::torch
