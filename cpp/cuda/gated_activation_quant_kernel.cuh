// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/element.cuh"
#include "cuda/gate_tile.cuh"
#include "cuda/quant.cuh"
#include "cuda/reduce.cuh"
#include "cuda/tuning/gated_activation_quant.hpp"

namespace membound::cuda {

template <class A>
struct GatedActivationQuantParams {
  GateArray<const void*> gate, up, row_scale;
  GateArray<void*> out;
  GateArray<float*> scale;
  const float* static_scale;  // null: dynamic
  std::int64_t rows, cols, units;
  tuning::GatedActivationQuantConfig config;
  GateNumbers<A> numbers;
  DType dtype, out_dtype;
  int group_lanes;  // threads whose units share a scale, a power of two; 0: those of the row do
  int group_shift;  // its logarithm
  float scale_upper_bound;
};

// What gates are loaded as: chunks of 16 bytes of 16 or 32 bits, or elements one by one.
enum class GateForm : std::uint8_t { kChunks16, kChunks32, kElements };

template <class A>
struct FourNumbers {
  A at[4];
};
// Up to four elements, zeros behind them.
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

// kWidth neighbours of a row, which a thread has at once.
template <class A, GateForm kForm>
struct QuantUnit {
  static constexpr bool kChunks = kForm != GateForm::kElements;
  static constexpr int kWidth = kForm == GateForm::kChunks16 ? 8 : 4;
  static constexpr int kCount = kChunks ? tuning::kChunksPerThread : 1;
  static constexpr int kPlanes = kWidth * static_cast<int>(sizeof(A)) / kChunkBytes;
  using Raw = std::conditional_t<kChunks, uint4, FourNumbers<A>>;
  struct Values {
    A at[kWidth];
  };
  static constexpr int kStep = kChunks ? 4 : 8 / static_cast<int>(sizeof(A));
  struct Step {
    A at[kStep];
  };

  static __device__ Raw load(const GateArray<const void*>& array, DType dtype, std::int64_t row,
                             std::int64_t unit, std::int64_t cols) {
    if constexpr (kChunks) {
      constexpr std::int64_t kBytes = kChunkBytes / kWidth;
      const char* at = static_cast<const char*>(array.data) + row * kBytes;
      return reinterpret_cast<const uint4*>(at)[unit];
    } else {
      const std::int64_t first = unit * kWidth;
      return load_numbers<A>(array.data, dtype, row + first * array.col_stride, array.col_stride,
                             cols - first);
    }
  }
  // The first kStep numbers, so many as are computed at once in the code: all of a unit would be
  // 60 KB more, and their registers. What is left moves down.
  static __device__ Step take(Raw& raw, DType dtype) {
    Step step;
    const auto first_of = [&](const auto& numbers) {
#pragma unroll
      for (int i = 0; i < kStep; ++i) step.at[i] = numbers.at[i];
    };
    if constexpr (kForm == GateForm::kChunks16) {
      const uint4 half{raw.x, raw.y, 0u, 0u};
      dtype == DType::kFloat16 ? first_of(unpack<Float16>(half)) : first_of(unpack<BFloat16>(half));
      raw.x = raw.z;
      raw.y = raw.w;
    } else if constexpr (kForm == GateForm::kChunks32) {
      first_of(unpack<float>(raw));
    } else {
      first_of(raw);
#pragma unroll
      for (int i = 0; i + kStep < kWidth; ++i) raw.at[i] = raw.at[i + kStep];
    }
    return step;
  }

  // In shared memory neighbouring threads have neighbouring chunks.
  union Held {
    uint4 planes[kPlanes];
    A at[kWidth];
    __device__ Held() {}
  };
  static __device__ void hold(uint4* held, std::int64_t units, std::int64_t unit,
                              const Values& values) {
    Held one;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) one.at[i] = values.at[i];
#pragma unroll
    for (int i = 0; i < kPlanes; ++i) held[i * units + unit] = one.planes[i];
  }
  static __device__ Values recalled(const uint4* held, std::int64_t units, std::int64_t unit) {
    Held one;
#pragma unroll
    for (int i = 0; i < kPlanes; ++i) one.planes[i] = held[i * units + unit];
    Values values;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values.at[i] = one.at[i];
    return values;
  }

  static __device__ A largest(const Values& values) {
    A largest = 0;
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      largest = larger_or_nan(largest, values.at[i] < 0 ? -values.at[i] : values.at[i]);
    return largest;
  }
};

// One row, or a tile of one, and the threads that have it. Threads behind the last row compute it
// once more and store nothing, so that whole warps exchange.
struct QuantPlace {
  bool there;
  int lane, lanes, row_of_block;
  std::int64_t row, first, end;  // units

  template <class A>
  __device__ explicit QuantPlace(const GatedActivationQuantParams<A>& p) : lanes(p.config.lanes) {
    const unsigned group = p.config.tiles == 1 ? blockIdx.x : blockIdx.x / p.config.tiles;
    const unsigned tile = blockIdx.x - group * p.config.tiles;
    const int shift = 31 - __clz(lanes), thread = static_cast<int>(threadIdx.x);
    lane = thread & (lanes - 1);
    row_of_block = thread >> shift;
    row = std::int64_t{group} * (static_cast<int>(blockDim.x) >> shift) + row_of_block;
    there = row < p.rows;
    row = there ? row : p.rows - 1;
    first = tile * p.config.tile_units;
    end = first + p.config.tile_units < p.units ? first + p.config.tile_units : p.units;
  }

  // Over the threads of a row; for once in a kernel.
  template <class A>
  __device__ A largest_of_row(A value) const {
    __shared__ A of_warps[tuning::kGateQuantThreads / kWarpLanes];
    value = reduce_lanes(value, lanes < kWarpLanes ? lanes : kWarpLanes, LargestOrNan());
    if (lanes <= kWarpLanes) return value;
    const int warps = lanes / kWarpLanes;
    of_warps[threadIdx.x / kWarpLanes] = value;
    __syncthreads();
    const int first_warp = row_of_block * warps;
    for (int i = 0; i < warps; ++i) value = larger_or_nan(value, of_warps[first_warp + i]);
    return value;
  }
};

// The results of a unit; gates and ups are used up.
template <class A, GateForm kForm>
__device__ inline typename QuantUnit<A, kForm>::Values activated(
    const GatedActivationQuantParams<A>& p, typename QuantUnit<A, kForm>::Raw& gates,
    typename QuantUnit<A, kForm>::Raw& ups, A row_scale) {
  using U = QuantUnit<A, kForm>;
  typename U::Values y{};
#pragma unroll 1
  for (int left = U::kWidth; left > 0; left -= U::kStep) {
    auto gate = U::take(gates, p.dtype), up = U::take(ups, p.dtype);
    if (!p.numbers.plain) {
#pragma unroll
      for (int i = 0; i < U::kStep; ++i) {
        gate.at[i] = not_above(gate.at[i], p.numbers.limit);
        up.at[i] =
            p.up.data != nullptr ? product(p.numbers.factor(up.at[i]), row_scale) : row_scale;
      }
    }
#pragma unroll
    for (int i = 0; i + U::kStep < U::kWidth; ++i) y.at[i] = y.at[i + U::kStep];
    dispatch_activation(p.numbers.kind, [&]<Activation kKind>() {
      auto out = gate;
      activate<kKind, A>(out, gate, up, p.numbers.alpha);
#pragma unroll
      for (int i = 0; i < U::kStep; ++i) y.at[U::kWidth - U::kStep + i] = out.at[i];
    });
  }
  return y;
}

// One block has a tile of a row, or several narrow rows, or where a row shares one dynamic scale
// the whole of each: it computes the row for its largest magnitude first, and keeps the results in
// shared memory for the codes, or computes them once more where they do not fit. The arithmetic is
// that of float32 whatever the storage, as the result is not rounded to it: limited by memory
// beside 32 bits, nearly by arithmetic beside 16.
template <class A, GateForm kForm>
__global__ void __launch_bounds__(tuning::kGateQuantThreads)
    gated_activation_quant_kernel(const __grid_constant__ GatedActivationQuantParams<A> p) {
  using U = QuantUnit<A, kForm>;
  extern __shared__ uint4 shared_results[];
  begin_overlapped();
  const QuantPlace place(p);
  const std::int64_t gate_row = p.gate.offset(place.row);
  const std::int64_t up_row = p.up.data != nullptr ? p.up.offset(place.row) : 0;
  const std::uint64_t out_row = reinterpret_cast<std::uint64_t>(p.out.data) +
                                static_cast<std::uint64_t>(p.out.offset(place.row));
  float* const scales =
      p.scale.data != nullptr ? p.scale.data + p.scale.offset(place.row) : nullptr;
  uint4* const held = shared_results + place.row_of_block * (U::kPlanes * p.units);
  const A row_scale = p.row_scale.data != nullptr
                          ? static_cast<const A*>(p.row_scale.data)[p.row_scale.offset(place.row)]
                          : A(1);
  const bool one_scale = scales != nullptr && p.group_lanes == 0;
  A inverse = p.static_scale != nullptr ? A(1) / static_cast<A>(*p.static_scale) : A(1);
  A largest = 0;
#pragma unroll 1  // once in the code
  for (int pass = one_scale ? 0 : 1; pass < 2; ++pass) {
    const bool recall = pass == 1 && one_scale && p.config.held_bytes != 0;
    typename U::Raw gates[U::kCount] = {}, ups[U::kCount] = {};
#pragma unroll 1
    for (std::int64_t base = place.first; base < place.end; base += U::kCount * place.lanes) {
#pragma unroll
      for (int i = 0; i < U::kCount; ++i) {
        const std::int64_t unit = base + i * place.lanes + place.lane;
        if (recall || unit >= place.end) continue;
        gates[i] = U::load(p.gate, p.dtype, gate_row, unit, p.cols);
        if (p.up.data != nullptr) ups[i] = U::load(p.up, p.dtype, up_row, unit, p.cols);
      }
#pragma unroll 1  // likewise: what is held moves down
      for (int i = 0; i < U::kCount; ++i) {
        const std::int64_t unit = base + i * place.lanes + place.lane;
        const bool active = unit < place.end;
        typename U::Values y{};
        if (recall) {
          if (active) y = U::recalled(held, p.units, unit);
        } else {
          if (active) y = activated<A, kForm>(p, gates[0], ups[0], row_scale);
          if constexpr (!U::kChunks) {  // without up, zeros behind the row may have become others
#pragma unroll
            for (int k = 0; k < U::kWidth; ++k)
              y.at[k] = unit * U::kWidth + k < p.cols ? y.at[k] : A(0);
          }
#pragma unroll
          for (int k = 0; k + 1 < U::kCount; ++k) {
            gates[k] = gates[k + 1];
            ups[k] = ups[k + 1];
          }
        }
        if (pass == 0) {
          largest = larger_or_nan(largest, U::largest(y));
          if (active && p.config.held_bytes != 0) U::hold(held, p.units, unit, y);
          continue;
        }
        const bool stores = active && place.there;
        if (p.group_lanes != 0) {
          const A of_group = reduce_lanes(U::largest(y), p.group_lanes, LargestOrNan());
          const float scale = dynamic_scale(of_group, p.out_dtype, p.scale_upper_bound);
          inverse = A(1) / static_cast<A>(scale);
          if (stores && (unit & (p.group_lanes - 1)) == 0)
            scales[(unit >> p.group_shift) * p.scale.col_stride] = scale;
        }
        if (!stores) continue;
        const uint2 codes = codes_of(p.out_dtype, y.at, inverse);
        const std::int64_t first = unit * U::kWidth;
        if constexpr (U::kChunks) {
          store_aligned_codes<U::kWidth>(out_row + static_cast<std::uint64_t>(first), codes);
        } else {
          const std::int64_t left = p.cols - first;
          store_codes(out_row + static_cast<std::uint64_t>(first * p.out.col_stride),
                      p.out.col_stride, codes,
                      left < U::kWidth ? static_cast<int>(left) : U::kWidth);
        }
      }
    }
    if (pass == 0) {
      const float scale =
          dynamic_scale(place.largest_of_row(largest), p.out_dtype, p.scale_upper_bound);
      inverse = A(1) / static_cast<A>(scale);
      if (place.lane == 0 && place.there) *scales = scale;
    }
  }
}

}  // namespace membound::cuda
