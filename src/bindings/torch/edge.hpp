// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>

#include <utility>

#include "errors.hpp"

// Builtins with state, and access to Python objects that turns errors into exceptions.
namespace membound::python::torch {

namespace nb = nanobind;

inline nb::object owned(PyObject* made) {
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

inline PyObject* item(nb::handle tuple, Py_ssize_t at) {  // borrowed reference
  PyObject* found = PyTuple_GetItem(tuple.ptr(), at);
  if (found == nullptr) throw nb::python_error();
  return found;
}

// Sets an item of a new tuple, before it is visible to other code.
inline void set_item(const nb::object& tuple, Py_ssize_t at, PyObject* one) {
  PyTuple_SetItem(tuple.ptr(), at, Py_NewRef(one));
}

inline nb::object new_tuple(PyObject* const* items, Py_ssize_t count) {
  nb::object tuple = owned(PyTuple_New(count));
  for (Py_ssize_t i = 0; i < count; ++i) set_item(tuple, i, items[i]);
  return tuple;
}

// The result of function() for Python: null, with the error set, if it threw.
template <class Function>
PyObject* at_the_edge(Function function) noexcept {
  try {
    return function().release().ptr();
  } catch (const abi::__forced_unwind&) {
    await_process_exit();
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

template <class Function>
PyMethodDef method(const char* name, Function function, int flags) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function)), flags, nullptr};
}

// The state of a builtin or a class is never freed, like operators and public functions.
template <class Held>
nb::object keep(Held* held) {
  return owned(PyCapsule_New(held, nullptr, nullptr));
}
template <class Held>
const Held& kept_in(PyObject* capsule) {
  return *static_cast<const Held*>(PyCapsule_GetPointer(capsule, nullptr));
}
template <class Held>
nb::object builtin_with(PyMethodDef& definition, Held* held) {
  return owned(PyCFunction_NewEx(&definition, keep(held).ptr(), nullptr));
}

}  // namespace membound::python::torch
