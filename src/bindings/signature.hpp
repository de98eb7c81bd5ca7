// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>

#include <exception>

#include "errors.hpp"
#include "torch/eager.hpp"

namespace membound::python {

namespace nb = nanobind;

inline constexpr int kMaxParameters = 36;

// One public function: its C++ function, signature and docstring. Values are passed in the order of
// `parameters`; null if not given, and None counts as not given if it is the default.
struct Op {
  const char* name;
  const char* text;  // "name(signature)\n--\n\n" and the docstring, as CPython reads them
  const char* parameters[kMaxParameters + 1];  // null-terminated
  int required;    // number of required arguments; for them None is a value
  int positional;  // number of arguments that may be positional
  nb::object (*function)(PyObject* const* values);
};

// Adds all functions of the tables in src/ops; generated with them.
void bind_ops(nb::module_& module);

// Interns the names, so that a keyword is matched by comparing pointers.
struct InternedNames {
  explicit InternedNames(const Op& op);
  int count = 0;
  PyObject* names[kMaxParameters];
};

// Sorts the arguments of one call into values[0 .. names.count). Throws nb::python_error
// (TypeError).
void sort_arguments(const Op& op, const InternedNames& names, PyObject* const* arguments,
                    Py_ssize_t positional, PyObject* keywords, PyObject** values);

// Makes the same call through membound.torch, which records gradients and supports tensors without
// plain memory. Rethrows the refusal if membound.torch does not take the call either.
PyObject* call_torch(const char* op, PyObject* const* arguments, Py_ssize_t positional,
                     PyObject* keywords, const std::exception_ptr& refused) noexcept;

template <const Op* op>
PyObject* call_builtin(PyObject*, PyObject* const* arguments, Py_ssize_t positional,
                       PyObject* keywords) noexcept {
  std::exception_ptr refused;
  try {
    static const InternedNames names(*op);
    static const torch::RecorderOf& recorder = torch::recorder_of(op->name);
    PyObject* values[kMaxParameters] = {};
    sort_arguments(*op, names, arguments, positional, keywords, values);
    PyObject* recording = torch::recording_function(recorder, arguments, positional, keywords);
    if (recording != nullptr) {
      return PyObject_Vectorcall(recording, arguments, static_cast<std::size_t>(positional),
                                 keywords);
    }
    return op->function(values).release().ptr();
  } catch (const ForTorch&) {
    refused = std::current_exception();  // no Python code runs while it is in flight
  } catch (const abi::__forced_unwind&) {
    await_process_exit();
  } catch (...) {
    set_python_error();
    return nullptr;
  }
  return call_torch(op->name, arguments, positional, keywords, refused);
}

// Adds a builtin: METH_FASTCALL with keywords. nanobind's dispatcher would try casts twice and hide
// our messages; a Python wrapper would cost 150 ns.
template <const Op* op>
void add_op(nb::module_& module) {
  static PyMethodDef definition{
      op->name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&call_builtin<op>)),
      METH_FASTCALL | METH_KEYWORDS, op->text};
  PyObject* builtin = PyCFunction_NewEx(&definition, module.ptr(), nb::str("membound").ptr());
  if (builtin == nullptr) throw nb::python_error();
  module.attr(op->name) = nb::steal(builtin);
}

}  // namespace membound::python
