// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <string>

namespace membound::python {

namespace nb = nanobind;

// An error of a call that membound.torch can still process: a tensor requires grad, is a subclass,
// or has no memory of its own.
struct ForTorch {};

template <class ErrorType>
struct TorchCanTake : ErrorType, ForTorch {
  using ErrorType::ErrorType;
};

// Adds membound.CudaError and teaches nanobind the table below.
void register_errors(nb::module_& module);

// Converts the C++ exception in flight to the Python error that the table names. Call it in catch
// (...) at the edge to Python.
void set_python_error() noexcept;

// For code that catches abi::__forced_unwind, which foreign code may throw and which must not cross
// a noexcept function (for our own calls see python_calls.cpp).
[[noreturn]] void await_process_exit() noexcept;

// Python's str() and repr() as UTF-8; lone surrogates are escaped.
std::string str_of(nb::handle object);
std::string repr_of(nb::handle object);

// The first line of the current Python error, which is cleared (torch appends its C++ frames).
std::string take_python_error();

}  // namespace membound::python
