// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace membound::python::torch {

namespace nb = nanobind;

// Builtins that ask at once what eager calls have to know of the thread and of their tensors.

// (*tensors, *options) -> what apply(*tensors, options) returns, so many tensors. NotImplemented
// where tensors are subclasses or something traces, transforms or watches: the call has to be an
// operator. plain: the types of tensors that are none.
nb::object make_eager_call(nb::object apply, nb::handle plain, int tensors);

// A public function: calls `recorded` where a plain tensor wants its gradient recorded and none of
// the keywords of `outside` is given, `other` where something watches or no tensor is plain, and
// else `extension`.
nb::object make_public_call(nb::object recorded, nb::object extension, nb::object other,
                            nb::handle plain, nb::object outside);

}  // namespace membound::python::torch
