// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Operators as builtins, which Inductor's Python code calls without torch's dispatcher.
#include "torch/builtin.hpp"

#include <cxxabi.h>

#include <stdexcept>

#include "errors.hpp"
#include "torch/result.hpp"

namespace membound::python::torch {

namespace {

bool is_seen_by_torch(const Framework& torch) {
  return is_watched(torch) || (torch.profiles != nullptr && torch.profiles());
}

PyObject* call_operator(PyObject* self, PyObject* const* arguments, Py_ssize_t positional,
                        PyObject* keywords) {
  return PyObject_Vectorcall(self, arguments, static_cast<std::size_t>(positional), keywords);
}

}  // namespace

std::string_view text_of(PyObject* value) {
  if (!PyUnicode_Check(value)) throw NotPlain{};
  Py_ssize_t length = 0;
  const char* text = PyUnicode_AsUTF8AndSize(value, &length);
  if (text == nullptr) {
    PyErr_Clear();
    throw NotPlain{};
  }
  return {text, static_cast<std::size_t>(length)};
}

double number_of(PyObject* value) {
  if (PyFloat_CheckExact(value)) return PyFloat_AsDouble(value);
  return static_cast<double>(integer_of(value));
}

std::int64_t integer_of(PyObject* value) {
  int overflow = 0;
  // torch would take it as a number; membound.torch then says which argument it is.
  if (PyBool_Check(value)) throw std::runtime_error("a number must not be a bool");
  if (!PyLong_CheckExact(value)) throw NotPlain{};
  const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (overflow != 0) throw NotPlain{};
  return number;
}

bool flag_of(PyObject* value) {
  if (!PyBool_Check(value)) throw NotPlain{};
  return value == Py_True;
}

std::size_t list_size(PyObject* list) {
  if (!PyList_CheckExact(list)) throw NotPlain{};
  return static_cast<std::size_t>(PyList_Size(list));
}

PyObject* list_item(PyObject* list, std::size_t at) {
  return PyList_GetItem(list, static_cast<Py_ssize_t>(at));
}

PyObject* call_from_python(PyObject* self, PyObject* const* arguments, Py_ssize_t positional,
                           PyObject* keywords, FromPython function, int expected) noexcept {
  if (positional != expected || keywords != nullptr) {
    return call_operator(self, arguments, positional, keywords);
  }
  try {
    // The first argument of every operator is a tensor.
    if (!is_seen_by_torch(torch_of(arguments[0]))) return function(arguments);
  } catch (const NotPlain&) {
  } catch (const abi::__forced_unwind&) {
    await_process_exit();
  } catch (...) {
    set_python_error();
    return nullptr;
  }
  return call_operator(self, arguments, positional, keywords);
}

nb::object builtin_of(const Kernel& kernel, nb::handle torch_operator) {
  if (!find_wrapping()) return nb::none();
  PyObject* builtin =
      PyCFunction_NewEx(kernel.builtin, torch_operator.ptr(), nb::str("membound").ptr());
  if (builtin == nullptr) throw nb::python_error();
  return nb::steal(builtin);
}

}  // namespace membound::python::torch
