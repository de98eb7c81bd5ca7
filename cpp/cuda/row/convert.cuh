// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Conversion between 16-byte vectors of storage and numbers of the accumulate type.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "core/numeric.hpp"

namespace membound::cuda {

inline constexpr int kVectorBytes = 16;
template <class T>
inline constexpr int kPack = kVectorBytes / static_cast<int>(sizeof(T));  // elements per vector

__device__ inline float to_number(Float16 value) {
  return __half2float(__ushort_as_half(value.bits));
}
__device__ inline float to_number(BFloat16 value) {
  return __uint_as_float(static_cast<std::uint32_t>(value.bits) << 16);
}
__device__ inline float to_number(float value) { return value; }
__device__ inline double to_number(double value) { return value; }

template <class T>
__device__ inline T from_number(accumulate_t<T> value) {
  if constexpr (sizeof(T) == 2) {
    if constexpr (kDTypeOf<T> == DType::kFloat16) {
      return {__half_as_ushort(__float2half_rn(value))};
    } else {
      return {__bfloat16_as_ushort(__float2bfloat16_rn(value))};
    }
  } else {
    return value;
  }
}

// a * b, rounded by itself. The compiler contracts a product into an FMA in one kernel and not in
// another, and then their bits differ.
__device__ inline float product(float a, float b) { return __fmul_rn(a, b); }
__device__ inline double product(double a, double b) { return __dmul_rn(a, b); }

// Rounds value to T and back.
template <class T>
__device__ inline accumulate_t<T> round_to(accumulate_t<T> value) {
  return to_number(from_number<T>(value));
}

// The kPack<T> elements of one vector.
template <class T>
struct Numbers {
  accumulate_t<T> at[kPack<T>];
};

// Stores numbers without rounding them; `to` is 16-byte aligned.
template <class T>
__device__ inline void store_numbers(accumulate_t<T>* to, const Numbers<T>& numbers) {
  constexpr int kPerVector = kVectorBytes / sizeof(accumulate_t<T>);
  struct alignas(kVectorBytes) Vector {
    accumulate_t<T> at[kPerVector];
  };
#pragma unroll
  for (int i = 0; i < kPack<T>; i += kPerVector) {
    Vector vector;
#pragma unroll
    for (int j = 0; j < kPerVector; ++j) vector.at[j] = numbers.at[i + j];
    *reinterpret_cast<Vector*>(to + i) = vector;
  }
}

template <class T>
__device__ inline Numbers<T> unpack(const uint4& vector) {
  Numbers<T> numbers;
  const std::uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    if constexpr (kDTypeOf<T> == DType::kFloat16) {
      const float2 pair = __half22float2(reinterpret_cast<const __half2&>(words[word]));
      numbers.at[2 * word] = pair.x;
      numbers.at[2 * word + 1] = pair.y;
    } else if constexpr (kDTypeOf<T> == DType::kBFloat16) {
      numbers.at[2 * word] = __uint_as_float(words[word] << 16);
      numbers.at[2 * word + 1] = __uint_as_float(words[word] & 0xffff0000u);
    } else if constexpr (sizeof(T) == 4) {
      numbers.at[word] = __uint_as_float(words[word]);
    } else if (word % 2 == 0) {
      numbers.at[word / 2] =
          __hiloint2double(static_cast<int>(words[word + 1]), static_cast<int>(words[word]));
    }
  }
  return numbers;
}

// Makes the compiler unpack a vector again instead of keeping the unpacked numbers across a
// reduction. With 8 vectors of bfloat16 they would take 64 registers per thread (122 instead of 64)
// and halve the blocks per SM.
__device__ inline void compiler_barrier(uint4& vector) {
  asm volatile("" : "+r"(vector.x), "+r"(vector.y), "+r"(vector.z), "+r"(vector.w));
}
template <int kCount>
__device__ inline void compiler_barrier(uint4 (&vectors)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) compiler_barrier(vectors[i]);
}

// A zero that the compiler does not know. What is computed with it is computed where it is used,
// not in front of the first row, where it would take a register.
__device__ inline int opaque_zero() {
  int zero = 0;
  asm volatile("" : "+r"(zero));
  return zero;
}

// Keeps value in a register of its own: otherwise the compiler may recompute it for each use.
__device__ inline int kept(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

template <class T>
__device__ inline uint4 pack(const Numbers<T>& numbers) {
  std::uint32_t words[4];
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    if constexpr (kDTypeOf<T> == DType::kFloat16) {
      const __half2 pair = __floats2half2_rn(numbers.at[2 * word], numbers.at[2 * word + 1]);
      words[word] = reinterpret_cast<const std::uint32_t&>(pair);
    } else if constexpr (kDTypeOf<T> == DType::kBFloat16) {
      const __nv_bfloat162 pair =
          __floats2bfloat162_rn(numbers.at[2 * word], numbers.at[2 * word + 1]);
      words[word] = reinterpret_cast<const std::uint32_t&>(pair);
    } else if constexpr (sizeof(T) == 4) {
      words[word] = __float_as_uint(numbers.at[word]);
    } else {
      words[word] =
          static_cast<std::uint32_t>(word % 2 == 0 ? __double2loint(numbers.at[word / 2])
                                                   : __double2hiint(numbers.at[word / 2]));
    }
  }
  return {words[0], words[1], words[2], words[3]};
}

// numbers rounded to T and back, in pairs: single 16-bit conversions have a quarter of the
// throughput.
template <class T>
__device__ inline Numbers<T> rounded(const Numbers<T>& numbers) {
  return sizeof(T) == 2 ? unpack<T>(pack<T>(numbers)) : numbers;
}

}  // namespace membound::cuda
