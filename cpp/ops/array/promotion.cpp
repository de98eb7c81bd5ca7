// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/check.hpp"
#include "membound/array/elementwise.hpp"
#include "ops/array/operands.hpp"

namespace membound::array {

namespace {

constexpr const char* kOp = "result_type";

DType signed_beyond(DType natural, DType integer) {
  MEMBOUND_CHECK(natural != DType::kUInt64, TypeMismatch, kOp, "uint64 and ", dtype_name(integer),
                 " have no common integer dtype");
  const DType next =
      static_cast<DType>(static_cast<int>(natural) - static_cast<int>(DType::kUInt8) +
                         static_cast<int>(DType::kInt16));
  return dtype_size(next) >= dtype_size(integer) ? next : integer;
}

// The dtype of a number on its own.
DType default_dtype(Scalar scalar) {
  switch (scalar.kind) {
    case Scalar::Kind::kBool: return DType::kBool;
    case Scalar::Kind::kFloating: return DType::kFloat64;
    case Scalar::Kind::kUnsigned: return DType::kUInt64;
    default: return DType::kInt64;
  }
}

// A number takes the dtype of the arrays unless its kind goes beyond theirs.
DType with_scalar(DType dtype, Scalar scalar) {
  const bool beyond = scalar.kind == Scalar::Kind::kFloating
                          ? !is_floating(dtype)
                          : dtype == DType::kBool && scalar.kind != Scalar::Kind::kBool;
  return beyond ? default_dtype(scalar) : dtype;
}

}  // namespace

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (a == DType::kBool) return b;
  if (b == DType::kBool) return a;
  if (is_floating(a) != is_floating(b)) return is_floating(a) ? a : b;
  if (is_floating(a)) {
    if (dtype_size(a) == dtype_size(b)) return DType::kFloat32;  // float16 and bfloat16
    return dtype_size(a) > dtype_size(b) ? a : b;
  }
  if (is_signed_integer(a) == is_signed_integer(b)) return dtype_size(a) > dtype_size(b) ? a : b;
  return is_signed_integer(a) ? signed_beyond(b, a) : signed_beyond(a, b);
}

DType result_type(const Operand* operands, int count) {
  bool found = false;
  DType dtype = DType::kBool;
  for (int i = 0; i < count; ++i) {
    if (operands[i].array() == nullptr) continue;
    const DType next = operands[i].array()->dtype();
    dtype = found ? promote(dtype, next) : next;
    found = true;
  }
  for (int i = 0; i < count; ++i) {
    if (operands[i].array() != nullptr) continue;
    const Scalar scalar = operands[i].scalar();
    dtype = found ? with_scalar(dtype, scalar) : default_dtype(scalar);
    found = true;
  }
  return dtype;
}

}  // namespace membound::array
