// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <utility>

#include "frameworks.hpp"
#include "membound/stream.hpp"
#include "membound/tensor_view.hpp"
#include "torch_shim.hpp"

namespace membound::python::torch {

// Thrown for a call from Python that torch has to see: it is made through the dispatcher after all.
struct NotPlain {};

// What reads torch's plain tensors; NotPlain for any other object.
const Framework& torch_of(PyObject* object);

// A tensor of torch's that this object owns: an argument of an operator, or a result of it. Or an
// argument that Python keeps: any object, which has to be a tensor when it is loaded.
class Tensor {
 public:
  Tensor() noexcept = default;
  explicit Tensor(shim::TensorHandle handle) noexcept : handle_(handle) {}
  explicit Tensor(PyObject* borrowed) noexcept : borrowed_(borrowed) {}
  Tensor(Tensor&& other) noexcept { *this = std::move(other); }
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(handle_, other.handle_);
    borrowed_ = other.borrowed_;
    view_ = other.view_;
    input_ = other.input_;
    return *this;
  }
  ~Tensor() {
    if (handle_ != nullptr) shim::functions->delete_tensor(handle_);
  }

  // Finds out where it lies. What a kernel is given has been asked. Of Python's objects NotPlain
  // says that they are no tensors in plain memory.
  void load(const char* op);
  // Of one that was made as it was asked for.
  void lies_at(const TensorView& view);
  const TensorView& view() const { return view_; }
  const ConstTensorView& input() const { return input_; }
  // For the receiver of a result.
  shim::TensorHandle handle() const noexcept { return handle_; }
  shim::TensorHandle release() noexcept { return std::exchange(handle_, nullptr); }

 private:
  void load_borrowed(const char* op);

  shim::TensorHandle handle_ = nullptr;
  PyObject* borrowed_ = nullptr;
  TensorView view_;
  ConstTensorView input_;  // the same
};

using MaybeTensor = std::optional<Tensor>;

// The views as the library takes those of arrays that may not be there.
inline const TensorView* view_of(const MaybeTensor& tensor) {
  return tensor ? &tensor->view() : nullptr;
}
inline const ConstTensorView* input_of(const MaybeTensor& tensor) {
  return tensor ? &tensor->input() : nullptr;
}

// New tensors, C-contiguous and from torch's allocator, so that CUDA graphs own them: of the shape,
// dtype and device of an array, and of its shape less the last axis in the dtype of statistics.
Tensor new_like(const TensorView& array);
Tensor new_rows(const TensorView& array);
// What stands for a gradient that is not wanted: operators cannot return None.
Tensor new_empty(const TensorView& like);
Tensor new_like_if(bool wanted, const TensorView& array);
// Bytes for a kernel to work in; none on the CPU, where the library takes what it needs.
MaybeTensor new_workspace(Device device, std::int64_t bytes);

// The stream that torch works on for this thread and the device of the array.
StreamView current_stream(const TensorView& array);

}  // namespace membound::python::torch
