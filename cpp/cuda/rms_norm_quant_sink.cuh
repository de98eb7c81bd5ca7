// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The result of a norm on its way to one byte per element: rounded to storage as the norm alone
// would write it, scaled by the largest magnitude of its row or group of columns, quantised.
#include <cuda_fp8.h>

#include <type_traits>

#include "cuda/rms_norm_kernels.cuh"

namespace membound::cuda {

template <class Accumulate>
struct RmsNormQuantParams : RmsNormParams<Accumulate> {
  void* quantised;
  std::int64_t quantised_row_stride;
  const float* static_scale;  // null: dynamic
  float* scale;
  std::int64_t scale_row_stride;
  std::int64_t scale_col_stride;
  int group_chunks;  // that share a scale; 0: the row
  float scale_upper_bound;
  DType quantised_dtype;
  RowArray quantised_array, scale_array;
};

// NaN wins.
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

struct LargestOrNan {
  template <class Value>
  static __device__ Value zero() {
    return Value(0);
  }
  template <class Value>
  __device__ Value operator()(Value a, Value b) const {
    return larger_or_nan(a, b);
  }
};

// The largest magnitude of a chunk. Two 16-bit ones are compared at once, where the GPU can.
template <class T>
__device__ inline accumulate_t<T> largest_or_nan(const uint4& chunk) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (sizeof(T) == 2) {
    using Two = std::conditional_t<kDTypeOf<T> == DType::kFloat16, __half2, __nv_bfloat162>;
    const auto two = [](std::uint32_t word) {
      const std::uint32_t magnitudes = word & 0x7fff7fffu;
      return reinterpret_cast<const Two&>(magnitudes);
    };
    const Two largest = __hmax2_nan(__hmax2_nan(two(chunk.x), two(chunk.y)),
                                    __hmax2_nan(two(chunk.z), two(chunk.w)));
    const Numbers<T> both = unpack<T>({reinterpret_cast<const std::uint32_t&>(largest), 0, 0, 0});
    return larger_or_nan(both.at[0], both.at[1]);
  }
#endif
  const Numbers<T> y = unpack<T>(chunk);
  accumulate_t<T> largest = 0;
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    largest = larger_or_nan(largest, y.at[i] < 0 ? -y.at[i] : y.at[i]);
  }
  return largest;
}

__device__ inline float largest_number(DType dtype) {
  return dtype == DType::kInt8 ? 127.0f : (dtype == DType::kFloat8E4M3 ? 448.0f : 57344.0f);
}

template <class Accumulate>
__device__ inline float dynamic_scale(const RmsNormQuantParams<Accumulate>& p, Accumulate largest) {
  constexpr float kSmallest = 0x1p-126f;
  float scale =
      static_cast<float>(largest / static_cast<Accumulate>(largest_number(p.quantised_dtype)));
  scale = scale < kSmallest ? kSmallest : scale;  // NaN stays
  return scale > p.scale_upper_bound ? p.scale_upper_bound : scale;
}

// Without an instruction of the GPU this is long: out of line.
static __device__ __noinline__ std::uint8_t float8_of(double value, bool e4m3) {
  return __nv_cvt_double_to_fp8(value, __NV_SATFINITE, e4m3 ? __NV_E4M3 : __NV_E5M2);
}

// Two codes, the first in the low byte.
template <DType kDType>
__device__ inline std::uint32_t two_codes(float a, float b) {
  if constexpr (kDType == DType::kInt8) {
    // In the last bits of 1.5 * 2^23 + a stands a, rounded to the nearest and even.
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

// The codes of a chunk, kPack<T> bytes from the first word's lowest on.
template <class T, DType kDType>
__device__ inline uint2 codes_of(const uint4& chunk, accumulate_t<T> inverse) {
  const Numbers<T> y = unpack<T>(chunk);
  std::uint32_t pairs[4] = {};
#pragma unroll
  for (int i = 0; i < kPack<T>; i += 2) {
    pairs[i / 2] = two_codes<kDType>(product(y.at[i], inverse), product(y.at[i + 1], inverse));
  }
  return {pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16};
}

// `count` codes, one by one.
static __device__ __noinline__ void store_codes(std::uint64_t to, std::int64_t stride, uint2 codes,
                                                int count) {
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const std::uint32_t word = i < 4 ? codes.x : codes.y;
    asm volatile("st.global.b8 [%0], %1;" ::"l"(to), "r"(word >> 8 * (i % 4)) : "memory");
    to += static_cast<std::uint64_t>(stride);
  }
}

// One row of quantised results and its scales.
template <class T, Access kAccess>
class QuantisedRow {
  using Accumulate = accumulate_t<T>;
  using Params = RmsNormQuantParams<Accumulate>;

 public:
  __device__ QuantisedRow(const Params& p, std::int64_t row)
      : p_(p),
        out_(reinterpret_cast<std::uint64_t>(p.quantised) +
             static_cast<std::uint64_t>(offset(p.quantised_row_stride, p.quantised_array, row))),
        scale_(p.scale == nullptr ? nullptr
                                  : p.scale + offset(p.scale_row_stride, p.scale_array, row)) {}

  __device__ void store_scale(int group, float scale) const {
    scale_[group * p_.scale_col_stride] = scale;
  }

  // Chunk `index` of the row, with the inverse of its scale.
  __device__ void store(int index, const uint4& chunk, Accumulate inverse) const {
    if (index >= p_.chunks) return;
    const uint2 codes = p_.quantised_dtype == DType::kInt8
                            ? codes_of<T, DType::kInt8>(chunk, inverse)
                            : (p_.quantised_dtype == DType::kFloat8E4M3
                                   ? codes_of<T, DType::kFloat8E4M3>(chunk, inverse)
                                   : codes_of<T, DType::kFloat8E5M2>(chunk, inverse));
    if constexpr (kAccess == Access::kAligned) {
      const std::uint64_t to = out_ + static_cast<std::uint64_t>(index) * kPack<T>;
      if constexpr (kPack<T> == 8) {
        asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(codes.x), "r"(codes.y)
                     : "memory");
      } else if constexpr (kPack<T> == 4) {
        asm volatile("st.global.b32 [%0], %1;" ::"l"(to), "r"(codes.x) : "memory");
      } else {
        asm volatile("st.global.b16 [%0], %1;" ::"l"(to), "h"(static_cast<std::uint16_t>(codes.x))
                     : "memory");
      }
    } else {
      const std::int64_t first = static_cast<std::int64_t>(index) * kPack<T>;
      const std::int64_t stride = p_.quantised_array.col_stride;
      store_codes(out_ + static_cast<std::uint64_t>(first * stride), stride, codes,
                  p_.cols - first < kPack<T> ? static_cast<int>(p_.cols - first) : kPack<T>);
    }
  }

 private:
  __device__ std::int64_t offset(std::int64_t stride, const RowArray& array,
                                 std::int64_t row) const {
    return row_offset<kAccess, true>(p_.split, stride, array, row);
  }

  const Params& p_;
  std::uint64_t out_;  // nvcc 13.0 takes a pointer here for one to local memory in streamed rows
  float* scale_;
};

// One chunk, for what is seldom done or slow anyway.
template <class T, Access kAccess>
__device__ __noinline__ void cold_store(const RmsNormQuantParams<accumulate_t<T>>& p,
                                        std::int64_t row, int index, uint4 chunk,
                                        accumulate_t<T> inverse) {
  QuantisedRow<T, kAccess>(p, row).store(index, chunk, inverse);
}

// The largest of each group of columns, from that of a chunk in every thread of a block: lanes
// beside each other hold chunks beside each other, and a group is a power of two of them. One of 64
// chunks, of float64 alone, is the warps 2 n and 2 n + 1 of kChunks * warps.
template <int kChunks, class Value>
__device__ inline void largest_of_groups(Value (&largest)[kChunks], int group_chunks) {
  const int lanes = group_chunks < kWarpLanes ? group_chunks : kWarpLanes;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) largest[i] = reduce_lanes(largest[i], lanes, LargestOrNan());
  if constexpr (sizeof(Value) == 8) {
    if (group_chunks <= kWarpLanes) return;
    constexpr int kMaxWarps = 16;
    __shared__ Value of_warps[kMaxWarps * kChunks];
    const int warps = static_cast<int>(blockDim.x) / kWarpLanes;
    const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
    __syncthreads();  // those of the time before have been read
#pragma unroll
    for (int i = 0; i < kChunks; ++i) of_warps[i * warps + warp] = largest[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      largest[i] = LargestOrNan()(largest[i], of_warps[(i * warps + warp) ^ 1]);
    }
  }
}

template <Access kAccess>
struct QuantiseResult {
  template <class Accumulate>
  using Params = RmsNormQuantParams<Accumulate>;
  static constexpr int kRounds = 1;        // for the largest magnitude
  static constexpr bool kAfterSum = true;  // fewer chunks in registers
  static constexpr bool kAnyVecs = false;  // a group of columns may be in several chunks
  static constexpr int kRound = RoundsOf<Centring::kNever>::kCount;

  template <int kUnroll, class T, class Tile, class Row, class Make>
  static __device__ void put(const Params<accumulate_t<T>>& p, const Tile& tile, const Row&,
                             bool plain, Make make) {
    using Accumulate = accumulate_t<T>;
    constexpr int kChunks = Tile::kChunks;
    const QuantisedRow<T, kAccess> to(p, tile.row());
    const uint4 zeros{0u, 0u, 0u, 0u};
    uint4 y[kChunks];
    const auto hold_as = [&]<bool kPlain>() {
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        y[i] = tile.index(i) < p.chunks ? make.template operator()<kPlain>(i) : zeros;
      }
    };
    plain ? hold_as.template operator()<true>() : hold_as.template operator()<false>();
    float scale = 1;
    if (p.static_scale != nullptr) {
      scale = *p.static_scale;
    } else if (p.group_chunks == 0) {
      scale = dynamic_scale(
          p, tile.template reduce<Accumulate>(
                 0, kRound, [&](int i) { return largest_or_nan<T>(y[i]); }, LargestOrNan()));
      if (tile.first_thread()) to.store_scale(0, scale);
    }
    store<kUnroll == 1, T>(
        p, to, tile.row(), scale, [&](int i) { return tile.index(i); }, y, tile.active());
  }

  // As StoreResult::stream: one pass more for the largest magnitude of the row.
  template <class T, class Tile, class Row, class Result>
  static __device__ auto stream(const Params<accumulate_t<T>>& p, Tile& tile, const Row& row,
                                Result result) {
    using Accumulate = accumulate_t<T>;
    const QuantisedRow<T, kAccess> to(p, cluster_index());
    float scale = 1;
    if (p.static_scale != nullptr) {
      scale = *p.static_scale;
    } else if (p.group_chunks == 0) {
      scale = dynamic_scale(
          p,
          tile.reduce(
              kRound,
              [&](int at) { return at < p.chunks ? largest_or_nan<T>(result(at)) : Accumulate(0); },
              LargestOrNan()));
      if (tile.first_thread()) to.store_scale(0, scale);
    }
    return [&p, &tile, to, scale](int group, int segment, auto make) {
      constexpr int kChunks = Tile::kChunks;
      const auto index = [&](int v) { return tile.index(group, segment, v); };
      uint4 y[kChunks];
#pragma unroll
      for (int v = 0; v < kChunks; ++v) {
        y[v] = index(v) < p.chunks ? make(v, index(v)) : uint4{0u, 0u, 0u, 0u};
      }
      store<false, T>(p, to, cluster_index(), scale, index, y, true);
    };
  }

 private:
  // scale: of the whole row, where groups have none of their own.
  template <bool kCold, class T, int kChunks, class Index>
  static __device__ void store(const Params<accumulate_t<T>>& p, const QuantisedRow<T, kAccess>& to,
                               std::int64_t row, float scale, Index index,
                               const uint4 (&y)[kChunks], bool active) {
    using Accumulate = accumulate_t<T>;
    Accumulate inverse[kChunks];
    if (p.static_scale != nullptr || p.group_chunks == 0) {
      inverse[0] = Accumulate(1) / static_cast<Accumulate>(scale);
#pragma unroll
      for (int i = 1; i < kChunks; ++i) inverse[i] = inverse[0];
    } else {
      Accumulate largest[kChunks];
#pragma unroll
      for (int i = 0; i < kChunks; ++i) largest[i] = largest_or_nan<T>(y[i]);
      largest_of_groups(largest, p.group_chunks);
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        const float own = dynamic_scale(p, largest[i]);
        inverse[i] = Accumulate(1) / static_cast<Accumulate>(own);
        const int at = index(i);
        const bool first = (at & (p.group_chunks - 1)) == 0;
        if (active && at < p.chunks && first) to.store_scale(at / p.group_chunks, own);
      }
    }
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      if (!active) continue;
      if constexpr (kCold || kAccess == Access::kAny) {
        cold_store<T, kAccess>(p, row, index(i), y[i], inverse[i]);
      } else {
        to.store(index(i), y[i], inverse[i]);
      }
    }
  }
};

}  // namespace membound::cuda
