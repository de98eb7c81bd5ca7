// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// Scalar functions for kernels of both back ends, overloaded for float and double. The units per
// instruction set include no <cmath> (see cpu/vec.hpp), so they call the compiler's builtins.
#if defined(__CUDACC__)
#define MEMBOUND_SCALAR static inline __host__ __device__
#define MEMBOUND_C_FUNCTION(name_) ::name_
#else
#define MEMBOUND_SCALAR static inline __attribute__((always_inline))
#define MEMBOUND_C_FUNCTION(name_) __builtin_##name_
#endif

namespace membound::scalar {

#define MEMBOUND_MATH_1(name_)                                                      \
  MEMBOUND_SCALAR float name_(float x) { return MEMBOUND_C_FUNCTION(name_##f)(x); } \
  MEMBOUND_SCALAR double name_(double x) { return MEMBOUND_C_FUNCTION(name_)(x); }
#define MEMBOUND_MATH_2(name_)                                                                  \
  MEMBOUND_SCALAR float name_(float x, float y) { return MEMBOUND_C_FUNCTION(name_##f)(x, y); } \
  MEMBOUND_SCALAR double name_(double x, double y) { return MEMBOUND_C_FUNCTION(name_)(x, y); }

MEMBOUND_MATH_1(acos)
MEMBOUND_MATH_1(acosh)
MEMBOUND_MATH_1(asin)
MEMBOUND_MATH_1(asinh)
MEMBOUND_MATH_1(atan)
MEMBOUND_MATH_1(atanh)
MEMBOUND_MATH_1(ceil)
MEMBOUND_MATH_1(cos)
MEMBOUND_MATH_1(cosh)
MEMBOUND_MATH_1(exp)
MEMBOUND_MATH_1(expm1)
MEMBOUND_MATH_1(fabs)
MEMBOUND_MATH_1(floor)
MEMBOUND_MATH_1(log)
MEMBOUND_MATH_1(log10)
MEMBOUND_MATH_1(log1p)
MEMBOUND_MATH_1(log2)
MEMBOUND_MATH_1(rint)
MEMBOUND_MATH_1(sin)
MEMBOUND_MATH_1(sinh)
MEMBOUND_MATH_1(sqrt)
MEMBOUND_MATH_1(tan)
MEMBOUND_MATH_1(tanh)
MEMBOUND_MATH_1(trunc)
MEMBOUND_MATH_2(atan2)
MEMBOUND_MATH_2(copysign)
MEMBOUND_MATH_2(fmod)
MEMBOUND_MATH_2(hypot)
MEMBOUND_MATH_2(nextafter)
MEMBOUND_MATH_2(pow)
#undef MEMBOUND_MATH_1
#undef MEMBOUND_MATH_2

// Facts about the arithmetic types, as no std:: header may be included.
template <class T>
struct Number;
#define MEMBOUND_INTEGER(type_, Unsigned_, lowest_, highest_) \
  template <>                                                 \
  struct Number<type_> {                                      \
    using Unsigned = Unsigned_;                               \
    static constexpr bool kFloating = false;                  \
    static constexpr bool kSigned = type_(-1) < type_(0);     \
    static constexpr type_ kLowest = lowest_;                 \
    static constexpr type_ kHighest = highest_;               \
  };
MEMBOUND_INTEGER(std::int8_t, std::uint8_t, INT8_MIN, INT8_MAX)
MEMBOUND_INTEGER(std::int16_t, std::uint16_t, INT16_MIN, INT16_MAX)
MEMBOUND_INTEGER(std::int32_t, std::uint32_t, INT32_MIN, INT32_MAX)
MEMBOUND_INTEGER(std::int64_t, std::uint64_t, INT64_MIN, INT64_MAX)
MEMBOUND_INTEGER(std::uint8_t, std::uint8_t, 0, UINT8_MAX)
MEMBOUND_INTEGER(std::uint16_t, std::uint16_t, 0, UINT16_MAX)
MEMBOUND_INTEGER(std::uint32_t, std::uint32_t, 0, UINT32_MAX)
MEMBOUND_INTEGER(std::uint64_t, std::uint64_t, 0, UINT64_MAX)
#undef MEMBOUND_INTEGER
template <>
struct Number<bool> {
  static constexpr bool kFloating = false;
  static constexpr bool kSigned = false;
};
template <>
struct Number<float> {
  static constexpr bool kFloating = true;
  static constexpr bool kSigned = true;
  static constexpr float kInfinity = __builtin_inff();
};
template <>
struct Number<double> {
  static constexpr bool kFloating = true;
  static constexpr bool kSigned = true;
  static constexpr double kInfinity = __builtin_inf();
};

template <class A, class B>
inline constexpr bool kSameType = false;
template <class A>
inline constexpr bool kSameType<A, A> = true;

// Integers wrap, bool is != 0, and a float that its integer type does not hold becomes the nearest
// that it does, a NaN 0.
template <class To, class From>
MEMBOUND_SCALAR To convert_to(From from) {
  if constexpr (kSameType<To, bool>) {
    return from != From(0);
  } else if constexpr (Number<From>::kFloating && !Number<To>::kFloating) {
    // Selections, no branches: loops of this are vectorised. kBelow is the largest float that To
    // holds; kHighest as a float may be the first beyond.
    constexpr From kRoundsUp = sizeof(From) == 4 ? From(0x1p-24) : From(0x1p-53);
    constexpr From kLowest = From(Number<To>::kLowest), kHighest = From(Number<To>::kHighest);
    constexpr bool kExact = 8 * sizeof(To) <= (sizeof(From) == 4 ? 24 : 53);
    constexpr From kBelow = kExact ? kHighest : kHighest - kHighest * kRoundsUp;
    const From above = from > kLowest ? from : kLowest;
    const To whole = static_cast<To>(above < kBelow ? above : kBelow);
    const To most = from >= kHighest ? Number<To>::kHighest : whole;
    return from == from ? most : To(0);
  } else {
    return static_cast<To>(from);
  }
}

}  // namespace membound::scalar
