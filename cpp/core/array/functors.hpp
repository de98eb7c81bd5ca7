// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/array/scalar_math.hpp"

// The element-wise functions that kernels are made for: op_(Enumerator, operands, types, result).
// The entry reduces the public list to these: greater is less with its operands swapped, signed
// integers are added as unsigned ones, and functions that do nothing are copies.
//   kLogical: bool. kUnsigned, kIntegers: so. kModular: unsigned, float, double.
//   kReal: all integers, float, double. kFloating: float, double. kBytes: unsigned, by size alone.
// clang-format off
#define MEMBOUND_ARRAY_FUNCTORS(op_)               \
  op_(Abs, 1, kSigned, kSame)                      \
  op_(Acos, 1, kFloating, kSame)                   \
  op_(Acosh, 1, kFloating, kSame)                  \
  op_(Asin, 1, kFloating, kSame)                   \
  op_(Asinh, 1, kFloating, kSame)                  \
  op_(Atan, 1, kFloating, kSame)                   \
  op_(Atanh, 1, kFloating, kSame)                  \
  op_(BitwiseInvert, 1, kUnsigned, kSame)          \
  op_(Ceil, 1, kFloating, kSame)                   \
  op_(Cos, 1, kFloating, kSame)                    \
  op_(Cosh, 1, kFloating, kSame)                   \
  op_(Exp, 1, kFloating, kSame)                    \
  op_(Expm1, 1, kFloating, kSame)                  \
  op_(Floor, 1, kFloating, kSame)                  \
  op_(IsFinite, 1, kFloating, kBool)               \
  op_(IsInf, 1, kFloating, kBool)                  \
  op_(IsNan, 1, kFloating, kBool)                  \
  op_(Log, 1, kFloating, kSame)                    \
  op_(Log10, 1, kFloating, kSame)                  \
  op_(Log1p, 1, kFloating, kSame)                  \
  op_(Log2, 1, kFloating, kSame)                   \
  op_(LogicalNot, 1, kLogical, kBool)              \
  op_(Negative, 1, kModular, kSame)                \
  op_(Reciprocal, 1, kFloating, kSame)             \
  op_(Round, 1, kFloating, kSame)                  \
  op_(Sign, 1, kReal, kSame)                       \
  op_(SignBit, 1, kFloating, kBool)                \
  op_(Sin, 1, kFloating, kSame)                    \
  op_(Sinh, 1, kFloating, kSame)                   \
  op_(Sqrt, 1, kFloating, kSame)                   \
  op_(Square, 1, kModular, kSame)                  \
  op_(Tan, 1, kFloating, kSame)                    \
  op_(Tanh, 1, kFloating, kSame)                   \
  op_(Trunc, 1, kFloating, kSame)                  \
  op_(Add, 2, kModular, kSame)                     \
  op_(Atan2, 2, kFloating, kSame)                  \
  op_(BitwiseAnd, 2, kUnsigned, kSame)             \
  op_(BitwiseLeftShift, 2, kUnsigned, kSame)       \
  op_(BitwiseOr, 2, kUnsigned, kSame)              \
  op_(BitwiseRightShift, 2, kIntegers, kSame)      \
  op_(BitwiseXor, 2, kUnsigned, kSame)             \
  op_(CopySign, 2, kFloating, kSame)               \
  op_(Divide, 2, kFloating, kSame)                 \
  op_(Equal, 2, kModular, kBool)                   \
  op_(FloorDivide, 2, kReal, kSame)                \
  op_(Hypot, 2, kFloating, kSame)                  \
  op_(Less, 2, kReal, kBool)                       \
  op_(LessEqual, 2, kReal, kBool)                  \
  op_(LogAddExp, 2, kFloating, kSame)              \
  op_(LogicalAnd, 2, kLogical, kBool)              \
  op_(LogicalOr, 2, kLogical, kBool)               \
  op_(LogicalXor, 2, kLogical, kBool)              \
  op_(Maximum, 2, kReal, kSame)                    \
  op_(Minimum, 2, kReal, kSame)                    \
  op_(Multiply, 2, kModular, kSame)                \
  op_(NextAfter, 2, kFloating, kSame)              \
  op_(NotEqual, 2, kModular, kBool)                \
  op_(Pow, 2, kReal, kSame)                        \
  op_(Remainder, 2, kReal, kSame)                  \
  op_(Subtract, 2, kModular, kSame)                \
  op_(Clip, 3, kReal, kSame)                       \
  op_(Where, 3, kBytes, kSame)
// clang-format on

namespace membound::functors {

enum class Types { kLogical, kUnsigned, kIntegers, kSigned, kModular, kReal, kFloating, kBytes };

// True if a kernel is made for the arithmetic type A.
template <class A>
constexpr bool takes(Types types) {
  using N = scalar::Number<A>;
  constexpr bool kIsBool = scalar::kSameType<A, bool>;
  switch (types) {
    case Types::kLogical: return kIsBool;
    case Types::kBytes:
    case Types::kUnsigned: return !kIsBool && !N::kSigned;
    case Types::kIntegers: return !kIsBool && !N::kFloating;
    case Types::kSigned: return N::kSigned;
    case Types::kModular: return !kIsBool && (N::kFloating || !N::kSigned);
    case Types::kReal: return !kIsBool;
    case Types::kFloating: return N::kFloating;
  }
  return false;
}

#define MEMBOUND_FUNCTOR_1(Name_, ...)                                          \
  struct Name_ {                                                                \
    template <class A>                                                          \
    static inline MEMBOUND_FUNCTOR auto apply([[maybe_unused]] A x) __VA_ARGS__ \
  };
#define MEMBOUND_FUNCTOR_2(Name_, ...)                              \
  struct Name_ {                                                    \
    template <class A>                                              \
    static inline MEMBOUND_FUNCTOR auto apply(A x, A y) __VA_ARGS__ \
  };
#if defined(__CUDACC__)
#define MEMBOUND_FUNCTOR __host__ __device__
#else
#define MEMBOUND_FUNCTOR __attribute__((always_inline))
#endif

// Unsigned arithmetic in at least the width of int, where it cannot overflow.
template <class A>
using Wide = decltype(A() + 0u);

template <class A>
MEMBOUND_SCALAR A larger(A x, A y) {
  if constexpr (scalar::Number<A>::kFloating) {
    return x >= y || x != x ? x : y;
  } else {
    return x >= y ? x : y;
  }
}
template <class A>
MEMBOUND_SCALAR A smaller(A x, A y) {
  if constexpr (scalar::Number<A>::kFloating) {
    return x <= y || x != x ? x : y;
  } else {
    return x <= y ? x : y;
  }
}

MEMBOUND_FUNCTOR_1(Abs, {
  if constexpr (scalar::Number<A>::kFloating) {
    return scalar::fabs(x);
  } else {
    using U = typename scalar::Number<A>::Unsigned;
    return static_cast<A>(x < 0 ? U(0u - U(x)) : U(x));
  }
})
MEMBOUND_FUNCTOR_1(Acos, { return scalar::acos(x); })
MEMBOUND_FUNCTOR_1(Acosh, { return scalar::acosh(x); })
MEMBOUND_FUNCTOR_1(Asin, { return scalar::asin(x); })
MEMBOUND_FUNCTOR_1(Asinh, { return scalar::asinh(x); })
MEMBOUND_FUNCTOR_1(Atan, { return scalar::atan(x); })
MEMBOUND_FUNCTOR_1(Atanh, { return scalar::atanh(x); })
MEMBOUND_FUNCTOR_1(BitwiseInvert, { return static_cast<A>(~x); })
MEMBOUND_FUNCTOR_1(Ceil, { return scalar::ceil(x); })
MEMBOUND_FUNCTOR_1(Cos, { return scalar::cos(x); })
MEMBOUND_FUNCTOR_1(Cosh, { return scalar::cosh(x); })
MEMBOUND_FUNCTOR_1(Exp, { return scalar::exp(x); })
MEMBOUND_FUNCTOR_1(Expm1, { return scalar::expm1(x); })
MEMBOUND_FUNCTOR_1(Floor, { return scalar::floor(x); })
MEMBOUND_FUNCTOR_1(IsFinite, { return x - x == A(0); })
MEMBOUND_FUNCTOR_1(IsInf, { return scalar::fabs(x) == scalar::Number<A>::kInfinity; })
MEMBOUND_FUNCTOR_1(IsNan, { return x != x; })
MEMBOUND_FUNCTOR_1(Log, { return scalar::log(x); })
MEMBOUND_FUNCTOR_1(Log10, { return scalar::log10(x); })
MEMBOUND_FUNCTOR_1(Log1p, { return scalar::log1p(x); })
MEMBOUND_FUNCTOR_1(Log2, { return scalar::log2(x); })
MEMBOUND_FUNCTOR_1(LogicalNot, { return !x; })
MEMBOUND_FUNCTOR_1(Negative, {
  if constexpr (scalar::Number<A>::kFloating) {
    return -x;
  } else {
    return static_cast<A>(Wide<A>(0) - x);
  }
})
MEMBOUND_FUNCTOR_1(Reciprocal, { return A(1) / x; })
MEMBOUND_FUNCTOR_1(Round, { return scalar::rint(x); })
// Keeps a NaN and gives a zero without sign.
MEMBOUND_FUNCTOR_1(Sign, {
  if constexpr (scalar::Number<A>::kFloating) {
    return x > 0 ? A(1) : x < 0 ? A(-1) : x == 0 ? A(0) : x;
  } else if constexpr (scalar::Number<A>::kSigned) {
    return static_cast<A>((x > 0) - (x < 0));
  } else {
    return static_cast<A>(x > 0);
  }
})
MEMBOUND_FUNCTOR_1(SignBit, { return scalar::copysign(A(1), x) < 0; })
MEMBOUND_FUNCTOR_1(Sin, { return scalar::sin(x); })
MEMBOUND_FUNCTOR_1(Sinh, { return scalar::sinh(x); })
MEMBOUND_FUNCTOR_1(Sqrt, { return scalar::sqrt(x); })
MEMBOUND_FUNCTOR_1(Square, {
  if constexpr (scalar::Number<A>::kFloating) {
    return x * x;
  } else {
    return static_cast<A>(Wide<A>(x) * x);
  }
})
MEMBOUND_FUNCTOR_1(Tan, { return scalar::tan(x); })
MEMBOUND_FUNCTOR_1(Tanh, { return scalar::tanh(x); })
MEMBOUND_FUNCTOR_1(Trunc, { return scalar::trunc(x); })

MEMBOUND_FUNCTOR_2(Add, { return static_cast<A>(x + y); })
MEMBOUND_FUNCTOR_2(Atan2, { return scalar::atan2(x, y); })
MEMBOUND_FUNCTOR_2(BitwiseAnd, { return static_cast<A>(x & y); })
// A shift by the width or more, or by a negative number, shifts everything out.
MEMBOUND_FUNCTOR_2(BitwiseLeftShift, {
  constexpr A kBits = 8 * sizeof(A);
  return static_cast<A>(y < kBits ? Wide<A>(x) << (y & (kBits - 1)) : Wide<A>(0));
})
MEMBOUND_FUNCTOR_2(BitwiseOr, { return static_cast<A>(x | y); })
MEMBOUND_FUNCTOR_2(BitwiseRightShift, {
  using U = typename scalar::Number<A>::Unsigned;
  constexpr U kBits = 8 * sizeof(A);
  if constexpr (scalar::Number<A>::kSigned) {
    return static_cast<A>(x >> (U(y) < kBits ? U(y) : U(kBits - 1)));
  } else {
    return static_cast<A>(y < kBits ? x >> (y & (kBits - 1)) : 0);
  }
})
MEMBOUND_FUNCTOR_2(BitwiseXor, { return static_cast<A>(x ^ y); })
MEMBOUND_FUNCTOR_2(CopySign, { return scalar::copysign(x, y); })
MEMBOUND_FUNCTOR_2(Divide, { return x / y; })
MEMBOUND_FUNCTOR_2(Equal, { return x == y; })
MEMBOUND_FUNCTOR_2(Hypot, { return scalar::hypot(x, y); })
MEMBOUND_FUNCTOR_2(Less, { return x < y; })
MEMBOUND_FUNCTOR_2(LessEqual, { return x <= y; })
MEMBOUND_FUNCTOR_2(LogAddExp, {
  if (x == y) return x + A(0.6931471805599453);  // and two infinities of one sign
  const A high = larger(x, y);
  return high + scalar::log1p(scalar::exp(-scalar::fabs(x - y)));
})
MEMBOUND_FUNCTOR_2(LogicalAnd, { return static_cast<bool>(x & y); })
MEMBOUND_FUNCTOR_2(LogicalOr, { return static_cast<bool>(x | y); })
MEMBOUND_FUNCTOR_2(LogicalXor, { return static_cast<bool>(x ^ y); })
MEMBOUND_FUNCTOR_2(Maximum, { return larger(x, y); })
MEMBOUND_FUNCTOR_2(Minimum, { return smaller(x, y); })
MEMBOUND_FUNCTOR_2(Multiply, {
  if constexpr (scalar::Number<A>::kFloating) {
    return x * y;
  } else {
    return static_cast<A>(Wide<A>(x) * y);
  }
})
MEMBOUND_FUNCTOR_2(NextAfter, { return scalar::nextafter(x, y); })
MEMBOUND_FUNCTOR_2(NotEqual, { return x != y; })
MEMBOUND_FUNCTOR_2(Subtract, { return static_cast<A>(x - y); })

// Rounds down, as Python does. Integers: x / 0 is 0, and the lowest number over -1 is itself.
MEMBOUND_FUNCTOR_2(FloorDivide, {
  if constexpr (scalar::Number<A>::kFloating) {
    constexpr A kInfinity = scalar::Number<A>::kInfinity;
    if (y == 0 || scalar::fabs(x) == kInfinity || scalar::fabs(y) == kInfinity) return x / y;
    const A rest = scalar::fmod(x, y);
    A quotient = (x - rest) / y;
    if (rest != 0 && (y < 0) != (rest < 0)) quotient -= 1;
    if (quotient == 0) return scalar::copysign(A(0), x / y);
    const A whole = scalar::floor(quotient);
    return quotient - whole > A(0.5) ? whole + 1 : whole;
  } else if constexpr (scalar::Number<A>::kSigned) {
    if (y == 0) return A(0);
    if (y == -1) return static_cast<A>(0u - typename scalar::Number<A>::Unsigned(x));
    const A quotient = static_cast<A>(x / y);
    return static_cast<A>(quotient - ((x % y != 0) & ((x < 0) != (y < 0))));
  } else {
    return y == 0 ? A(0) : static_cast<A>(x / y);
  }
})
// Has the sign of y. Integers: 0 where y is 0.
MEMBOUND_FUNCTOR_2(Remainder, {
  if constexpr (scalar::Number<A>::kFloating) {
    const A rest = scalar::fmod(x, y);
    if (rest == 0) return scalar::copysign(A(0), y);
    return (y < 0) != (rest < 0) ? rest + y : rest;
  } else if constexpr (scalar::Number<A>::kSigned) {
    if (y == 0 || y == -1) return A(0);
    const A rest = static_cast<A>(x % y);
    return static_cast<A>(rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest);
  } else {
    return y == 0 ? A(0) : static_cast<A>(x % y);
  }
})
// Integers wrap; with a negative exponent the power is rounded towards zero.
MEMBOUND_FUNCTOR_2(Pow, {
  if constexpr (scalar::Number<A>::kFloating) {
    return scalar::pow(x, y);
  } else {
    if constexpr (scalar::Number<A>::kSigned) {
      if (y < 0) return static_cast<A>(x == 1 ? 1 : x == -1 ? ((y & 1) != 0 ? -1 : 1) : 0);
    }
    using U = typename scalar::Number<A>::Unsigned;
    Wide<U> power = 1, base = static_cast<U>(x);
    for (U rest = static_cast<U>(y); rest != 0; rest = static_cast<U>(rest >> 1)) {
      if ((rest & 1) != 0) power *= base;
      base *= base;
    }
    return static_cast<A>(power);
  }
})

struct Clip {
  template <class A>
  static inline MEMBOUND_FUNCTOR A apply(A x, A low, A high) {
    return smaller(larger(x, low), high);
  }
  // The same if no limit is a NaN: an instruction each.
  template <class A>
  static inline MEMBOUND_FUNCTOR A between(A x, A low, A high) {
    const A raised = low > x ? low : x;
    return high < raised ? high : raised;
  }
};
struct Where {
  template <class A>
  static inline MEMBOUND_FUNCTOR A apply(bool which, A x, A y) {
    return which ? x : y;
  }
};

#undef MEMBOUND_FUNCTOR_1
#undef MEMBOUND_FUNCTOR_2

}  // namespace membound::functors
