// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Units of four elements, loaded and stored as vectors where they can be. The dtype is a run-time
// number, so that one kernel serves all dtypes that are computed in one arithmetic type.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/array/scalar_math.hpp"
#include "cuda/row/convert.cuh"
#include "ops/array/problems.hpp"

namespace membound::cuda {

inline constexpr int kUnitItems = 4;

// The bits of a unit, packed as in memory. A: the arithmetic type, whose dtypes are no wider.
template <class A, int kItems = kUnitItems>
struct RawUnit {
  static constexpr int kWords = kItems * static_cast<int>(sizeof(A)) / 4;
  std::uint32_t words[kWords];
};

// What a dense problem of rows finds again: the one row, or in each row one element.
enum class Repeat : std::uint8_t { kNone, kRow, kColumn };

// Where an array's units are. `vectors`: along the last dimension the elements are adjacent, and
// each unit is aligned to its size.
struct UnitArray {
  char* data = nullptr;
  std::int64_t stride = 0;  // between elements of a unit
  DType dtype = DType::kFloat32;
  std::uint8_t item_bytes = 1, unit_bytes = kUnitItems;
  bool vectors = false;
  bool is_scalar = false;
  Repeat repeat = Repeat::kNone;
  std::int64_t row_bytes = 0;    // of Repeat::kColumn
  std::uint32_t scalar[8] = {};  // the same number again and again
};

template <class A, int kItems>
__device__ inline void set_item(RawUnit<A, kItems>& raw, int i, int bytes, std::uint64_t bits) {
  const auto low = static_cast<std::uint32_t>(bits);
  if constexpr (sizeof(A) == 8) {
    if (bytes == 8) {
      raw.words[2 * i] = low;
      raw.words[2 * i + 1] = static_cast<std::uint32_t>(bits >> 32);
      return;
    }
  }
  if constexpr (sizeof(A) >= 4) {
    if (bytes == 4) {
      raw.words[i] = low;
      return;
    }
    if (bytes == 2) {
      raw.words[i / 2] = i % 2 == 0 ? low : raw.words[i / 2] | low << 16;
      return;
    }
  }
  const int word = kItems == 4 ? 0 : i / 4, byte = kItems == 4 ? i : i % 4;
  raw.words[word] = byte == 0 ? low : raw.words[word] | low << (8 * byte);
}

template <class A, int kItems>
__device__ inline std::uint64_t get_item(const RawUnit<A, kItems>& raw, int i, int bytes) {
  if constexpr (sizeof(A) == 8) {
    if (bytes == 8) return std::uint64_t{raw.words[2 * i + 1]} << 32 | raw.words[2 * i];
  }
  if constexpr (sizeof(A) >= 4) {
    if (bytes == 4) return raw.words[i];
    if (bytes == 2) return raw.words[i / 2] >> (16 * (i % 2)) & 0xffffu;
  }
  return raw.words[i / 4] >> (8 * (i % 4)) & 0xffu;
}

__device__ inline std::uint64_t load_bits(const char* at, int bytes) {
  switch (bytes) {
    case 1: return *reinterpret_cast<const std::uint8_t*>(at);
    case 2: return *reinterpret_cast<const std::uint16_t*>(at);
    case 4: return *reinterpret_cast<const std::uint32_t*>(at);
    default: return *reinterpret_cast<const std::uint64_t*>(at);
  }
}
__device__ inline void store_bits(char* at, int bytes, std::uint64_t bits) {
  switch (bytes) {
    case 1: *reinterpret_cast<std::uint8_t*>(at) = static_cast<std::uint8_t>(bits); break;
    case 2: *reinterpret_cast<std::uint16_t*>(at) = static_cast<std::uint16_t>(bits); break;
    case 4: *reinterpret_cast<std::uint32_t*>(at) = static_cast<std::uint32_t>(bits); break;
    default: *reinterpret_cast<std::uint64_t*>(at) = bits;
  }
}

// The elements of a unit one by one; those after the first `count` repeat the first. Out of line:
// a kernel has many loads, and most are of vectors.
template <class A>
__device__ __noinline__ RawUnit<A> load_items(const char* at, std::int64_t step, int bytes,
                                              int count) {
  RawUnit<A> raw;
  const std::uint64_t first = load_bits(at, bytes);
#pragma unroll
  for (int i = 0; i < kUnitItems; ++i) {
    const bool again = i == 0 || step == 0 || i >= count;
    set_item(raw, i, bytes, again ? first : load_bits(at + i * step, bytes));
  }
  return raw;
}

// A whole unit that is aligned to its size.
template <class A>
__device__ inline RawUnit<A> load_vectors(const char* at, int item_bytes) {
  RawUnit<A> raw;
  if constexpr (sizeof(A) == 8) {
    if (item_bytes == 8) {
      const uint4 low = reinterpret_cast<const uint4*>(at)[0];
      const uint4 high = reinterpret_cast<const uint4*>(at)[1];
      raw.words[0] = low.x, raw.words[1] = low.y, raw.words[2] = low.z, raw.words[3] = low.w;
      raw.words[4] = high.x, raw.words[5] = high.y, raw.words[6] = high.z, raw.words[7] = high.w;
      return raw;
    }
  }
  if constexpr (sizeof(A) >= 4) {
    if (item_bytes == 4) {
      const uint4 vector = *reinterpret_cast<const uint4*>(at);
      raw.words[0] = vector.x, raw.words[1] = vector.y;
      raw.words[2] = vector.z, raw.words[3] = vector.w;
      return raw;
    }
    if (item_bytes == 2) {
      const uint2 vector = *reinterpret_cast<const uint2*>(at);
      raw.words[0] = vector.x, raw.words[1] = vector.y;
      return raw;
    }
  }
  raw.words[0] = *reinterpret_cast<const std::uint32_t*>(at);
  return raw;
}

template <class A>
__device__ inline void store_vectors(char* at, int item_bytes, const RawUnit<A>& raw) {
  if constexpr (sizeof(A) == 8) {
    if (item_bytes == 8) {
      reinterpret_cast<uint4*>(at)[0] = {raw.words[0], raw.words[1], raw.words[2], raw.words[3]};
      reinterpret_cast<uint4*>(at)[1] = {raw.words[4], raw.words[5], raw.words[6], raw.words[7]};
      return;
    }
  }
  if constexpr (sizeof(A) >= 4) {
    if (item_bytes == 4) {
      *reinterpret_cast<uint4*>(at) = {raw.words[0], raw.words[1], raw.words[2], raw.words[3]};
      return;
    }
    if (item_bytes == 2) {
      *reinterpret_cast<uint2*>(at) = {raw.words[0], raw.words[1]};
      return;
    }
  }
  *reinterpret_cast<std::uint32_t*>(at) = raw.words[0];
}

template <class A>
__device__ inline RawUnit<A> scalar_unit(const UnitArray& array) {
  RawUnit<A> raw;
#pragma unroll
  for (int word = 0; word < RawUnit<A>::kWords; ++word) raw.words[word] = array.scalar[word];
  return raw;
}

// A unit of one element of memory.
template <class A>
__device__ inline RawUnit<A> repeated_item(const char* at, int bytes) {
  const std::uint64_t bits = load_bits(at, bytes);
  const auto low = static_cast<std::uint32_t>(bits);
  const std::uint32_t word = bytes == 1 ? low * 0x01010101u : bytes == 2 ? low * 0x00010001u : low;
  RawUnit<A> raw;
#pragma unroll
  for (int i = 0; i < RawUnit<A>::kWords; ++i)
    raw.words[i] = bytes == 8 && i % 2 == 1 ? static_cast<std::uint32_t>(bits >> 32) : word;
  return raw;
}

// `count` elements from `offset` on.
template <class A>
__device__ inline RawUnit<A> load_unit(const UnitArray& array, std::int64_t offset, int count) {
  if (array.is_scalar) return scalar_unit<A>(array);
  const char* at = array.data + offset * array.item_bytes;
  if (array.vectors && count == kUnitItems) return load_vectors<A>(at, array.item_bytes);
  return load_items<A>(at, array.stride * array.item_bytes, array.item_bytes, count);
}

template <class A>
__device__ inline void store_unit(const UnitArray& array, std::int64_t offset, int count,
                                  const RawUnit<A>& raw) {
  char* at = array.data + offset * array.item_bytes;
  if (array.vectors && count == kUnitItems) return store_vectors(at, array.item_bytes, raw);
  const std::int64_t step = array.stride * array.item_bytes;
#pragma unroll
  for (int i = 0; i < kUnitItems; ++i) {
    if (i < count) store_bits(at + i * step, array.item_bytes, get_item(raw, i, array.item_bytes));
  }
}

// Elements of a dtype as numbers of A. The dtypes of A: those of its kind that are no wider.
template <class A, int kItems>
__device__ inline void unpack_unit(const RawUnit<A, kItems>& raw, DType dtype,
                                   A (&values)[kItems]) {
  const auto each = [&](auto bits_to_value, int bytes) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) values[i] = bits_to_value(get_item(raw, i, bytes));
  };
  if constexpr (scalar::kSameType<A, float>) {
    if (dtype == DType::kFloat32) {
      each([](std::uint64_t b) { return __uint_as_float(static_cast<std::uint32_t>(b)); }, 4);
    } else {
      const bool is_half = dtype == DType::kFloat16;
#pragma unroll
      for (int i = 0; i < kItems / 2; ++i) {
        const std::uint32_t word = raw.words[i];
        const float2 pair = __half22float2(reinterpret_cast<const __half2&>(word));
        values[2 * i] = is_half ? pair.x : __uint_as_float(word << 16);
        values[2 * i + 1] = is_half ? pair.y : __uint_as_float(word & 0xffff0000u);
      }
    }
  } else if constexpr (scalar::kSameType<A, double>) {
    each([](std::uint64_t b) { return __longlong_as_double(static_cast<long long>(b)); }, 8);
  } else if constexpr (scalar::kSameType<A, bool>) {
    each([](std::uint64_t b) { return b != 0; }, 1);
  } else if constexpr (scalar::Number<A>::kSigned) {
    if constexpr (sizeof(A) == 8) {
      if (dtype == DType::kInt64) return each([](std::uint64_t b) { return static_cast<A>(b); }, 8);
    }
    if (dtype == DType::kInt32) {
      each([](std::uint64_t b) { return static_cast<std::int32_t>(b); }, 4);
    } else if (dtype == DType::kInt16) {
      each([](std::uint64_t b) { return static_cast<std::int16_t>(b); }, 2);
    } else {
      each([](std::uint64_t b) { return static_cast<std::int8_t>(b); }, 1);
    }
  } else {
    if constexpr (sizeof(A) == 8) {
      if (dtype == DType::kUInt64)
        return each([](std::uint64_t b) { return static_cast<A>(b); }, 8);
    }
    const auto same = [](std::uint64_t b) { return static_cast<A>(b); };
    if (dtype == DType::kUInt32) {
      each(same, 4);
    } else if (dtype == DType::kUInt16) {
      each(same, 2);
    } else {
      each(same, 1);
    }
  }
}

// The bits of a value in a dtype of A, integers truncated.
template <class A>
__device__ inline std::uint64_t bits_of(A value, DType dtype) {
  if constexpr (scalar::kSameType<A, float>) {
    if (dtype == DType::kFloat32) return __float_as_uint(value);
    if (dtype == DType::kFloat16) return from_number<Float16>(value).bits;
    return from_number<BFloat16>(value).bits;
  } else if constexpr (scalar::kSameType<A, double>) {
    return static_cast<std::uint64_t>(__double_as_longlong(value));
  } else {
    return static_cast<std::uint64_t>(value);
  }
}
template <class A, int kItems>
__device__ inline RawUnit<A, kItems> pack_unit(const A (&values)[kItems], DType dtype, int bytes) {
  RawUnit<A, kItems> raw;
  if constexpr (scalar::kSameType<A, float>) {
    if (bytes == 4) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) raw.words[i] = __float_as_uint(values[i]);
    } else if (dtype == DType::kFloat16) {
#pragma unroll
      for (int i = 0; i < kItems / 2; ++i) {
        const __half2 pair = __floats2half2_rn(values[2 * i], values[2 * i + 1]);
        raw.words[i] = reinterpret_cast<const std::uint32_t&>(pair);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kItems / 2; ++i) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
        raw.words[i] = reinterpret_cast<const std::uint32_t&>(pair);
      }
    }
  } else if constexpr (sizeof(A) == 4) {
    std::uint32_t words[kUnitItems];
#pragma unroll
    for (int i = 0; i < kUnitItems; ++i) words[i] = static_cast<std::uint32_t>(values[i]);
    const std::uint32_t low = __byte_perm(words[0], words[1], 0x5410);
    const std::uint32_t high = __byte_perm(words[2], words[3], 0x5410);
    if (bytes == 4) {
#pragma unroll
      for (int i = 0; i < kUnitItems; ++i) raw.words[i] = words[i];
    } else {
      raw.words[0] = bytes == 2 ? low : __byte_perm(low, high, 0x6420);
      raw.words[1] = high;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      constexpr int kBytes = static_cast<int>(sizeof(A));
      set_item(raw, i, kBytes, bits_of(values[i], dtype));
    }
  }
  return raw;
}

// One number of a dtype of A.
template <class A>
__device__ inline A load_number(const char* at, DType dtype, int bytes) {
  RawUnit<A> raw = {};
  set_item(raw, 0, bytes, load_bits(at, bytes));
  A values[kUnitItems];
  unpack_unit(raw, dtype, values);
  return values[0];
}

// Numbers of A in any dtype (scalar::convert_to).
template <class A>
__device__ inline RawUnit<std::uint64_t> convert_unit(const A (&values)[kUnitItems], DType dtype) {
  RawUnit<std::uint64_t> raw;
  const auto each = [&](int bytes, auto bits) {
#pragma unroll
    for (int i = 0; i < kUnitItems; ++i) set_item(raw, i, bytes, bits(values[i]));
  };
  const auto integer = [&]<class To>(To) {
    using Bits = std::make_unsigned_t<To>;
    each(sizeof(To),
         [](A value) { return std::uint64_t{static_cast<Bits>(scalar::convert_to<To>(value))}; });
  };
  switch (dtype) {
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kFloat32: {
      // A double becomes a 16-bit float by one rounding.
      const int bytes = dtype == DType::kFloat32 ? 4 : 2;
      each(bytes, [&](A value) -> std::uint64_t {
        if constexpr (scalar::kSameType<A, double>) {
          if (dtype == DType::kFloat16) return __half_as_ushort(__double2half(value));
          if (dtype == DType::kBFloat16) return __bfloat16_as_ushort(__double2bfloat16(value));
        }
        return bits_of(scalar::convert_to<float>(value), dtype);
      });
      break;
    }
    case DType::kFloat64:
      each(8, [](A value) { return bits_of(scalar::convert_to<double>(value), DType::kFloat64); });
      break;
    case DType::kBool: each(1, [](A value) { return std::uint64_t{value != A(0)}; }); break;
    case DType::kInt8: integer(std::int8_t{}); break;
    case DType::kInt16: integer(std::int16_t{}); break;
    case DType::kInt32: integer(std::int32_t{}); break;
    case DType::kInt64: integer(std::int64_t{}); break;
    case DType::kUInt8: integer(std::uint8_t{}); break;
    case DType::kUInt16: integer(std::uint16_t{}); break;
    case DType::kUInt32: integer(std::uint32_t{}); break;
    default: integer(std::uint64_t{}); break;
  }
  return raw;
}

// One number of A in any dtype, out of line.
template <class A>
__device__ __noinline__ void store_number(char* data, DType dtype, int bytes, std::int64_t at,
                                          A number) {
  const A numbers[kUnitItems] = {number, number, number, number};
  store_bits(data + at * bytes, bytes, get_item(convert_unit(numbers, dtype), 0, bytes));
}

// Calls body.operator()<A>() with the arithmetic type of a dtype: float for 16 bits, 32 bits for
// narrower integers (kWide: 64, for sums), bool for itself (kWide: unsigned).
template <bool kWide, class Body>
void dispatch_arithmetic(DType dtype, Body&& body) {
  using Signed = std::conditional_t<kWide, std::int64_t, std::int32_t>;
  using Unsigned = std::conditional_t<kWide, std::uint64_t, std::uint32_t>;
  switch (dtype) {
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kFloat32: return body.template operator()<float>();
    case DType::kFloat64: return body.template operator()<double>();
    case DType::kInt8:
    case DType::kInt16:
    case DType::kInt32: return body.template operator()<Signed>();
    case DType::kInt64: return body.template operator()<std::int64_t>();
    case DType::kUInt64: return body.template operator()<std::uint64_t>();
    case DType::kBool:
      if constexpr (!kWide) return body.template operator()<bool>();
      [[fallthrough]];
    default: return body.template operator()<Unsigned>();
  }
}

// The unsigned dtype of as many bytes: for ops that only move bits.
inline DType unsigned_of(std::size_t bytes) {
  return bytes == 1   ? DType::kUInt8
         : bytes == 2 ? DType::kUInt16
         : bytes == 4 ? DType::kUInt32
                      : DType::kUInt64;
}

inline bool is_aligned(const void* data, std::int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uint64_t>(bytes) == 0;
}

// An operand by its units along a dimension of stride `stride`; the others have `strides`.
inline UnitArray unit_array(const ArrayOperand& operand, std::int64_t stride,
                            const std::int64_t* strides, int count) {
  UnitArray array;
  array.data = static_cast<char*>(operand.data);
  array.stride = stride;
  array.dtype = operand.dtype;
  array.item_bytes = static_cast<std::uint8_t>(dtype_size(operand.dtype));
  array.unit_bytes = static_cast<std::uint8_t>(kUnitItems * array.item_bytes);
  array.is_scalar = operand.data == nullptr;
  if (array.is_scalar) {
    auto* items = reinterpret_cast<unsigned char*>(array.scalar);
    for (std::size_t i = 0; i < sizeof(array.scalar); i += array.item_bytes)
      std::memcpy(items + i, operand.scalar, array.item_bytes);
    return array;
  }
  // The vectors of 8-byte items are two of 16 bytes.
  array.vectors = stride == 1 && is_aligned(array.data, std::min(16, 4 * array.item_bytes));
  const int items = array.item_bytes == 8 ? 2 : kUnitItems;
  for (int axis = 0; axis < count; ++axis) array.vectors &= strides[axis] % items == 0;
  return array;
}

}  // namespace membound::cuda
