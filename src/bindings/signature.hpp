// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>

#include <exception>

#include "errors.hpp"

namespace membound::python {

namespace nb = nanobind;

inline constexpr int kMaxParameters = 36;

// One public function: what Python calls, and what it says about itself. The values reach the
// function in the order of `parameters`; null where the caller gave none, None counting as none
// where that is the default.
struct Op {
  const char* name;
  const char* text;  // "name(signature)\n--\n\n" and the docstring, as CPython reads them
  const char* parameters[kMaxParameters + 1];  // null-terminated
  int required;                                // so many must be given; None is a value there
  int positional;                              // so many may be given without a name
  nb::object (*function)(PyObject* const* values);
};

// Makes the builtin: METH_FASTCALL with keywords. nanobind's dispatcher would try casts twice and
// hide our messages; a Python wrapper would cost 150 ns.
template <const Op* op>
nb::object make_builtin(nb::handle module, const char* home);

// Interns the names, so that matching a keyword is a comparison of pointers.
struct InternedNames {
  explicit InternedNames(const Op& op);
  int count = 0;
  PyObject* names[kMaxParameters];
};

// Sorts the arguments of one call into values[0 .. names.count). Throws nb::python_error
// (TypeError).
void sort_arguments(const Op& op, const InternedNames& names, PyObject* const* arguments,
                    Py_ssize_t positional, PyObject* keywords, PyObject** values);

// The same call through membound.torch, which records gradients and takes tensors that are no plain
// memory. Raises what was refused where that does not take it.
PyObject* call_torch(const char* op, PyObject* const* arguments, Py_ssize_t positional,
                     PyObject* keywords, const std::exception_ptr& refused) noexcept;

template <const Op* op>
PyObject* call_builtin(PyObject*, PyObject* const* arguments, Py_ssize_t positional,
                       PyObject* keywords) noexcept {
  std::exception_ptr refused;
  try {
    static const InternedNames names(*op);
    PyObject* values[kMaxParameters] = {};
    sort_arguments(*op, names, arguments, positional, keywords, values);
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

template <const Op* op>
nb::object make_builtin(nb::handle module, const char* home) {
  static PyMethodDef definition{
      op->name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&call_builtin<op>)),
      METH_FASTCALL | METH_KEYWORDS, op->text};
  PyObject* builtin = PyCFunction_NewEx(&definition, module.ptr(), nb::str(home).ptr());
  if (builtin == nullptr) throw nb::python_error();
  return nb::steal(builtin);
}

}  // namespace membound::python
