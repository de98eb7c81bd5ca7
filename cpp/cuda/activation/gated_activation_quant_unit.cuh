// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The unit that a thread of gated_activation_quant loads, stages and stores at once.
#include "cuda/activation/gated_activation_quant_config.hpp"
#include "cuda/launch/cache_hint.cuh"
#include "cuda/launch/mbarrier.cuh"
#include "cuda/row/element.cuh"
#include "cuda/row/quantise.cuh"
#include "cuda/row/unaligned_units.cuh"

namespace membound::cuda {

template <class A>
struct FourNumbers {
  A at[4];
};
// Loads up to four elements; the others are 0.
template <class A>
__device__ __noinline__ FourNumbers<A> load_numbers(const void* data, DType dtype,
                                                    std::int64_t index, std::int64_t stride,
                                                    std::int64_t count) {
  FourNumbers<A> numbers;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    numbers.at[i] = i < count ? read_number<A>(data, dtype, index + i * stride) : A(0);
  return numbers;
}

__device__ inline uint4 load_global(std::uint64_t from) {
  uint4 vector;
#if MEMBOUND_HAS_L2_PRIORITY
  asm volatile("ld.global.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(vector.x), "=r"(vector.y), "=r"(vector.z), "=r"(vector.w)
               : "l"(from), "l"(kEvictLast)
               : "memory");
#else
  asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(vector.x), "=r"(vector.y), "=r"(vector.z), "=r"(vector.w)
               : "l"(from)
               : "memory");
#endif
  return vector;
}

// The two aligned 16-byte blocks that an unaligned vector lies in.
struct TwoBlocks {
  uint4 low, high;
};
// A vector whose blocks are not both inside its row, assembled by elements; zeros past the end of
// the row.
template <class T>
__device__ __noinline__ TwoBlocks blocks_of_elements(const T* from, int shift, std::int64_t count) {
  const uint4 none = {0u, 0u, 0u, 0u}, vector = load_elements(from, 1, count);
  if (shift == 0) return {vector, none};
  const int rest = kVectorBytes - shift;
  return {bytes_from(none, vector, rest), bytes_from(vector, none, rest)};
}

// Stores the first kBytes codes and advances both arguments. kBytes must divide the address.
template <int kBytes>
__device__ inline void store_first_codes(std::uint64_t& to, std::uint64_t& codes) {
  const auto word = static_cast<std::uint32_t>(codes);
  if constexpr (kBytes == 4) {
    asm volatile("st.global.b32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
  } else if constexpr (kBytes == 2) {
    asm volatile("st.global.b16 [%0], %1;" ::"l"(to), "h"(static_cast<std::uint16_t>(word))
                 : "memory");
  } else {
    asm volatile("st.global.b8 [%0], %1;" ::"l"(to), "r"(word) : "memory");
  }
  to += kBytes;
  codes >>= 8 * kBytes;
}
// Stores 8 or 4 codes at any address, with the widest stores that its alignment permits.
template <int kCount>
__device__ inline void store_whole_codes(std::uint64_t to, uint2 both) {
  std::uint64_t codes = both.x | std::uint64_t{both.y} << 32;
  const bool odd = to % 2 != 0;
  if (odd) store_first_codes<1>(to, codes);
  if constexpr (kCount == 8) {
    const bool pair = to % 4 != 0;
    if (pair) store_first_codes<2>(to, codes);
    store_first_codes<4>(to, codes);
    if (!pair) store_first_codes<2>(to, codes);
    if (!odd) store_first_codes<2>(to, codes);
  } else {
    store_first_codes<2>(to, codes);
    if (!odd) store_first_codes<2>(to, codes);
  }
  if (odd) store_first_codes<1>(to, codes);
}

// kWidth consecutive elements that a thread has at once: a 16-byte vector of an aligned or
// unaligned row, or elements of any dtype loaded one by one, where T is the type that they are
// computed in.
template <class T, Access kAccess>
struct QuantUnit {
  using A = accumulate_t<T>;
  static constexpr bool kVectors = kAccess != Access::kStrided;
  static constexpr bool kWhole = kAccess == Access::kAligned;  // rows consist of whole units
  static constexpr int kWidth = kVectors ? kPack<T> : 4;
  static constexpr int kInFlight = kVectors ? tuning::kQuantUnitsInFlight : 1;
  static constexpr int kPlanes = kWidth * static_cast<int>(sizeof(A)) / kVectorBytes;
  using Index = std::conditional_t<kVectors, int, std::int64_t>;  // of a unit in its row
  using Vector = std::conditional_t<kVectors, uint4, FourNumbers<A>>;
  using Raw = std::conditional_t<kAccess == Access::kUnaligned, TwoBlocks, Vector>;
  struct Values {
    A at[kWidth];
  };
  // Elements computed together: unrolling all elements would add 60 KB of code.
  static constexpr int kStep = kVectors ? kWidth : 8 / static_cast<int>(sizeof(A));
  struct Step {
    A at[kStep];
  };

  // Units of one row, from the thread's first unit on. The address passes through an empty asm, so
  // that the compiler does not recompute it for each unit.
  struct VectorRow {
    std::uint64_t from;
    __device__ VectorRow(const GateArray<const void*>& array, std::int64_t row, Index first,
                         std::int64_t) {
      const T* const start = static_cast<const T*>(array.data) + row;
      from = reinterpret_cast<std::uint64_t>(reinterpret_cast<const uint4*>(start) + first);
      asm volatile("" : "+l"(from));
    }
    __device__ uint4 load(int at, DType, std::int64_t) const {
      return load_global(from + std::int64_t{kVectorBytes} * at);
    }
    __device__ const uint4& vector(const uint4& raw) const { return raw; }
  };
  struct UnalignedRow {
    const T* from;   // the first unit
    int left;        // elements from there on
    int shift;       // byte offset from a 16-byte boundary
    int begin, end;  // units with both blocks inside the row, relative to the first
    __device__ UnalignedRow(const GateArray<const void*>& array, std::int64_t row, Index first,
                            std::int64_t cols)
        : from(static_cast<const T*>(array.data) + row + std::int64_t{first} * kWidth),
          left(static_cast<int>(cols - std::int64_t{first} * kWidth)),
          shift(shift_of(from)),
          begin((shift != 0) - first) {
      const int behind = (kVectorBytes - shift) % kVectorBytes / static_cast<int>(sizeof(T));
      end = left < behind ? 0 : (left - behind) / kWidth;
    }
    __device__ TwoBlocks load(int at, DType, std::int64_t) const {
      const T* const vector = from + std::int64_t{kWidth} * at;
      if (at < begin || at >= end) return blocks_of_elements(vector, shift, left - at * kWidth);
      const std::uint64_t block = reinterpret_cast<std::uint64_t>(vector) - shift;
      TwoBlocks blocks;  // the second may stay unset
      blocks.low = load_global(block);
      if (shift != 0) blocks.high = load_global(block + kVectorBytes);
      return blocks;
    }
    __device__ uint4 vector(const TwoBlocks& raw) const {
      return bytes_from(raw.low, raw.high, shift);
    }
  };
  struct ElementRow {
    const GateArray<const void*>& array;
    std::int64_t row;
    Index first;
    __device__ ElementRow(const GateArray<const void*>& array, std::int64_t row, Index first,
                          std::int64_t)
        : array(array), row(row), first(first) {}
    __device__ FourNumbers<A> load(int at, DType dtype, std::int64_t cols) const {
      const std::int64_t col = (first + at) * kWidth;
      return load_numbers<A>(array.data, dtype, row + col * array.col_stride, array.col_stride,
                             cols - col);
    }
    __device__ const FourNumbers<A>& vector(const FourNumbers<A>& raw) const { return raw; }
  };
  using Row =
      std::conditional_t<kWhole, VectorRow, std::conditional_t<kVectors, UnalignedRow, ElementRow>>;

  // Removes and returns the first kStep numbers; the others move down.
  static __device__ Step take(Vector& raw) {
    Step step;
    const auto first_of = [&](const auto& numbers) {
#pragma unroll
      for (int i = 0; i < kStep; ++i) step.at[i] = numbers.at[i];
    };
    if constexpr (kVectors) {
      first_of(unpack<T>(raw));
    } else {
      first_of(raw);
#pragma unroll
      for (int i = 0; i + kStep < kWidth; ++i) raw.at[i] = raw.at[i + kStep];
    }
    return step;
  }

  // In shared memory, each 16-byte plane of a unit is contiguous over threads; a unit's planes are
  // `apart` bytes from each other.
  union StagedUnit {
    uint4 planes[kPlanes];
    A at[kWidth];
    __device__ StagedUnit() {}
  };
  static __device__ void stage(std::uint32_t to, std::uint32_t apart, const Values& values) {
    StagedUnit one;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) one.at[i] = values.at[i];
#pragma unroll
    for (int i = 0; i < kPlanes; ++i) store_shared(to + i * apart, one.planes[i]);
  }
  static __device__ Values read_staged(std::uint32_t from, std::uint32_t apart) {
    StagedUnit one;
#pragma unroll
    for (int i = 0; i < kPlanes; ++i) one.planes[i] = load_shared<uint4>(from + i * apart);
    Values values;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values.at[i] = one.at[i];
    return values;
  }

  static __device__ A largest(const Values& values) {
    A largest = 0;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) largest = larger_or_nan(largest, A(fabs(values.at[i])));
    return largest;
  }
  static __device__ void store(std::uint64_t out_row, std::int64_t col_stride, std::int64_t cols,
                               Index unit, uint2 codes) {
    const std::int64_t first = std::int64_t{unit} * kWidth;
    const std::int64_t left = cols - first;
    if (kWhole || (kVectors && left >= kWidth)) {
      const std::uint64_t to = out_row + static_cast<std::uint64_t>(first);
      if (kWhole || to % kWidth == 0) return store_aligned_codes<kWidth>(to, codes);
      store_whole_codes<kWidth>(to, codes);
    } else {
      store_codes(out_row + static_cast<std::uint64_t>(first * col_stride), col_stride, codes,
                  left < kWidth ? static_cast<int>(left) : kWidth);
    }
  }
};

}  // namespace membound::cuda
