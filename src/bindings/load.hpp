// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "frameworks.hpp"
#include "membound/stream.hpp"
#include "membound/tensor_view.hpp"

namespace membound::python {

// PyObject_CallOneArg, which the stable ABI lacks.
inline PyObject* call_one(PyObject* callable, PyObject* argument) {
  PyObject* stack[2] = {nullptr, argument};
  return PyObject_Vectorcall(callable, stack + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
}

// A loaded array: its view, and the object that keeps the memory alive.
struct LoadedArray {
  TensorView view;
  bool writable = true;
  nb::object keep_alive;  // a DLPack capsule that owns the memory, else empty
};

// Reads an array without converting, copying or waiting. Shape and strides are copied, so later
// Python calls cannot change the view. device_stream: the stream on which a GPU array from
// __dlpack__ must be ready. Throws TypeMismatch or InvalidArgument if it cannot be read.
void load_array(PyObject* array, const Framework& framework, Site site, StreamView device_stream,
                LoadedArray& loaded);

// The same by __dlpack__, for any type that has it.
void load_dlpack(PyObject* array, Site site, StreamView stream, LoadedArray& loaded);
// A DLPack tensor; `loaded` does not keep its memory.
void load_tensor(const dlpack::Tensor& tensor, Site site, LoadedArray& loaded);

// The dtype of a NumPy dtype object, given its kind letter and item size.
DType dtype_from_numpy(char kind, std::int64_t item_size, nb::handle dtype, Site site);

// C-contiguous, ignoring axes of one element.
bool is_contiguous(const TensorView& view);

}  // namespace membound::python
