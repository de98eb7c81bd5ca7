// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Quantisation to one-byte codes (int8, float8): largest magnitudes, scales, rounding, stores.
#include <cuda_fp8.h>

#include <concepts>

#include "cuda/row/convert.cuh"
#include "cuda/row/reduce.cuh"

namespace membound::cuda {

// The maximum; NaN propagates.
__device__ inline float larger_or_nan(float a, float b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
#else
  return a > b || a != a ? a : b;
#endif
}
__device__ inline double larger_or_nan(double a, double b) { return a > b || a != a ? a : b; }

// The maximum of magnitudes; NaN propagates. From 8.0 on one instruction reduces a warp by
// comparing bits, which have the order of the numbers, with NaN above all.
struct LargestOrNan {
  template <class Value>
  static __device__ Value zero() {
    return Value(0);
  }
  template <class Value>
  __device__ Value operator()(Value a, Value b) const {
    return larger_or_nan(a, b);
  }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  template <std::same_as<float> Value>  // exactly float, not what converts to it
  __device__ Value of_warp(Value magnitude) const {
    return __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(magnitude)));
  }
#endif
};

__device__ inline float largest_number(DType dtype) {
  return dtype == DType::kInt8 ? 127.0f : (dtype == DType::kFloat8E4M3 ? 448.0f : 57344.0f);
}
// magnitude / largest_number, rounded once. A division has a branch for cases that do not occur
// here. Where the quotient is a normal number the bits are those of a division, for every float32
// and each of these divisors.
__device__ inline float over_largest_number(float magnitude, DType dtype) {
  const float largest = largest_number(dtype);
  const float inverse = dtype == DType::kInt8
                            ? 1 / 127.0f
                            : (dtype == DType::kFloat8E4M3 ? 1 / 448.0f : 1 / 57344.0f);
  const float guess = product(magnitude, inverse);
  const float better = fmaf(fmaf(-guess, largest, magnitude), inverse, guess);
  return better == better ? better : guess;  // infinity makes `better` NaN
}
__device__ inline float over_largest_number(double magnitude, DType dtype) {
  return static_cast<float>(magnitude / largest_number(dtype));
}

// The scale of values from their largest magnitude.
template <class A>
__device__ inline float dynamic_scale(A largest, DType dtype, float upper_bound) {
  constexpr float kSmallest = 0x1p-126f;
  float scale = over_largest_number(largest, dtype);
  if constexpr (sizeof(A) == 8) {  // float32 overflows: the codes are clipped
    if (isinf(scale) && !isinf(largest)) scale = 0x1.fffffep127f;
  }
  scale = scale < kSmallest ? kSmallest : scale;  // NaN propagates
  return scale > upper_bound ? upper_bound : scale;
}

// Out of line, because it is long on GPUs without an instruction for it.
static __device__ __noinline__ std::uint8_t float8_of(double value, bool e4m3) {
  return __nv_cvt_double_to_fp8(value, __NV_SATFINITE, e4m3 ? __NV_E4M3 : __NV_E5M2);
}

// Two codes, the first in the low byte.
template <DType kDType>
__device__ inline std::uint32_t two_codes(float a, float b) {
  if constexpr (kDType == DType::kInt8) {
    // The low bits of 1.5 * 2^23 + a are a, rounded to nearest even.
    const auto code = [](float value) {
      const float within = fminf(fmaxf(value, -127.0f), 127.0f) + 12582912.0f;
      return value == value ? __float_as_uint(within) : 0u;
    };
    return __byte_perm(code(a), code(b), 0x0040) & 0xffffu;
  } else {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    return __nv_cvt_float2_to_fp8x2({a, b}, __NV_SATFINITE,
                                    kDType == DType::kFloat8E4M3 ? __NV_E4M3 : __NV_E5M2);
#else
    return float8_of(a, kDType == DType::kFloat8E4M3) | float8_of(b, kDType == DType::kFloat8E4M3)
                                                            << 8;
#endif
  }
}
template <DType kDType>
__device__ inline std::uint32_t two_codes(double a, double b) {
  const auto code = [](double value) -> std::uint32_t {
    if constexpr (kDType != DType::kInt8) return float8_of(value, kDType == DType::kFloat8E4M3);
    return static_cast<std::uint8_t>(__double2int_rn(fmin(fmax(value, -127.0), 127.0)));
  };
  return (a == a || kDType != DType::kInt8 ? code(a) : 0u) |
         (b == b || kDType != DType::kInt8 ? code(b) : 0u) << 8;
}

// The codes of up to eight numbers, the first in the lowest byte.
template <DType kDType, int kCount, class A>
__device__ inline uint2 codes_of(const A (&y)[kCount], A inverse) {
  std::uint32_t pairs[4] = {};
#pragma unroll
  for (int i = 0; i < kCount; i += 2) {
    pairs[i / 2] = two_codes<kDType>(product(y[i], inverse), product(y[i + 1], inverse));
  }
  return {pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16};
}
template <int kCount, class A>
__device__ inline uint2 codes_of(DType dtype, const A (&y)[kCount], A inverse) {
  return dtype == DType::kInt8
             ? codes_of<DType::kInt8>(y, inverse)
             : (dtype == DType::kFloat8E4M3 ? codes_of<DType::kFloat8E4M3>(y, inverse)
                                            : codes_of<DType::kFloat8E5M2>(y, inverse));
}

// Stores kCount codes at a multiple of kCount bytes.
template <int kCount>
__device__ inline void store_aligned_codes(std::uint64_t to, uint2 codes) {
  if constexpr (kCount == 8) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(codes.x), "r"(codes.y)
                 : "memory");
  } else if constexpr (kCount == 4) {
    asm volatile("st.global.b32 [%0], %1;" ::"l"(to), "r"(codes.x) : "memory");
  } else {
    asm volatile("st.global.b16 [%0], %1;" ::"l"(to), "h"(static_cast<std::uint16_t>(codes.x))
                 : "memory");
  }
}

// Stores `count` codes one by one.
static __device__ __noinline__ void store_codes(std::uint64_t to, std::int64_t stride, uint2 codes,
                                                int count) {
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const std::uint32_t word = i < 4 ? codes.x : codes.y;
    asm volatile("st.global.b8 [%0], %1;" ::"l"(to), "r"(word >> 8 * (i % 4)) : "memory");
    to += static_cast<std::uint64_t>(stride);
  }
}

}  // namespace membound::cuda
