// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/array/scalar_math.hpp"
#include "cpu/copy_bytes.hpp"
#include "cpu/kernels/array.hpp"
#include "cpu/kernels/array_types.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

constexpr std::int64_t kPart = 512;  // elements between two conversions, on the stack

template <class From, class To>
void convert_loop(const void* from, void* to, std::int64_t count) {
  const From* x = static_cast<const From*>(from);
  To* y = static_cast<To*>(to);
#pragma GCC ivdep
  for (std::int64_t i = 0; i < count; ++i) y[i] = scalar::convert_to<To>(x[i]);
}

// Integers of one size have the same bits, so that signed targets need no loops of their own.
template <class T>
struct TargetOf {
  using type = T;
};
template <class T>
  requires(!scalar::kSameType<T, bool> && !scalar::Number<T>::kFloating)
struct TargetOf<T> {
  using type = typename scalar::Number<T>::Unsigned;
};

// Neither dtype is a 16-bit float.
void convert_plain(const void* from, void* to, DType from_dtype, DType to_dtype,
                   std::int64_t count) {
  with_type(from_dtype, [&]<class From>(TypeTag<From>) MEMBOUND_INLINED {
    with_type(to_dtype, [&]<class To>(TypeTag<To>) MEMBOUND_INLINED {
      if constexpr (scalar::Number<From>::kFloating) {
        convert_loop<From, To>(from, to, count);
      } else {
        convert_loop<From, typename TargetOf<To>::type>(from, to, count);
      }
    });
  });
}

void widen(const void* from, float* to, DType from_dtype, std::int64_t count) {
  if (from_dtype == DType::kBFloat16) {
    const auto* bits = static_cast<const std::uint16_t*>(from);
    auto* words = reinterpret_cast<std::uint32_t*>(to);
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) words[i] = std::uint32_t{bits[i]} << 16;
    return;
  }
  using L = Lanes<Float16>;
  const auto* halves = static_cast<const Float16*>(from);
  std::int64_t at = 0;
  for (; at + L::kStep <= count; at += L::kStep) store_pair(to + at, L::read(halves + at));
  if (at == count) return;
  Float16 padded[L::kStep] = {};
  float results[L::kStep];
  __builtin_memcpy(padded, halves + at, (count - at) * sizeof(Float16));
  store_pair(results, L::read(padded));
  __builtin_memcpy(to + at, results, (count - at) * sizeof(float));
}

MEMBOUND_ALWAYS_INLINE std::uint16_t bfloat16_bits(float value) {
  const std::uint32_t bits = bit_copy<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<std::uint16_t>(value == value ? rounded : (bits >> 16) | 0x40u);
}

void narrow(const float* from, void* to, DType to_dtype, std::int64_t count) {
  if (to_dtype == DType::kBFloat16) {
    auto* bits = static_cast<std::uint16_t*>(to);
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) bits[i] = bfloat16_bits(from[i]);
    return;
  }
  using L = Lanes<Float16>;
  auto* halves = static_cast<Float16*>(to);
  std::int64_t at = 0;
  for (; at + L::kStep <= count; at += L::kStep)
    L::write(halves + at, load_pair<typename L::V>(from + at));
  if (at == count) return;
  float padded[L::kStep] = {};
  Float16 results[L::kStep];
  __builtin_memcpy(padded, from + at, (count - at) * sizeof(float));
  L::write(results, load_pair<typename L::V>(padded));
  __builtin_memcpy(halves + at, results, (count - at) * sizeof(Float16));
}

// To float32 with the last bit set where it is not exact: rounding that to 16 bits is rounding the
// number once.
void narrow_to_odd(const double* from, float* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float nearest = static_cast<float>(from[i]);
    const double back = nearest;
    const bool away = back < 0 ? back < from[i] : back > from[i];
    std::uint32_t bits = bit_copy<std::uint32_t>(nearest);
    if (away) --bits;  // the float below in magnitude
    if (back != from[i] && back == back) bits |= 1u;
    to[i] = bit_copy<float>(bits);
  }
}

bool is_16_bit_float(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }
bool is_exact_in_float(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kBool || dtype == DType::kInt8 ||
         dtype == DType::kUInt8 || dtype == DType::kInt16 || dtype == DType::kUInt16;
}

void convert_part(const ArrayConversion& part) {
  float floats[kPart];
  double doubles[kPart];
  const bool narrows = is_16_bit_float(part.to_dtype);
  if (is_16_bit_float(part.from_dtype)) {
    widen(part.from, floats, part.from_dtype, part.count);
    if (narrows) return narrow(floats, part.to, part.to_dtype, part.count);
    return convert_plain(floats, part.to, DType::kFloat32, part.to_dtype, part.count);
  }
  if (is_exact_in_float(part.from_dtype)) {
    convert_plain(part.from, floats, part.from_dtype, DType::kFloat32, part.count);
  } else {
    convert_plain(part.from, doubles, part.from_dtype, DType::kFloat64, part.count);
    narrow_to_odd(doubles, floats, part.count);
  }
  narrow(floats, part.to, part.to_dtype, part.count);
}

constexpr std::int64_t size_of(DType dtype) { return static_cast<std::int64_t>(dtype_size(dtype)); }

}  // namespace

void array_convert(const ArrayConversion& all) {
  const bool narrows = is_16_bit_float(all.to_dtype), widens = is_16_bit_float(all.from_dtype);
  if (!narrows && !widens)
    return convert_plain(all.from, all.to, all.from_dtype, all.to_dtype, all.count);
  if (all.to_dtype == DType::kFloat32)
    return widen(all.from, static_cast<float*>(all.to), all.from_dtype, all.count);
  if (all.from_dtype == DType::kFloat32)
    return narrow(static_cast<const float*>(all.from), all.to, all.to_dtype, all.count);
  for (std::int64_t at = 0; at < all.count; at += kPart) {
    ArrayConversion part = all;
    part.from = static_cast<const char*>(all.from) + at * size_of(all.from_dtype);
    part.to = static_cast<char*>(all.to) + at * size_of(all.to_dtype);
    part.count = all.count - at < kPart ? all.count - at : kPart;
    convert_part(part);
  }
}

// Non-temporal stores are for whole vectors here, however narrow rows are: those of tiles meet.
void array_store(const ArrayBytes& bytes) {
  const char* from = static_cast<const char*>(bytes.from);
  char* to = static_cast<char*>(bytes.to);
  const std::uint64_t uneven = reinterpret_cast<std::uintptr_t>(to) |
                               static_cast<std::uint64_t>(bytes.count | bytes.to_stride);
  const bool whole = bytes.non_temporal && uneven % kVectorBytes == 0;
  constexpr std::int64_t kPrefetchBytes = 2048;
  const std::int64_t ahead = (kPrefetchBytes / bytes.count + 1) * bytes.from_stride;
  for (std::int64_t row = 0; row < bytes.rows; ++row) {
    if (whole) {
      for (std::int64_t at = 0; at < bytes.count; at += kVectorBytes) {
        __builtin_prefetch(from + ahead + at);
        stream(to + at, load<F32>(from + at));
      }
    } else {
      copy_bytes(from, to, bytes.count, bytes.non_temporal);
    }
    from += bytes.from_stride;
    to += bytes.to_stride;
  }
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
