// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <string>

namespace membound::python {

namespace nb = nanobind;

// Marks an error of a call that membound.torch can still take: a tensor wants its gradient
// recorded, is a subclass, or holds no memory here.
struct ForTorch {};

template <class ErrorType>
struct TorchCanTake : ErrorType, ForTorch {
  using ErrorType::ErrorType;
};

// Adds membound.CudaError and teaches nanobind the table below.
void register_errors(nb::module_& module);

// Turns the C++ exception in flight into the Python error that the table names. Call it in catch
// (...) at the edge to Python.
void set_python_error() noexcept;

// For whoever catches abi::__forced_unwind, which code of others lets through (python_calls.cpp has
// our own calls): no noexcept lets it pass.
[[noreturn]] void await_process_exit() noexcept;

// Python's str() and repr() as UTF-8, whatever they hold: lone surrogates come escaped.
std::string str_of(nb::handle object);
std::string repr_of(nb::handle object);

// The first line of the Python error that is set, which is cleared (torch adds its C++ frames).
std::string take_python_error();

}  // namespace membound::python
