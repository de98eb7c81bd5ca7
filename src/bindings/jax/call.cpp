// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "jax/call.hpp"

#include <algorithm>

namespace membound::python::jax {

namespace {

DType dtype_of(xla::DataType dtype) {
  switch (dtype) {
    case xla::DataType::kPred: return DType::kBool;
    case xla::DataType::kS8: return DType::kInt8;
    case xla::DataType::kS16: return DType::kInt16;
    case xla::DataType::kS32: return DType::kInt32;
    case xla::DataType::kS64: return DType::kInt64;
    case xla::DataType::kU8: return DType::kUInt8;
    case xla::DataType::kU16: return DType::kUInt16;
    case xla::DataType::kU32: return DType::kUInt32;
    case xla::DataType::kU64: return DType::kUInt64;
    case xla::DataType::kF16: return DType::kFloat16;
    case xla::DataType::kF32: return DType::kFloat32;
    case xla::DataType::kF64: return DType::kFloat64;
    case xla::DataType::kC64: return DType::kComplex64;
    case xla::DataType::kBF16: return DType::kBFloat16;
    case xla::DataType::kC128: return DType::kComplex128;
    case xla::DataType::kF8E5M2: return DType::kFloat8E5M2;
    case xla::DataType::kF8E4M3FN: return DType::kFloat8E4M3;
  }
  throw TypeMismatch("JAX array of XLA data type " + std::to_string(static_cast<int>(dtype)) +
                     ", which membound does not know");
}

}  // namespace

const xla::Buffer& Call::buffer(const xla::Buffers& buffers, std::int64_t index) const {
  if (index >= buffers.size || buffers.types[index] != xla::kBuffer) {
    throw InvalidArgument("a call of " + std::to_string(frame.operands.size) + " operands and " +
                          std::to_string(frame.results.size) + " results lacks " +
                          (&buffers == &frame.operands ? "operand " : "result ") +
                          std::to_string(index) + ": another version of membound made it");
  }
  return *static_cast<const xla::Buffer*>(buffers.values[index]);
}

TensorView Call::view(const xla::Buffers& buffers, std::int64_t index) const {
  const xla::Buffer& buffer = this->buffer(buffers, index);
  TensorView view(buffer.data, dtype_of(buffer.dtype), device, {});
  if (buffer.rank > kMaxRank) {
    view.rank = kMaxRank + 1;  // every op refuses it, naming the argument
    return view;
  }
  view.rank = static_cast<std::int32_t>(buffer.rank);
  std::int64_t stride = 1;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    view.shape[axis] = buffer.dims[axis];
    view.strides[axis] = stride;
    stride *= buffer.dims[axis];
  }
  return view;
}

TensorView Batch::whole(TensorView operand) const {
  for (int axis = 0; axis < axes; ++axis) {
    if (operand.shape[axis] != 1) continue;
    operand.shape[axis] = extents[axis];
    operand.strides[axis] = 0;
  }
  return operand;
}

TensorView Batch::element(const TensorView& array, std::int64_t index) const {
  TensorView view = array;
  std::int64_t offset = 0;
  for (int axis = axes - 1; axis >= 0; --axis) {
    if (array.shape[axis] > 1) offset += index % extents[axis] * array.strides[axis];
    index /= extents[axis];
  }
  view.data =
      static_cast<char*>(array.data) + offset * static_cast<std::int64_t>(dtype_size(array.dtype));
  view.rank -= axes;
  for (int axis = 0; axis < view.rank; ++axis) {
    view.shape[axis] = array.shape[axis + axes];
    view.strides[axis] = array.strides[axis + axes];
  }
  return view;
}

bool Batch::is_common(const MaybeArray& array) const {
  if (!array) return true;
  return std::all_of(array->shape, array->shape + axes,
                     [](std::int64_t extent) { return extent == 1; });
}

Batch Call::batch() const {
  const xla::Buffer& first = buffer(frame.results, 0);
  return {static_cast<int>(std::max<std::int64_t>(first.rank - choice("rank"), 0)), first.dims};
}

std::optional<std::vector<std::int64_t>> Call::maybe_integers(const char* name) const {
  const std::int64_t at = index_of(name);
  if (at < 0) return std::nullopt;
  const auto* array = static_cast<const xla::Array*>(frame.attributes.values[at]);
  if (frame.attributes.types[at] != xla::kArrayAttribute || array->dtype != xla::DataType::kS64)
    throw InvalidArgument(std::string("attribute '") + name + "' is of another type");
  const auto* first = static_cast<const std::int64_t*>(array->data);
  return std::vector<std::int64_t>(first, first + array->size);
}

void Call::spread(const xla::Buffers& buffers, const char* present, Places places) const {
  const int bits = choice(present);
  std::int64_t next = 0;
  int at = 0;
  for (MaybeArray* place : places) {
    if (bits >> at++ & 1) *place = view(buffers, next++);
  }
}

}  // namespace membound::python::jax
