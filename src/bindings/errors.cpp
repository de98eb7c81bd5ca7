// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "errors.hpp"

#include <unistd.h>

#include <exception>
#include <new>
#include <string>

#include "membound/error.hpp"

namespace membound::python {

namespace {

PyObject* cuda_error_type = nullptr;  // written once, when the module is made

constexpr const char* kCudaErrorDoc =
    "A CUDA call failed, or CUDA was asked for and is not there.\n\n"
    "Attributes:\n"
    "    code (int): the runtime's error number, 0 when this build has no CUDA.\n"
    "    name (str): the error's name, e.g. 'cudaErrorNoDevice'.";

void set_cuda_error(const CudaError& error) {
  nb::object instance = nb::handle(cuda_error_type)(error.what());
  instance.attr("code") = error.code();
  instance.attr("name") = error.name().c_str();
  PyErr_SetObject(cuda_error_type, instance.ptr());
}

// Takes over a reference to a str, or null with a Python error set.
std::string utf8(PyObject* text) {
  const nb::object owner = nb::steal(text);
  if (text == nullptr) throw nb::python_error();
  const nb::object bytes = nb::steal(PyUnicode_AsEncodedString(text, "utf-8", "backslashreplace"));
  if (!bytes.is_valid()) throw nb::python_error();
  return {PyBytes_AsString(bytes.ptr()), static_cast<std::size_t>(PyBytes_Size(bytes.ptr()))};
}

}  // namespace

// The table of C++ exceptions to Python errors; the types are API.
void set_python_error() noexcept {
  try {
    throw;
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const OutOfRange& error) {
    PyErr_SetString(PyExc_IndexError, error.what());
  } catch (const InvalidArgument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const TypeMismatch& error) {
    PyErr_SetString(PyExc_TypeError, error.what());
  } catch (const OutOfMemory& error) {
    PyErr_SetString(PyExc_MemoryError, error.what());
  } catch (const CudaError& error) {
    try {
      set_cuda_error(error);
    } catch (nb::python_error& failure) {
      failure.restore();
    }
  } catch (const std::bad_alloc& error) {
    PyErr_SetString(PyExc_MemoryError, error.what());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  } catch (...) {
    PyErr_SetString(PyExc_SystemError, "membound: unknown C++ exception");
  }
}

void await_process_exit() noexcept {
  for (;;) pause();
}

std::string str_of(nb::handle object) { return utf8(PyObject_Str(object.ptr())); }

std::string repr_of(nb::handle object) { return utf8(PyObject_Repr(object.ptr())); }

std::string take_python_error() {
  nb::python_error error;  // takes the pending error over
  const std::string text = str_of(error.value());
  return text.substr(0, text.find('\n'));
}

void register_errors(nb::module_& module) {
  cuda_error_type =
      PyErr_NewExceptionWithDoc("membound.CudaError", kCudaErrorDoc, PyExc_RuntimeError, nullptr);
  if (cuda_error_type == nullptr) throw nb::python_error();
  module.attr("CudaError") = nb::handle(cuda_error_type);
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const Error&) {
      set_python_error();
    }
  });
}

}  // namespace membound::python
