// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace membound::python::jax {

// Adds traced_workspace, which membound.jax calls while it traces a rotation.
void bind_traced_calls(nanobind::module_& module);

}  // namespace membound::python::jax
