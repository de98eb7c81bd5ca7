// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace membound::python {

// Adds implement_torch_operator, which gives an operator of torch's registry a kernel in C++, and
// torch_builtin, which makes a function of it that is no operator.
void bind_torch_ops(nanobind::module_& module);

}  // namespace membound::python
