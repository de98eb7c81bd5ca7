// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace membound::python::jax {

// What membound.jax asks for while it traces a call of rope.
void bind_rope(nanobind::module_& module);

}  // namespace membound::python::jax
