// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace membound::python {

// Adds jax_ffi_targets() -> {target: {platform: capsule}} for jax.ffi.register_ffi_target.
void bind_jax_ffi(nanobind::module_& module);

}  // namespace membound::python
