// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/array/operands.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "core/array/geometry.hpp"
#include "core/check.hpp"
#include "core/layout.hpp"
#include "core/validate.hpp"

namespace membound {

DType unsigned_of(DType dtype) {
  if (!is_signed_integer(dtype)) return dtype;
  constexpr int kDistance = static_cast<int>(DType::kUInt8) - static_cast<int>(DType::kInt8);
  return static_cast<DType>(static_cast<int>(dtype) + kDistance);
}

void check_array_dtype(DType dtype, const char* op, const char* argument) {
  MEMBOUND_CHECK(dtype == DType::kBool || is_integer(dtype) || is_floating(dtype), TypeMismatch, op,
                 "argument '", argument,
                 "' must be bool, an integer or a float of 16 to 64 bits, got ", dtype_name(dtype));
}

ArrayOperand operand_of(const NDArray& array, const NDArray::Dims& shape, const char* op) {
  ArrayOperand operand;
  operand.data = array.data();
  operand.dtype = array.dtype();
  const NDArray::Dims strides =
      geometry::broadcast_strides(array.shape(), array.strides(), shape, op);
  std::copy(strides.begin(), strides.end(), operand.strides);
  return operand;
}

namespace {

template <class T>
ArrayOperand number(DType dtype, T value) {
  ArrayOperand operand;
  operand.dtype = dtype;
  std::memcpy(operand.scalar, &value, sizeof(value));
  std::fill_n(operand.strides, kMaxRank, 0);
  return operand;
}

double real_of(Scalar scalar) {
  switch (scalar.kind) {
    case Scalar::Kind::kFloating: return scalar.real;
    case Scalar::Kind::kUnsigned: return static_cast<double>(scalar.natural);
    default: return static_cast<double>(scalar.integer);
  }
}

// The nearest number with `digits` bits and exponents from `lowest` on; beyond `highest` infinite.
double rounded_to(double value, int digits, int lowest, double highest) {
  if (!std::isfinite(value) || value == 0) return value;
  const int unit = std::max(std::ilogb(value), lowest) - (digits - 1);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(value, -unit)), unit);
  return std::abs(rounded) > highest ? std::copysign(HUGE_VAL, value) : rounded;
}

// Whether an integer dtype holds a number that is no float.
bool holds(DType dtype, Scalar scalar) {
  const int bits = 8 * static_cast<int>(dtype_size(dtype));
  if (scalar.kind == Scalar::Kind::kUnsigned) {
    const int free = is_signed_integer(dtype) ? bits - 1 : bits;
    return free == 64 || scalar.natural >> free == 0;
  }
  if (is_signed_integer(dtype)) {
    const std::int64_t sign = scalar.integer >> (bits - 1);
    return sign == 0 || sign == -1;
  }
  return scalar.integer >= 0 && (bits == 64 || scalar.integer >> bits == 0);
}

}  // namespace

ArrayOperand scalar_operand(Scalar scalar, DType dtype, const char* op) {
  const double real = real_of(scalar);
  if (dtype == DType::kFloat16)
    return number(DType::kFloat32, static_cast<float>(rounded_to(real, 11, -14, 65504)));
  if (dtype == DType::kBFloat16)
    return number(DType::kFloat32, static_cast<float>(rounded_to(real, 8, -126, 0x1.fep127)));
  if (dtype == DType::kFloat32) return number(dtype, static_cast<float>(real));
  if (dtype == DType::kFloat64) return number(dtype, real);
  if (dtype == DType::kBool) return number(dtype, real != 0);
  MEMBOUND_CHECK(scalar.kind != Scalar::Kind::kFloating, TypeMismatch, op, "a float such as ",
                 scalar.real, " does not mix with ", dtype_name(dtype));
  if (!holds(dtype, scalar)) {
    const std::string text = scalar.kind == Scalar::Kind::kUnsigned
                                 ? std::to_string(scalar.natural)
                                 : std::to_string(scalar.integer);
    fail<InvalidArgument>(op, "the integer ", text, " does not fit ", dtype_name(dtype));
  }
  return number(dtype, scalar.integer);  // little-endian: the low bytes are the narrow integer
}

ArrayOperand cast_scalar(Scalar scalar) {
  switch (scalar.kind) {
    case Scalar::Kind::kBool: return number(DType::kBool, scalar.integer != 0);
    case Scalar::Kind::kInteger: return number(DType::kInt64, scalar.integer);
    case Scalar::Kind::kUnsigned: return number(DType::kUInt64, scalar.natural);
    default: return number(DType::kFloat64, scalar.real);
  }
}

ArrayDims dims_of(const NDArray::Dims& shape) {
  ArrayDims dims;
  dims.rank = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), dims.shape);
  return dims;
}

namespace {

// Rewrites dims and strides in the order of `axes`, which leaves dimensions of one element out.
void select(ArrayDims& dims, std::initializer_list<ArrayOperand*> operands, const int* axes,
            int count) {
  std::int64_t kept[kMaxRank];
  const auto apply = [&](std::int64_t* values) {
    for (int i = 0; i < count; ++i) kept[i] = values[axes[i]];
    std::copy_n(kept, count, values);
  };
  for (ArrayOperand* operand : operands) apply(operand->strides);
  apply(dims.shape);
  dims.rank = count;
}

int wide_axes(const ArrayDims& dims, int* axes) {
  int count = 0;
  for (int axis = 0; axis < dims.rank; ++axis) {
    if (dims.shape[axis] != 1) axes[count++] = axis;
  }
  return count;
}

void merge_neighbours(ArrayDims& dims, std::initializer_list<ArrayOperand*> operands) {
  int last = 0;
  for (int axis = 1; axis < dims.rank; ++axis) {
    const bool continues = std::all_of(operands.begin(), operands.end(), [&](ArrayOperand* of) {
      return of->strides[last] == of->strides[axis] * dims.shape[axis];
    });
    if (!continues) ++last;
    dims.shape[last] = continues ? dims.shape[last] * dims.shape[axis] : dims.shape[axis];
    for (ArrayOperand* operand : operands) operand->strides[last] = operand->strides[axis];
  }
  dims.rank = std::min(dims.rank, last + 1);
}

}  // namespace

void merge(ArrayDims& dims, std::initializer_list<ArrayOperand*> operands) {
  int axes[kMaxRank];
  const int count = wide_axes(dims, axes);
  select(dims, operands, axes, count);
  merge_neighbours(dims, operands);
}

void collapse(ArrayDims& dims, std::initializer_list<ArrayOperand*> operands) {
  int axes[kMaxRank];
  const int count = wide_axes(dims, axes);
  const std::int64_t* first = (*operands.begin())->strides;
  const bool sorted = std::is_sorted(
      axes, axes + count, [&](int a, int b) { return std::abs(first[a]) > std::abs(first[b]); });
  if (!sorted) {
    std::stable_sort(axes, axes + count,
                     [&](int a, int b) { return std::abs(first[a]) > std::abs(first[b]); });
  }
  select(dims, operands, axes, count);
  for (int axis = 0; axis < dims.rank; ++axis) {
    if (first[axis] >= 0) continue;
    for (ArrayOperand* operand : operands) {
      const auto size = static_cast<std::int64_t>(dtype_size(operand->dtype));
      if (operand->data != nullptr) {
        operand->data = static_cast<char*>(operand->data) +
                        (dims.shape[axis] - 1) * operand->strides[axis] * size;
      }
      operand->strides[axis] = -operand->strides[axis];
    }
  }
  merge_neighbours(dims, operands);
}

void check_destination(const NDArray& array, const char* op, const char* argument) {
  MEMBOUND_CHECK(array.writable(), InvalidArgument, op, "argument '", argument,
                 "' must be writable, got a read-only array");
  if (!array.is_contiguous()) check_writable(array.view(), op, argument);
}

void check_same_device(const NDArray& array, Device device, const char* op, const char* argument) {
  MEMBOUND_CHECK(array.device() == device, InvalidArgument, op, "argument '", argument,
                 "' must be on ", device_name(device), " like the others, got ",
                 device_name(array.device()));
}

NDArray apart_from(const NDArray& array, const NDArray& result) {
  const ConstTensorView source = array.view(), destination = result.view();
  if (array.size() == 0 || !may_overlap(source, destination)) return array;
  return is_same_array(source, destination) ? array : array.copy();
}

}  // namespace membound
