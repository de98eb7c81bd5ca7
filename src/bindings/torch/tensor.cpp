// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "torch/tensor.hpp"

#include <cxxabi.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "core/check.hpp"
#include "core/memory.hpp"
#include "load.hpp"

namespace membound::python::torch {

namespace {

using shim::functions;

// torch returns only that it failed, and prints the reason.
void check(shim::Status status, const char* what) {
  if (status != 0) [[unlikely]]
    throw Error(std::string("torch failed to ") + what);
}

DType dtype_of(std::int32_t number, const char* op) {
  const auto& all = functions->dtypes;
  const auto* found = std::find(std::begin(all), std::end(all), number);
  MEMBOUND_CHECK(found != std::end(all), TypeMismatch, op,
                 "an argument has a dtype which no op takes (torch's number ", number, ")");
  return static_cast<DType>(found - std::begin(all));
}

Device device_of(shim::TensorHandle tensor, const char* op) {
  std::int32_t type = 0, index = 0;
  check(functions->device_type(tensor, &type), "tell a tensor's device");
  if (type == functions->cpu) return Device::cpu();
  MEMBOUND_CHECK(type == functions->cuda, TypeMismatch, op,
                 "an argument is neither on the CPU nor on a CUDA device");
  check(functions->device_index(tensor, &index), "tell a tensor's device");
  return Device::cuda(index);
}

// The strides of a new tensor, by torch's rule.
void make_contiguous(TensorView& view) {
  std::int64_t stride = 1;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    view.strides[axis] = stride;
    stride *= std::max<std::int64_t>(view.shape[axis], 1);
  }
}

Tensor allocate(TensorView wanted) {
  make_contiguous(wanted);
  shim::TensorHandle handle = nullptr;
  const Device device = wanted.device;
  const shim::Status status = functions->empty_strided(
      wanted.rank, wanted.shape, wanted.strides, functions->dtypes[static_cast<int>(wanted.dtype)],
      device.is_cuda() ? functions->cuda : functions->cpu, device.is_cuda() ? device.index : 0,
      &handle);
  if (status != 0) [[unlikely]]
    throw OutOfMemory("torch failed to allocate a result");
  Tensor made(handle);
  check(functions->data(handle, &wanted.data), "tell a result's address");
  made.lies_at(wanted);
  if (!device.is_cuda()) {
    cpu::advise_huge_pages(wanted.data,
                           static_cast<std::size_t>(wanted.size()) * dtype_size(wanted.dtype));
  }
  return made;
}

}  // namespace

void Tensor::load(const char* op) {
  if (borrowed_ != nullptr) return load_borrowed(op);
  std::int64_t rank = 0, *shape = nullptr, *strides = nullptr;
  std::int32_t dtype = 0;
  check(functions->rank(handle_, &rank), "tell a tensor's rank");
  check(functions->shape(handle_, &shape), "tell a tensor's shape");
  check(functions->strides(handle_, &strides), "tell a tensor's strides");
  check(functions->dtype(handle_, &dtype), "tell a tensor's dtype");
  view_.dtype = dtype_of(dtype, op);
  view_.device = device_of(handle_, op);
  check(functions->data(handle_, &view_.data), "tell a tensor's address");
  MEMBOUND_CHECK(rank <= kMaxRank, InvalidArgument, op, "an argument must have at most ", kMaxRank,
                 " axes, got ", rank);
  view_.rank = static_cast<std::int32_t>(rank);
  std::copy_n(shape, rank, view_.shape);
  std::copy_n(strides, rank, view_.strides);
  input_ = view_;
}

const Framework& torch_of(PyObject* object) {
  try {
    const Framework& framework = framework_of(object, {"", "tensor"});
    if (framework.kind == Kind::kTorch) return framework;
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (...) {
  }
  throw NotPlain{};
}

// Reads the tensor as eager calls do, which is cheaper than through a handle. Their errors differ
// from the dispatcher's, which also accepts more.
void Tensor::load_borrowed(const char* op) {
  const Framework& framework = torch_of(borrowed_);
  LoadedArray loaded;
  try {
    load_array(borrowed_, framework, {op, "tensor"}, StreamView::legacy_default(), loaded);
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (...) {
    throw NotPlain{};
  }
  if (loaded.view.device.is_cuda() && functions->cuda_stream == nullptr) throw NotPlain{};
  lies_at(loaded.view);
}

void Tensor::lies_at(const TensorView& view) {
  view_ = view;
  input_ = view;
}

Tensor new_like(const TensorView& array) { return allocate(array); }

Tensor new_rows(const TensorView& array) {
  TensorView rows = array;
  rows.rank = std::max(array.rank - 1, 0);
  rows.dtype = accumulate_dtype(array.dtype);
  return allocate(rows);
}

Tensor new_empty(const TensorView& like) {
  return allocate(TensorView(nullptr, like.dtype, like.device, {0}));
}

Tensor new_like_if(bool wanted, const TensorView& array) {
  return wanted ? new_like(array) : new_empty(array);
}

MaybeTensor new_workspace(Device device, std::int64_t bytes) {
  if (bytes == 0 || !device.is_cuda()) return {};
  return allocate(TensorView(nullptr, DType::kUInt8, device, {bytes}));
}

StreamView current_stream(const TensorView& array) {
  if (!array.device.is_cuda()) return StreamView::legacy_default();
  void* stream = nullptr;
  check(functions->cuda_stream(array.device.index, &stream), "tell the current stream");
  return StreamView::from_handle(stream);
}

}  // namespace membound::python::torch
