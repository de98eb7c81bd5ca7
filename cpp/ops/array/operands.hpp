// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>

#include "membound/ndarray.hpp"
#include "ops/array/problems.hpp"

// From arrays to the operands of problems.
namespace membound {

constexpr bool is_integer(DType dtype) { return dtype >= DType::kInt8 && dtype <= DType::kUInt64; }
constexpr bool is_signed_integer(DType dtype) {
  return dtype >= DType::kInt8 && dtype <= DType::kInt64;
}
// The unsigned integer of the same size; others are returned as they are.
DType unsigned_of(DType dtype);
// The dtypes that arrays compute with: bool, integers and floats from float16 to float64.
void check_array_dtype(DType dtype, const char* op, const char* argument);

// The array broadcast to a shape.
ArrayOperand operand_of(const NDArray& array, const NDArray::Dims& shape, const char* op);
// A number, rounded as `dtype` holds it, in accumulate_dtype(dtype) for floats. Throws
// InvalidArgument if an integer dtype does not hold it.
ArrayOperand scalar_operand(Scalar scalar, DType dtype, const char* op);
// As scalar_operand, but for casts: integers wrap, reals are rounded towards zero.
ArrayOperand cast_scalar(Scalar scalar);

ArrayDims dims_of(const NDArray::Dims& shape);
// Drops dimensions of one element, sorts the others by the strides of the first operand (the
// largest first, made positive), and merges those that all operands allow.
void collapse(ArrayDims& dims, std::initializer_list<ArrayOperand*> operands);
// Only drops and merges: the order of elements stays.
void merge(ArrayDims& dims, std::initializer_list<ArrayOperand*> operands);

// Results can be written there: writable memory, no two elements at one address.
void check_destination(const NDArray& array, const char* op, const char* argument);
void check_same_device(const NDArray& array, Device device, const char* op, const char* argument);
// The array itself, or a copy if its memory overlaps the result's in another geometry.
NDArray apart_from(const NDArray& array, const NDArray& result);

}  // namespace membound
