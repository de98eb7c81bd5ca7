// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The quantising epilogue: rounds the result to storage as the norm alone would, scales it by the
// largest magnitude of its row or group of columns, and quantises it to one byte per element.
#include <type_traits>

#include "cuda/norm/rms_norm_kernels.cuh"
#include "cuda/row/quantise.cuh"

namespace membound::cuda {

struct QuantParams {
  void* quantised;
  std::int64_t quantised_row_stride;
  const float* static_scale;  // null: dynamic scales
  float* scale;
  std::int64_t scale_row_stride;
  std::int64_t scale_col_stride;
  int group_vectors;  // vectors that share a scale; 0: the whole row
  float scale_upper_bound;
  DType quantised_dtype;
};
// The members for quantisation are adjacent and come first, for the reason given at RmsNormParams.
template <class Accumulate>
struct RmsNormQuantParams : QuantParams, RmsNormParams<Accumulate> {
  RowArray quantised_array, scale_array;
};

// The largest magnitude of a vector, or NaN. From 8.0 on two 16-bit numbers are compared at once.
template <class T>
__device__ inline accumulate_t<T> largest_or_nan(const uint4& vector) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (sizeof(T) == 2) {
    using Two = std::conditional_t<kDTypeOf<T> == DType::kFloat16, __half2, __nv_bfloat162>;
    const auto two = [](std::uint32_t word) {
      const std::uint32_t magnitudes = word & 0x7fff7fffu;
      return reinterpret_cast<const Two&>(magnitudes);
    };
    const Two largest = __hmax2_nan(__hmax2_nan(two(vector.x), two(vector.y)),
                                    __hmax2_nan(two(vector.z), two(vector.w)));
    const Numbers<T> both = unpack<T>({reinterpret_cast<const std::uint32_t&>(largest), 0, 0, 0});
    return larger_or_nan(both.at[0], both.at[1]);
  }
#endif
  const Numbers<T> y = unpack<T>(vector);
  accumulate_t<T> largest = 0;
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    largest = larger_or_nan(largest, fabs(y.at[i]));
  }
  return largest;
}

// One quantised row and its scales.
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

  // Stores vector `index` of the row, multiplied by the inverse of its scale.
  __device__ void store(int index, const uint4& vector, Accumulate inverse) const {
    store(index, codes_of(p_.quantised_dtype, unpack<T>(vector).at, inverse));
  }
  template <DType kDType>
  __device__ void store_as(int index, const uint4& vector, Accumulate inverse) const {
    store(index, codes_of<kDType>(unpack<T>(vector).at, inverse));
  }

 private:
  __device__ void store(int index, uint2 codes) const {
    if (index >= p_.vectors) return;
    if constexpr (kAccess == Access::kAligned) {
      store_aligned_codes<kPack<T>>(out_ + static_cast<std::uint64_t>(index) * kPack<T>, codes);
    } else {
      const std::int64_t first = static_cast<std::int64_t>(index) * kPack<T>;
      const std::int64_t stride = p_.quantised_array.col_stride;
      store_codes(out_ + static_cast<std::uint64_t>(first * stride), stride, codes,
                  p_.cols - first < kPack<T> ? static_cast<int>(p_.cols - first) : kPack<T>);
    }
  }
  __device__ std::int64_t offset(std::int64_t stride, const RowArray& array,
                                 std::int64_t row) const {
    return row_offset<kAccess, true>(p_.split, stride, array, row);
  }

  const Params& p_;
  std::uint64_t out_;  // an integer: nvcc 13.0 takes a pointer here for local memory
  float* scale_;
};

// Stores one vector; out of line for rarely executed or slow code.
template <class T, Access kAccess>
__device__ __noinline__ void cold_store(const RmsNormQuantParams<accumulate_t<T>>& p,
                                        std::int64_t row, int index, uint4 vector,
                                        accumulate_t<T> inverse) {
  QuantisedRow<T, kAccess>(p, row).store(index, vector, inverse);
}

// The largest magnitude of each group of columns, from that of every vector of a block.
// Neighbouring lanes hold neighbouring vectors, and a group is a power of two of them. A group of
// 64 vectors, which only float64 has, spans the warps 2 n and 2 n + 1 of kVectors * warps.
template <int kVectors, class Value>
__device__ inline void largest_of_groups(Value (&largest)[kVectors], int group_vectors) {
  const int lanes = group_vectors < kWarpLanes ? group_vectors : kWarpLanes;
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      largest[i] = LargestOrNan()(largest[i], shuffle_xor(largest[i], offset));
    }
  }
  if constexpr (sizeof(Value) == 8) {
    if (group_vectors <= kWarpLanes) return;
    constexpr int kMaxWarps = 16;
    __shared__ Value of_warps[kMaxWarps * kVectors];
    const int warps = static_cast<int>(blockDim.x) / kWarpLanes;
    const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
    __syncthreads();  // the previous call's values have been read
    if (threadIdx.x % kWarpLanes == 0) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) of_warps[i * warps + warp] = largest[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      largest[i] = LargestOrNan()(largest[i], of_warps[(i * warps + warp) ^ 1]);
    }
  }
}

template <Access kAccess>
struct QuantiseResult {
  template <class Accumulate>
  using Params = RmsNormQuantParams<Accumulate>;
  static constexpr int kRounds = 1;                 // for the largest magnitude
  static constexpr bool kAfterSum = true;           // keeps fewer vectors in registers
  static constexpr bool kAnySegmentLength = false;  // a column group may span vectors
  static constexpr bool kQuantises = true;
  static constexpr int kRound = RoundsOf<Centring::kNever>::kCount;

  template <int kUnrolled, class T, class Tile, class Row, class Make>
  static __device__ void write_out(const Params<accumulate_t<T>>& p, const Tile& tile, const Row&,
                                   bool plain, Make make) {
    using Accumulate = accumulate_t<T>;
    constexpr int kVectors = Tile::kVectors;
    const QuantisedRow<T, kAccess> to(p, tile.row());
    const uint4 zeros{0u, 0u, 0u, 0u};
    uint4 y[kVectors];
    const auto hold_as = [&]<bool kPlain>() {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        y[i] = make.template operator()<kPlain>(i);  // no branch around make()
        if (tile.index(i) >= p.vectors) y[i] = zeros;
      }
    };
    plain ? hold_as.template operator()<true>() : hold_as.template operator()<false>();
    const float scale = scale_of_row(p, to, tile, [&] {
      return tile.template reduce<Accumulate>(
          0, kRound, [&](int i) { return largest_or_nan<T>(y[i]); }, LargestOrNan());
    });
    store<kUnrolled == 1, T>(
        p, to, tile.row(), scale, [&](int i) { return tile.index(i); }, y, tile.active());
  }

  // The same for results that are staged in shared memory.
  template <int kUnrolled, class T, class Tile, class Held, class Make>
  static __device__ void store_staged_row(const Params<accumulate_t<T>>& p, const Tile& tile,
                                          const Held& held, bool plain, Make make) {
    using Accumulate = accumulate_t<T>;
    static_assert(Tile::kVectors % kUnrolled == 0);
    const QuantisedRow<T, kAccess> to(p, tile.row());
    Accumulate largest = 0;
    const auto hold_as = [&]<bool kPlain>() {
#pragma unroll 1
      for (int first = 0; first < Tile::kVectors; first += kUnrolled) {
#pragma unroll
        for (int j = 0; j < kUnrolled; ++j) {
          const int i = first + j;
          uint4 y = make.template operator()<kPlain>(i);
          if (tile.index(i) >= p.vectors) y = {0u, 0u, 0u, 0u};
          largest = larger_or_nan(largest, largest_or_nan<T>(y));
          held.result(i) = y;
        }
        asm volatile("" ::: "memory");  // no weights of more vectors in registers
      }
    };
    plain ? hold_as.template operator()<true>() : hold_as.template operator()<false>();
    const float scale = scale_of_row(p, to, tile, [&] {
      return tile.template reduce<Accumulate, 1>(
          0, kRound, [&](int) { return largest; }, LargestOrNan());
    });
#pragma unroll 1
    for (int i = 0; i < Tile::kVectors; ++i) {
      const uint4 y[] = {held.result(i)};
      store<false, T>(
          p, to, tile.row(), scale, [&](int) { return tile.index(i); }, y, tile.active());
    }
  }

  // As StoreResult::stream, with another pass for the largest magnitude of the row.
  template <class T, class Tile, class Row, class Result>
  static __device__ auto stream(const Params<accumulate_t<T>>& p, Tile& tile, const Row& row,
                                Result result) {
    using Accumulate = accumulate_t<T>;
    const QuantisedRow<T, kAccess> to(p, cluster_index());
    const float scale = scale_of_row(p, to, tile, [&] {
      return tile.reduce(
          kRound,
          [&](int at) { return at < p.vectors ? largest_or_nan<T>(result(at)) : Accumulate(0); },
          LargestOrNan());
    });
    return [&p, &tile, to, scale](int group, int segment, auto make) {
      constexpr int kVectors = Tile::kVectors;
      const auto index = [&](int v) { return tile.index(group, segment, v); };
      uint4 y[kVectors];
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        y[v] = index(v) < p.vectors ? make(v, index(v)) : uint4{0u, 0u, 0u, 0u};
      }
      store<false, T>(p, to, cluster_index(), scale, index, y, true);
    };
  }

 private:
  template <class Accumulate>
  static __device__ float scale_for(const Params<Accumulate>& p, Accumulate largest) {
    return dynamic_scale(largest, p.quantised_dtype, p.scale_upper_bound);
  }
  // The scale of the whole row: static, or from the largest magnitude, which largest() computes. 1
  // if groups have their own.
  template <class Accumulate, class To, class Tile, class Largest>
  static __device__ float scale_of_row(const Params<Accumulate>& p, const To& to, const Tile& tile,
                                       Largest largest) {
    if (p.static_scale != nullptr) return *p.static_scale;
    if (p.group_vectors != 0) return 1;
    const float scale = scale_for(p, largest());
    if (tile.first_thread()) to.store_scale(0, scale);
    return scale;
  }
  // scale: that of the whole row; unused if groups have their own.
  template <bool kCold, class T, int kVectors, class Index>
  static __device__ void store(const Params<accumulate_t<T>>& p, const QuantisedRow<T, kAccess>& to,
                               std::int64_t row, float scale, Index index,
                               const uint4 (&y)[kVectors], bool active) {
    using Accumulate = accumulate_t<T>;
    Accumulate inverse[kVectors];
    if (p.static_scale != nullptr || p.group_vectors == 0) {
      inverse[0] = Accumulate(1) / static_cast<Accumulate>(scale);
#pragma unroll
      for (int i = 1; i < kVectors; ++i) inverse[i] = inverse[0];
    } else {
      Accumulate largest[kVectors];
#pragma unroll
      for (int i = 0; i < kVectors; ++i) largest[i] = largest_or_nan<T>(y[i]);
      largest_of_groups(largest, p.group_vectors);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const float own = scale_for(p, largest[i]);
        inverse[i] = Accumulate(1) / static_cast<Accumulate>(own);
        const int at = index(i);
        const bool first = (at & (p.group_vectors - 1)) == 0;
        if (active && at < p.vectors && first) to.store_scale(at / p.group_vectors, own);
      }
    }
    if (!active) return;
    if constexpr (kCold || kAccess == Access::kStrided) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        cold_store<T, kAccess>(p, row, index(i), y[i], inverse[i]);
      }
    } else {  // one branch on the quantised dtype for all vectors
      const auto store_as = [&]<DType kDType>() {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) to.template store_as<kDType>(index(i), y[i], inverse[i]);
      };
      switch (p.quantised_dtype) {
        case DType::kInt8: return store_as.template operator()<DType::kInt8>();
        case DType::kFloat8E4M3: return store_as.template operator()<DType::kFloat8E4M3>();
        default: return store_as.template operator()<DType::kFloat8E5M2>();
      }
    }
  }
};

}  // namespace membound::cuda
