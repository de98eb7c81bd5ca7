// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace membound::python {

// Adds the functions that control staging of NumPy arrays through a GPU.
void bind_staging(nanobind::module_& module);

}  // namespace membound::python
