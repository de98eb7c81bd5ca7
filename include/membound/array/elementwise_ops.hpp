// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// THE list of element-wise functions of arrays: op_(name, Enumerator, operands, argument, result).
//   name: the array-API standard's. operands: 1 to 3.
//   argument: the dtypes it takes. kBool, kInteger, kBits (bool or integer), kNumeric (integer or
//     floating), kFloating (integers become float64), kAny.
//   result: kSame as the promoted operands, or kBool.
// clang-format off
#define MEMBOUND_ARRAY_UNARY(op_)                              \
  op_(abs, Abs, 1, kNumeric, kSame)                            \
  op_(acos, Acos, 1, kFloating, kSame)                         \
  op_(acosh, Acosh, 1, kFloating, kSame)                       \
  op_(asin, Asin, 1, kFloating, kSame)                         \
  op_(asinh, Asinh, 1, kFloating, kSame)                       \
  op_(atan, Atan, 1, kFloating, kSame)                         \
  op_(atanh, Atanh, 1, kFloating, kSame)                       \
  op_(bitwise_invert, BitwiseInvert, 1, kBits, kSame)          \
  op_(ceil, Ceil, 1, kNumeric, kSame)                          \
  op_(cos, Cos, 1, kFloating, kSame)                           \
  op_(cosh, Cosh, 1, kFloating, kSame)                         \
  op_(exp, Exp, 1, kFloating, kSame)                           \
  op_(expm1, Expm1, 1, kFloating, kSame)                       \
  op_(floor, Floor, 1, kNumeric, kSame)                        \
  op_(isfinite, IsFinite, 1, kAny, kBool)                      \
  op_(isinf, IsInf, 1, kAny, kBool)                            \
  op_(isnan, IsNan, 1, kAny, kBool)                            \
  op_(log, Log, 1, kFloating, kSame)                           \
  op_(log10, Log10, 1, kFloating, kSame)                       \
  op_(log1p, Log1p, 1, kFloating, kSame)                       \
  op_(log2, Log2, 1, kFloating, kSame)                         \
  op_(logical_not, LogicalNot, 1, kAny, kBool)                 \
  op_(negative, Negative, 1, kNumeric, kSame)                  \
  op_(positive, Positive, 1, kNumeric, kSame)                  \
  op_(reciprocal, Reciprocal, 1, kFloating, kSame)             \
  op_(round, Round, 1, kNumeric, kSame)                        \
  op_(sign, Sign, 1, kNumeric, kSame)                          \
  op_(signbit, SignBit, 1, kFloating, kBool)                   \
  op_(sin, Sin, 1, kFloating, kSame)                           \
  op_(sinh, Sinh, 1, kFloating, kSame)                         \
  op_(sqrt, Sqrt, 1, kFloating, kSame)                         \
  op_(square, Square, 1, kNumeric, kSame)                      \
  op_(tan, Tan, 1, kFloating, kSame)                           \
  op_(tanh, Tanh, 1, kFloating, kSame)                         \
  op_(trunc, Trunc, 1, kNumeric, kSame)

#define MEMBOUND_ARRAY_BINARY(op_)                                  \
  op_(add, Add, 2, kNumeric, kSame)                                 \
  op_(atan2, Atan2, 2, kFloating, kSame)                            \
  op_(bitwise_and, BitwiseAnd, 2, kBits, kSame)                     \
  op_(bitwise_left_shift, BitwiseLeftShift, 2, kInteger, kSame)     \
  op_(bitwise_or, BitwiseOr, 2, kBits, kSame)                       \
  op_(bitwise_right_shift, BitwiseRightShift, 2, kInteger, kSame)   \
  op_(bitwise_xor, BitwiseXor, 2, kBits, kSame)                     \
  op_(copysign, CopySign, 2, kFloating, kSame)                      \
  op_(divide, Divide, 2, kFloating, kSame)                          \
  op_(equal, Equal, 2, kAny, kBool)                                 \
  op_(floor_divide, FloorDivide, 2, kNumeric, kSame)                \
  op_(greater, Greater, 2, kAny, kBool)                             \
  op_(greater_equal, GreaterEqual, 2, kAny, kBool)                  \
  op_(hypot, Hypot, 2, kFloating, kSame)                            \
  op_(less, Less, 2, kAny, kBool)                                   \
  op_(less_equal, LessEqual, 2, kAny, kBool)                        \
  op_(logaddexp, LogAddExp, 2, kFloating, kSame)                    \
  op_(logical_and, LogicalAnd, 2, kAny, kBool)                      \
  op_(logical_or, LogicalOr, 2, kAny, kBool)                        \
  op_(logical_xor, LogicalXor, 2, kAny, kBool)                      \
  op_(maximum, Maximum, 2, kNumeric, kSame)                         \
  op_(minimum, Minimum, 2, kNumeric, kSame)                         \
  op_(multiply, Multiply, 2, kNumeric, kSame)                       \
  op_(nextafter, NextAfter, 2, kFloating, kSame)                    \
  op_(not_equal, NotEqual, 2, kAny, kBool)                          \
  op_(pow, Pow, 2, kNumeric, kSame)                                 \
  op_(remainder, Remainder, 2, kNumeric, kSame)                     \
  op_(subtract, Subtract, 2, kNumeric, kSame)

#define MEMBOUND_ARRAY_TERNARY(op_)                            \
  op_(clip, Clip, 3, kNumeric, kSame)                          \
  op_(where, Where, 3, kAny, kSame)
// clang-format on

#define MEMBOUND_ARRAY_ELEMENTWISE(op_) \
  MEMBOUND_ARRAY_UNARY(op_) MEMBOUND_ARRAY_BINARY(op_) MEMBOUND_ARRAY_TERNARY(op_)

namespace membound {

enum class ElementwiseOp : std::uint8_t {
#define MEMBOUND_ENUMERATOR(name_, Enumerator_, ...) k##Enumerator_,
  MEMBOUND_ARRAY_ELEMENTWISE(MEMBOUND_ENUMERATOR)
#undef MEMBOUND_ENUMERATOR
};

}  // namespace membound
