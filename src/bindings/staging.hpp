// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace membound::python {

// What steers the way of NumPy arrays through a GPU and back.
void bind_staging(nanobind::module_& module);

}  // namespace membound::python
