// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace membound::python {

// Adds new_buffer(format, item_size, shape), which allocates memory as a memoryview of any shape.
// memoryview.cast supports no float16 before Python 3.12, and no extent of 0.
void bind_buffer(nanobind::module_& module);

}  // namespace membound::python
