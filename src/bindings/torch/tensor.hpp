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

// Thrown for a call from Python that must go through torch's dispatcher instead.
struct NotPlain {};

// The reader of plain torch tensors; throws NotPlain for any other object.
const Framework& torch_of(PyObject* object);

// An owned torch tensor, an argument or a result of an operator; or a borrowed Python argument, any
// object, which must be a tensor when it is loaded.
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

  // Reads the view. Throws NotPlain for Python objects that are not tensors in plain memory; a
  // kernel's arguments have been checked already.
  void load(const char* op);
  // The view of a new tensor, which has the requested geometry.
  void lies_at(const TensorView& view);
  const TensorView& view() const { return view_; }
  const ConstTensorView& input() const { return input_; }
  // Passes ownership to the receiver of a result.
  shim::TensorHandle handle() const noexcept { return handle_; }
  shim::TensorHandle release() noexcept { return std::exchange(handle_, nullptr); }

 private:
  void load_borrowed(const char* op);

  shim::TensorHandle handle_ = nullptr;
  PyObject* borrowed_ = nullptr;
  TensorView view_;
  ConstTensorView input_;  // the same view, read-only
};

using MaybeTensor = std::optional<Tensor>;

// The views of optional arrays, as the library's types.
inline const TensorView* view_of(const MaybeTensor& tensor) {
  return tensor ? &tensor->view() : nullptr;
}
inline const ConstTensorView* input_of(const MaybeTensor& tensor) {
  return tensor ? &tensor->input() : nullptr;
}

// New C-contiguous tensors from torch's allocator, so that CUDA graphs own them: of the shape,
// dtype and device of an array, or of its shape without the last axis in the dtype of statistics.
Tensor new_like(const TensorView& array);
Tensor new_rows(const TensorView& array);
// An empty tensor for a gradient that is not wanted, as operators cannot return None.
Tensor new_empty(const TensorView& like);
Tensor new_like_if(bool wanted, const TensorView& array);
// Workspace of a kernel; empty on the CPU, where the library allocates its own.
MaybeTensor new_workspace(Device device, std::int64_t bytes);

// torch's current stream of this thread on the array's device.
StreamView current_stream(const TensorView& array);

}  // namespace membound::python::torch
