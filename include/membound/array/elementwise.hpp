// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "membound/array/elementwise_ops.hpp"
#include "membound/ndarray.hpp"

// Element-wise functions of arrays: operands are promoted and broadcast as the array-API standard
// has it, the result is new. 16-bit floats are computed in float32 and rounded once.
namespace membound::array {

// An array, or a number that takes the dtype of the arrays beside it.
class Operand {
 public:
  Operand(const NDArray& array) noexcept : array_(&array) {}
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  Operand(T value) noexcept : scalar_(value) {}
  Operand(Scalar value) noexcept : scalar_(value) {}

  const NDArray* array() const noexcept { return array_; }  // null: a number
  Scalar scalar() const noexcept { return scalar_; }

 private:
  const NDArray* array_ = nullptr;
  Scalar scalar_ = false;
};

// The dtype that operands are promoted to; at least one is an array. Throws TypeMismatch for pairs
// without a common dtype (uint64 and int64), and for a number that its kind of dtype cannot hold.
MEMBOUND_API DType result_type(const Operand* operands, int count);
MEMBOUND_API DType promote(DType a, DType b);

// Throws TypeMismatch for a real number, and InvalidArgument for an integer, that the dtype does
// not hold. fill() and casts take any number.
MEMBOUND_API void check_scalar(Scalar scalar, DType dtype, const char* op);

MEMBOUND_API NDArray elementwise(ElementwiseOp op, std::initializer_list<Operand> operands);
MEMBOUND_API NDArray elementwise(ElementwiseOp op, const Operand* operands, int count);
// Writes to an existing array of the shape and dtype of the result. Operands that overlap it are
// read first.
MEMBOUND_API void elementwise_into(NDArray& result, ElementwiseOp op, const Operand* operands,
                                   int count);
// By the name of the standard; throws InvalidArgument if it has no such function.
MEMBOUND_API ElementwiseOp elementwise_op(const char* name);

#define MEMBOUND_DEFINE_UNARY(name_, Enumerator_, ...) \
  inline NDArray name_(const NDArray& x) { return elementwise(ElementwiseOp::k##Enumerator_, {x}); }
#define MEMBOUND_DEFINE_BINARY(name_, Enumerator_, ...)          \
  inline NDArray name_(const Operand& x1, const Operand& x2) {   \
    return elementwise(ElementwiseOp::k##Enumerator_, {x1, x2}); \
  }
MEMBOUND_ARRAY_UNARY(MEMBOUND_DEFINE_UNARY)
MEMBOUND_ARRAY_BINARY(MEMBOUND_DEFINE_BINARY)
#undef MEMBOUND_DEFINE_UNARY
#undef MEMBOUND_DEFINE_BINARY
inline NDArray clip(const NDArray& x, const Operand& low, const Operand& high) {
  return elementwise(ElementwiseOp::kClip, {x, low, high});
}
inline NDArray where(const NDArray& condition, const Operand& x1, const Operand& x2) {
  return elementwise(ElementwiseOp::kWhere, {condition, x1, x2});
}

}  // namespace membound::array
