// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace membound::python::torch {

namespace nb = nanobind;

// Builtins that check the thread's state and the tensors of an eager call in one pass.

// (*tensors, *options) -> the result of apply(*tensors, options), with the given number of tensors.
// NotImplemented if the call must be an operator: tensors are subclasses, or it is traced,
// transformed or observed. plain: the tensor types that are not subclasses.
nb::object make_eager_call(nb::object apply, nb::handle plain, int tensors);

// A public function. It calls `recorded` if a plain tensor requires grad and no keyword of
// `outside` is given, `other` if the call is observed or no tensor is plain, and else `extension`.
nb::object make_public_call(nb::object recorded, nb::object extension, nb::object other,
                            nb::handle plain, nb::object outside);

}  // namespace membound::python::torch
