// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "signature.hpp"

#include <atomic>

namespace membound::python {

namespace {

[[noreturn, gnu::cold]] void fail_call(const char* format, const char* op, PyObject* name) {
  PyErr_Format(PyExc_TypeError, format, op, name);
  throw nb::python_error();
}

[[noreturn, gnu::cold]] void fail_keyword(const Op& op, PyObject* keyword) {
  nb::list parameters;
  for (const char* const* name = op.parameters; *name != nullptr; ++name) parameters.append(*name);
  const nb::object hint = nb::module_::import_("membound._spellings")
                              .attr("keyword_hint")(nb::handle(keyword), parameters);
  PyErr_Format(PyExc_TypeError, "%s: unexpected keyword argument '%U'%U", op.name, keyword,
               hint.ptr());
  throw nb::python_error();
}

int find_parameter(const InternedNames& names, PyObject* keyword) {
  for (int index = 0; index < names.count; ++index) {
    if (names.names[index] == keyword) return index;
  }
  for (int index = 0; index < names.count; ++index) {  // a keyword string created at run time
    if (PyUnicode_Compare(names.names[index], keyword) == 0) return index;
  }
  return -1;
}

// membound.torch's dispatch table; never freed. Not a static initialiser: the import lets other
// threads run, which would wait for the initialiser's lock while holding the GIL.
nb::handle handed_over() {
  static std::atomic<PyObject*> kept{nullptr};
  PyObject* functions = kept.load(std::memory_order_acquire);
  if (functions != nullptr) return functions;
  const nb::module_ torch = nb::module_::import_("membound.torch._functions");
  functions = nb::object(torch.attr("DISPATCH")).release().ptr();
  kept.store(functions, std::memory_order_release);
  return functions;
}

}  // namespace

PyObject* call_torch(const char* op, PyObject* const* arguments, Py_ssize_t positional,
                     PyObject* keywords, const std::exception_ptr& refused) noexcept {
  try {
    const nb::handle function = PyDict_GetItemString(handed_over().ptr(), op);
    if (function.is_valid()) {
      PyObject* result = PyObject_Vectorcall(function.ptr(), arguments,
                                             static_cast<std::size_t>(positional), keywords);
      if (result != Py_NotImplemented) return result;
      Py_DECREF(result);
    }
  } catch (nb::python_error& error) {
    error.restore();
    return nullptr;
  }
  try {
    std::rethrow_exception(refused);
  } catch (...) {
    set_python_error();
  }
  return nullptr;
}

InternedNames::InternedNames(const Op& op) {
  while (op.parameters[count] != nullptr) {
    names[count] = PyUnicode_InternFromString(op.parameters[count]);
    if (names[count] == nullptr) throw nb::python_error();
    ++count;
  }
}

void sort_arguments(const Op& op, const InternedNames& names, PyObject* const* arguments,
                    Py_ssize_t positional, PyObject* keywords, PyObject** values) {
  if (positional > op.positional) {
    PyErr_Format(PyExc_TypeError, "%s: takes at most %d positional arguments, got %zd", op.name,
                 op.positional, positional);
    throw nb::python_error();
  }
  for (Py_ssize_t index = 0; index < positional; ++index) values[index] = arguments[index];
  const Py_ssize_t named = keywords != nullptr ? PyTuple_Size(keywords) : 0;
  for (Py_ssize_t index = 0; index < named; ++index) {
    PyObject* keyword = PyTuple_GetItem(keywords, index);
    const int parameter = find_parameter(names, keyword);
    if (parameter < 0) fail_keyword(op, keyword);
    if (values[parameter] != nullptr) fail_call("%s: argument '%U' given twice", op.name, keyword);
    values[parameter] = arguments[positional + index];
  }
  for (int index = 0; index < op.required; ++index) {
    if (values[index] == nullptr)
      fail_call("%s: missing argument '%U'", op.name, names.names[index]);
  }
}

}  // namespace membound::python
