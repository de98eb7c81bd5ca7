// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>

namespace membound::python::torch {

namespace nb = nanobind;

// Builtins that check the thread's state and the tensors of an eager call in one pass.

// (*tensors, *options) -> the result of apply(*tensors, options), with the given number of tensors.
// NotImplemented if the call must be an operator: tensors are subclasses, or it is traced,
// transformed or observed. plain: the tensor types that are not subclasses.
nb::object make_eager_call(nb::object apply, nb::handle plain, int tensors);

// Lets `function` record the calls of an op's own function in which a plain tensor requires grad
// and no keyword of `outside` is given, unless a mode observes them.
void record_calls(const char* op, nb::object function, nb::handle plain, nb::object outside);

// What record_calls has set for an op; null before. An op looks it up once.
struct Recorder;
using RecorderOf = std::atomic<const Recorder*>;
RecorderOf& recorder_of(const char* op);

// The function that has to record this call, or null. That no exception sends the call to it saves
// 6 us.
PyObject* recording_function(const RecorderOf& recorder, PyObject* const* arguments,
                             Py_ssize_t positional, PyObject* keywords);

}  // namespace membound::python::torch
