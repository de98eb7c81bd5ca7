// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>

#include <utility>

#include "errors.hpp"

// Builtins that hold something, and Python's objects with errors as exceptions.
namespace membound::python::torch {

namespace nb = nanobind;

inline nb::object owned(PyObject* made) {
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

inline PyObject* item(nb::handle tuple, Py_ssize_t at) {  // borrowed
  PyObject* found = PyTuple_GetItem(tuple.ptr(), at);
  if (found == nullptr) throw nb::python_error();
  return found;
}

// Of a tuple that nobody has seen yet.
inline void set_item(const nb::object& tuple, Py_ssize_t at, PyObject* one) {
  PyTuple_SetItem(tuple.ptr(), at, Py_NewRef(one));
}

inline nb::object new_tuple(PyObject* const* items, Py_ssize_t count) {
  nb::object tuple = owned(PyTuple_New(count));
  for (Py_ssize_t i = 0; i < count; ++i) set_item(tuple, i, items[i]);
  return tuple;
}

// What function() returns, for Python: null where it threw.
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

// What a builtin or a class holds is kept for good, as operators and public functions are.
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
