// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Operators as builtins: what Inductor's Python code calls without torch's dispatcher.
#include "torch/builtin.hpp"

#include <cxxabi.h>
#include <dlfcn.h>

#include "errors.hpp"

namespace membound::python::torch {

namespace {

// What makes Python's object of a tensor's handle. THPVariable_Wrap(const at::TensorBase&), which
// is in no interface: nothing depends on it but speed (0.2 us a result). Else the builtin by which
// torch's compiled models hand over their results, and which takes the handle. Kept for good.
constexpr const char* kWrap = "_Z16THPVariable_WrapRKN2at10TensorBaseE";
PyObject* (*wrap)(shim::TensorHandle) = nullptr;
PyObject* take_over = nullptr;

bool find_wrapping() {
  if (wrap != nullptr || take_over != nullptr) return true;
  if (void* library = dlopen("libtorch_python.so", RTLD_LAZY | RTLD_NOLOAD)) {
    wrap = reinterpret_cast<decltype(wrap)>(dlsym(library, kWrap));
  }
  if (wrap != nullptr) return true;
  try {
    const nb::object models = nb::module_::import_("torch").attr("_C").attr("_aoti");
    take_over = nb::object(models.attr("alloc_tensor_by_stealing_from_void_ptr")).release().ptr();
  } catch (nb::python_error&) {
    return false;
  }
  return true;
}

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

PyObject* as_python(Tensor& result) {
  PyObject* tensor = nullptr;
  if (wrap != nullptr) {
    tensor = wrap(result.handle());
  } else if (const auto handle = nb::steal(PyCapsule_New(result.handle(), nullptr, nullptr))) {
    tensor = call_one(take_over, handle.ptr());
    if (tensor != nullptr) result.release();
  }
  if (tensor == nullptr) throw nb::python_error();
  return tensor;
}

PyObject* call_from_python(PyObject* self, PyObject* const* arguments, Py_ssize_t positional,
                           PyObject* keywords, FromPython function, int expected) noexcept {
  if (positional != expected || keywords != nullptr) {
    return call_operator(self, arguments, positional, keywords);
  }
  try {
    // All operators have a tensor first.
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
