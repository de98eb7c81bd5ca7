// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "torch/result.hpp"

#include <dlfcn.h>

#include "load.hpp"
#include "membound/error.hpp"
#include "torch/kernel.hpp"

namespace membound::python::torch {

namespace {

// Makes the Python object of a tensor's handle: by THPVariable_Wrap(const at::TensorBase&), which
// is in no public interface and only saves 0.2 us per result, or else by the builtin with which
// torch's compiled models return results; that takes ownership of the handle. Never freed.
constexpr const char* kWrap = "_Z16THPVariable_WrapRKN2at10TensorBaseE";
PyObject* (*wrap)(shim::TensorHandle) = nullptr;
PyObject* take_over = nullptr;

}  // namespace

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

bool makes_arrays() { return shim::find_functions() != nullptr && find_wrapping(); }

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

nb::object new_array(TensorView& wanted) {
  try {
    Tensor made = new_like(wanted);
    wanted = made.view();
    return nb::steal(as_python(made));
  } catch (const OutOfMemory&) {
    return {};
  }
}

}  // namespace membound::python::torch
