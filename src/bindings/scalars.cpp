// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Arguments that are not arrays: streams, devices, numbers and flags.
#include <string>

#include "call.hpp"
#include "core/check.hpp"
#include "errors.hpp"

namespace membound::python {

namespace {

// __cuda_stream__: a pair of the protocol's version and the handle, or a function that returns it.
nb::object protocol_number(nb::handle stream) {
  nb::object pair = stream.attr(nb::handle(names().cuda_stream_protocol));
  if (PyCallable_Check(pair.ptr())) pair = pair();
  if (!nb::isinstance<nb::tuple>(pair) && !nb::isinstance<nb::list>(pair)) return {};
  return nb::len(pair) == 2 ? nb::object(pair[1]) : nb::object();
}

// The handle itself, or the attribute of a stream object with the handle; null if neither.
nb::object stream_number(nb::handle stream) {
  if (PyLong_Check(stream.ptr()) && !PyBool_Check(stream.ptr())) return nb::borrow(stream);
  const Names& known = names();
  if (nb::hasattr(stream, nb::handle(known.cuda_stream_protocol))) {
    return protocol_number(stream);
  }
  for (PyObject* name : {known.cuda_stream, known.ptr}) {
    if (nb::hasattr(stream, nb::handle(name))) return stream.attr(nb::handle(name));
  }
  return {};
}

// Handles the Python error of a conversion: true if the number is too large, false if the object is
// not a number. Frameworks raise different errors for an array of several numbers; errors of the
// caller's own number types are rethrown.
bool is_too_large(PyObject* value) {
  const nb::python_error error;
  if (error.matches(PyExc_OverflowError)) return true;
  if (!error.matches(PyExc_TypeError) && !nb::hasattr(value, nb::handle(names().dlpack))) {
    throw error;
  }
  return false;
}

// True or False, of Python or a framework. Python's numbers take no further look.
bool is_bool(PyObject* value) {
  if (PyFloat_CheckExact(value) || PyLong_CheckExact(value)) return false;
  if (PyBool_Check(value)) return true;
  if (!nb::hasattr(value, "dtype")) return false;
  return str_of(nb::handle(value).attr("dtype")).find("bool") != std::string::npos;
}

}  // namespace

StreamView stream_from_python(PyObject* stream, const char* op) {
  const nb::object number = stream_number(stream);
  MEMBOUND_CHECK(number.is_valid() && PyLong_Check(number.ptr()), TypeMismatch, op,
                 "argument 'stream' must be an int handle, a torch or CuPy stream, or have "
                 "__cuda_stream__, got ",
                 type_name(stream));
  const std::size_t handle = PyLong_AsSize_t(number.ptr());
  if (handle == static_cast<std::size_t>(-1) && PyErr_Occurred()) {
    PyErr_Clear();
    fail<InvalidArgument>(op, "argument 'stream' must be a stream handle, got ", repr_of(number));
  }
  return StreamView::from_handle(reinterpret_cast<void*>(handle));
}

Device device_from_python(PyObject* device, const char* op) {
  const std::string text = str_of(device);
  if (text == "cpu") return Device::cpu();
  if (text == "cuda") return Device::cuda(-1);
  const std::string digits = text.rfind("cuda:", 0) == 0 ? text.substr(5) : "";
  const bool is_index = !digits.empty() && digits.size() <= 4 &&
                        digits.find_first_not_of("0123456789") == std::string::npos;
  MEMBOUND_CHECK(is_index, InvalidArgument, op,
                 "argument 'device' must be 'cpu', 'cuda' or 'cuda:N', got '", text, "'");
  return Device::cuda(std::stoi(digits));
}

double number_from_python(PyObject* value, Site site) {
  MEMBOUND_CHECK(!is_bool(value), TypeMismatch, site.op, "argument '", site.argument,
                 "' must be a real number, got bool");
  const double number = PyFloat_AsDouble(value);
  if (number == -1.0 && PyErr_Occurred()) [[unlikely]] {
    MEMBOUND_CHECK(!is_too_large(value), InvalidArgument, site.op, "argument '", site.argument,
                   "' must fit a double");
    fail<TypeMismatch>(site.op, "argument '", site.argument, "' must be a real number, got ",
                       type_name(value));
  }
  return number;
}

bool flag_from_python(PyObject* value, Site site) {
  MEMBOUND_CHECK(PyBool_Check(value), TypeMismatch, site.op, "argument '", site.argument,
                 "' must be a bool, got ", type_name(value));
  return value == Py_True;
}

std::int64_t integer_from_python(PyObject* value, Site site) {
  MEMBOUND_CHECK(PyIndex_Check(value) && !is_bool(value), TypeMismatch, site.op, "argument '",
                 site.argument, "' must be an integer, got ", type_name(value));
  const Py_ssize_t number = PyNumber_AsSsize_t(value, PyExc_OverflowError);
  if (number == -1 && PyErr_Occurred()) {
    MEMBOUND_CHECK(is_too_large(value), TypeMismatch, site.op, "argument '", site.argument,
                   "' must be an integer, got ", type_name(value));
    fail<InvalidArgument>(site.op, "argument '", site.argument, "' must fit 64 bits");
  }
  return number;
}

bool is_number(PyObject* value) {
  if (PyFloat_Check(value) || PyLong_Check(value)) return true;
  return PyNumber_Check(value) && !nb::hasattr(value, nb::handle(names().dlpack));
}

DType floating_from_python(PyObject* value, Site site) {
  const nb::object name = arrays_module().attr("dtype_name")(nb::handle(value));
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
    if (name.is_none()) break;
    if (PyUnicode_CompareWithASCIIString(name.ptr(), dtype_name(dtype)) == 0) return dtype;
  }
  fail<TypeMismatch>(site.op, "argument '", site.argument,
                     "' must be float16, bfloat16, float32 or float64, got ", repr_of(value));
}

}  // namespace membound::python
