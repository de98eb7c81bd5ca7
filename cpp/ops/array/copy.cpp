// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/array/copy.hpp"

#include <cmath>

#include "core/array/buffer.hpp"
#include "core/array/geometry.hpp"
#include "core/check.hpp"
#include "core/layout.hpp"
#include "core/route.hpp"
#include "membound/device_buffer.hpp"
#include "ops/array/operands.hpp"

namespace membound {

namespace {

void run(ArrayCopy& problem, Device device, const char* op) {
  collapse(problem.dims, {&problem.result, &problem.source});
  route(
      device, op, [&] { cpu::array_copy(problem); },
      [&] { cuda::array_copy(problem, array_stream(device)); });
}

// What is queued on a GPU's stream from now on starts after what is on another's.
void order_gpus([[maybe_unused]] Device first, [[maybe_unused]] Device then) {
#if MEMBOUND_WITH_CUDA
  if (first.is_cuda() && then.is_cuda())
    cuda::order_streams(array_stream(first), array_stream(then), first);
#endif
}

// The bytes of a contiguous array on another device.
NDArray moved(const NDArray& source, Device device) {
  const NDArray from = source.contiguous();
  NDArray result = NDArray::empty(source.shape(), source.dtype(), device);
  const Device gpu = device.is_cuda() ? device : source.device();
  const StreamView stream = array_stream(gpu);
  order_gpus(source.device(), device);
  copy_bytes(result.data(), device, from.data(), source.device(),
             static_cast<std::size_t>(from.bytes()), stream);
  order_gpus(device, source.device());
  // Memory of others may be pinned, and is read after the call then.
  const bool is_read_later =
      !source.device().is_cuda() && from.buffer() != nullptr && from.buffer()->owner != nullptr;
  if (!device.is_cuda() || is_read_later) stream.synchronize();
  return result;
}

}  // namespace

namespace array {

void copy_into(NDArray& destination, const NDArray& source) {
  constexpr const char* kOp = "copy_into";
  check_array_dtype(destination.dtype(), kOp, "destination");
  check_array_dtype(source.dtype(), kOp, "source");
  check_destination(destination, kOp, "destination");
  // Before anything is read: it throws if the shapes do not fit.
  geometry::broadcast_strides(source.shape(), source.strides(), destination.shape(), kOp);
  if (destination.size() == 0) return;
  if (is_same_array(source.view(), destination.view())) return;
  const NDArray local = source.device() == destination.device()
                            ? apart_from(source, destination)
                            : moved(source, destination.device());
  ArrayCopy problem;
  problem.dims = dims_of(destination.shape());
  problem.result = operand_of(destination, destination.shape(), kOp);
  problem.source = operand_of(local, destination.shape(), kOp);
  run(problem, destination.device(), kOp);
}

void fill(NDArray& destination, Scalar value) {
  constexpr const char* kOp = "fill";
  check_array_dtype(destination.dtype(), kOp, "destination");
  check_destination(destination, kOp, "destination");
  if (destination.size() == 0) return;
  ArrayCopy problem;
  problem.dims = dims_of(destination.shape());
  problem.result = operand_of(destination, destination.shape(), kOp);
  problem.source = cast_scalar(value);
  run(problem, destination.device(), kOp);
}

NDArray reshape_copy(const NDArray& x, NDArray::Dims shape) {
  return x.can_reshape(shape) ? x.reshape(std::move(shape)) : x.copy().reshape(std::move(shape));
}

}  // namespace array

Scalar NDArray::item() const {
  MEMBOUND_CHECK(size() == 1, InvalidArgument, "item", "an array of 1 element is expected, got ",
                 geometry::shape_text(shape_));
  const bool floating = is_floating(dtype_);
  const DType wide = floating                   ? DType::kFloat64
                     : dtype_ == DType::kUInt64 ? DType::kUInt64
                     : dtype_ == DType::kBool   ? DType::kBool
                                                : DType::kInt64;
  const NDArray value = to(Device::cpu()).astype(wide);
  if (floating) return *value.as<double>();
  if (wide == DType::kBool) return *value.as<bool>();
  return wide == DType::kUInt64 ? Scalar(*value.as<std::uint64_t>())
                                : Scalar(*value.as<std::int64_t>());
}

}  // namespace membound
