// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "torch/kernel.hpp"

#include <exception>
#include <stdexcept>

#include "errors.hpp"

// torch's binding library turns this exception into the Python error that set_error sets.
// Exceptions are matched across libraries by class name, so this class has the name of pybind11's,
// which has existed since its first release. If the names did not match, torch would catch the
// std::runtime_error base and raise RuntimeError with the same text.
namespace pybind11 {

class __attribute__((visibility("default"))) builtin_exception : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  virtual void set_error() const = 0;  // called with the GIL held
};

}  // namespace pybind11

namespace membound::python::torch {

namespace {

class PythonError final : public pybind11::builtin_exception {
 public:
  PythonError(const char* what, std::exception_ptr cause)
      : builtin_exception(what), cause_(std::move(cause)) {}
  void set_error() const override {
    try {
      std::rethrow_exception(cause_);
    } catch (...) {
      set_python_error();
    }
  }

 private:
  std::exception_ptr cause_;
};

}  // namespace

void throw_to_python() {
  try {
    throw;
  } catch (const std::exception& error) {
    throw PythonError(error.what(), std::current_exception());
  } catch (...) {
    throw PythonError("membound: unknown C++ exception", std::current_exception());
  }
}

}  // namespace membound::python::torch
