// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include "dlpack.hpp"

namespace membound::python {

namespace nb = nanobind;

// How an array is read.
enum class Kind : std::uint8_t {
  kTorch,   // DLPack's C exchange table, or to_dlpack before torch 2.10
  kNumPy,   // __array_struct__
  kCuPy,    // attributes
  kJax,     // forwarded to membound.jax
  kBuffer,  // the buffer protocol: memoryview, array.array
  kDlpack,  // __dlpack__
  kArray,   // membound's NDArray
};

inline constexpr int kKinds = 7;

// The functions of a framework that C++ needs, with the names of membound.arrays.Framework. Made
// once per framework and never freed.
struct Framework {
  Kind kind;
  const char* name;
  const dlpack::ExchangeApi* exchange;  // torch >= 2.10, else null
  PyObject* to_dlpack;
  PyObject* empty_like;             // (array) -> array of its shape, dtype and device
  PyObject* empty_like_contiguous;  // the same for arrays whose layout must not be copied
  PyObject* empty_rows;             // (array) -> float32 or float64 array of shape[:-1]
  PyObject* empty_columns;          // (array) -> array of its dtype, of shape[-1:]
  PyObject* empty_as;               // (array, shape, dtype's name) -> array on its device, or str
  PyObject* empty_bytes;            // (array, count) -> uint8 array on its GPU; None: no allocator
  PyObject* current_stream;         // (device index) -> handle
  bool (*grad_mode)();              // torch's C function, else null and is_grad_enabled is asked
  PyObject* is_grad_enabled;
  bool (*inference_mode)();     // torch's C++ function, else null
  PyObject* increment_version;  // (tuple of arrays)
  PyObject* forward_ad;         // namespace of torch.autograd.forward_ad; _current_level -1: none
  PyObject* unpack_dual;        // (array) -> (primal, tangent or None); a builtin, not traced
  bool (*key_included)(std::uint16_t key);  // torch's C++ functions, else null
  bool (*key_excluded)(std::uint16_t key);
  std::uint16_t mode_key, tracer_key;  // keys of a dispatch mode and of torch.jit.trace
  std::uint16_t vmap_key;              // key of torch.vmap, for batched gradients
  std::uint16_t transform_front_key, transform_back_key;  // keys of torch.func
  PyObject* makes_graph;                                  // () -> bool
  bool (*profiles)();                                     // torch's C++ function, else null
  bool makes_arrays;                                      // torch::new_array can be used
  // torch.Tensor.requires_grad and its getter, called directly to save 13 ns of name lookup.
  PyObject* requires_grad;
  descrgetfunc get_requires_grad;
  PyObject* is_neg;  // torch.Tensor.is_neg
};

// Whether dispatch keys can be queried.
inline bool knows_keys(const Framework& torch) {
  return torch.key_included != nullptr && torch.key_excluded != nullptr;
}
inline bool is_active(const Framework& torch, std::uint16_t key) {
  return torch.key_included(key) && !torch.key_excluded(key);
}
inline bool has_mode(const Framework& torch) { return is_active(torch, torch.mode_key); }
// Whether a mode or torch.jit.trace observes the operators that this thread calls.
inline bool is_watched(const Framework& torch) {
  return knows_keys(torch) && (has_mode(torch) || is_active(torch, torch.tracer_key));
}

// Whether this thread is in a transform of torch.func.
inline bool is_transformed(const Framework& torch) {
  return torch.key_included(torch.transform_front_key) ||
         torch.key_included(torch.transform_back_key);
}

// requires_grad of a torch tensor.
inline bool wants_gradient(const Framework& torch, PyObject* tensor) {
  const nb::object wanted = nb::steal(torch.get_requires_grad(
      torch.requires_grad, tensor, reinterpret_cast<PyObject*>(Py_TYPE(tensor))));
  if (!wanted.is_valid()) throw nb::python_error();
  return wanted.ptr() == Py_True;
}

// The op and the argument that an error message names.
struct Site {
  const char* op;
  const char* argument;
};

// The framework of an array, from a cache by exact type. Throws TypeMismatch for an object that is
// not an array and for array types that cannot be read faithfully.
const Framework& framework_of(PyObject* array, Site site);

// Attribute names, interned once.
struct Names {
  PyObject* array_struct = nb::str("__array_struct__").release().ptr();
  PyObject* dlpack = nb::str("__dlpack__").release().ptr();
  PyObject* dlpack_device = nb::str("__dlpack_device__").release().ptr();
  PyObject* cuda_stream_protocol = nb::str("__cuda_stream__").release().ptr();
  PyObject* cuda_stream = nb::str("cuda_stream").release().ptr();
  PyObject* ptr = nb::str("ptr").release().ptr();
  PyObject* current_level = nb::str("_current_level").release().ptr();
};
const Names& names();

// membound.arrays, imported at first use.
nb::object arrays_module();

// str(type(object)) without the angle brackets: "numpy.ndarray", "list".
std::string type_name(PyObject* object);

}  // namespace membound::python
