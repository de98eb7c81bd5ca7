// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace membound::python {

// Adds implement_torch_operator, which registers a C++ kernel for an operator of torch's registry,
// and torch_builtin, which makes a plain function of the kernel.
void bind_torch_ops(nanobind::module_& module);

}  // namespace membound::python
