// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/activation/gated_activation_quant_unit.cuh"
#include "cuda/row/reduce.cuh"

namespace membound::cuda {

template <class A>
struct GatedActivationQuantParams {
  GateArray<const void*> gate, up, row_scale;
  GateArray<void*> out;
  GateArray<float*> scale;
  const float* static_scale;      // null: dynamic scales
  const char *gate_end, *up_end;  // ends of the arrays
  std::int64_t rows, cols, units;
  tuning::GatedActivationQuantConfig config;
  GateNumbers<A> numbers;
  DType dtype, out_dtype;
  int group_lanes;  // threads whose units share a scale, a power of two; 0: one scale per row
  int group_shift;  // log2 of group_lanes
  int slots;        // rows in flight in shared memory
  int cluster;      // blocks that share a scale
  float scale_upper_bound;
  RowLayout gate_rows, up_rows, row_scale_rows, out_rows, scale_rows;

  __device__ float* scale_at(std::int64_t row, std::int64_t group) const {
    return scale.data + scale.offset(scale_rows, row) + group * scale.col_stride;
  }
};

// Position of a thread: a row, or a tile of one, and the threads that share it, a power of two or
// the whole block. Threads past the last row recompute that row and store nothing, so that shuffles
// run in whole warps.
template <class Index>
struct QuantPosition {
  bool in_range;
  int lane, lanes, row_of_block;
  std::int64_t row;
  Index first, end;  // units

  template <class A>
  __device__ explicit QuantPosition(const GatedActivationQuantParams<A>& p)
      : lanes(p.config.lanes) {
    const unsigned group = p.config.tiles == 1 ? blockIdx.x : blockIdx.x / p.config.tiles;
    const unsigned tile = blockIdx.x - group * p.config.tiles;
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    const int shift = 31 - __clz(lanes);
    const bool alone = lanes == threads;
    lane = alone ? thread : thread & (lanes - 1);
    row_of_block = alone ? 0 : thread >> shift;
    row = std::int64_t{group} * (alone ? 1 : threads >> shift) + row_of_block;
    in_range = row < p.rows;
    row = in_range ? row : p.rows - 1;
    const Index units = static_cast<Index>(p.units), part = p.config.part_units;
    first = static_cast<Index>(tile) * part;
    end = p.config.tiles == 1 || units - first < part ? units : first + part;
  }

  // Maximum over the threads of a row; usable once per kernel, as its shared memory is not
  // double-buffered.
  template <class A>
  __device__ A largest_of_row(A value) const {
    __shared__ A of_warps[tuning::kQuantTileThreads / kWarpLanes];
    if (lanes < kWarpLanes) return reduce_lanes(value, lanes, LargestOrNan());
    value = reduce_warp(value, LargestOrNan());
    if (lanes == kWarpLanes) return value;
    const int warps = lanes / kWarpLanes, of_row = row_of_block * warps;
    of_warps[threadIdx.x / kWarpLanes] = value;
    __syncthreads();
    const int warp = lane % kWarpLanes;
    return reduce_warp(warp < warps ? of_warps[of_row + warp] : A(0), LargestOrNan());
  }
};

// Inverse of the scale shared by a group of units, by whole warps; the group's first thread stores
// the scale. largest: of the thread's unit.
template <class A>
__device__ inline A inverse_of_group(const GatedActivationQuantParams<A>& p, A largest,
                                     std::int64_t row, std::int64_t unit, bool stores) {
  largest = reduce_lanes(largest, p.group_lanes, LargestOrNan());
  const float scale = dynamic_scale(largest, p.out_dtype, p.scale_upper_bound);
  if (stores && (unit & (p.group_lanes - 1)) == 0) *p.scale_at(row, unit >> p.group_shift) = scale;
  return A(1) / static_cast<A>(scale);
}

// Results of a unit; `activate` writes the results of one step to its first argument.
template <class U, class A, class Activate>
__device__ inline typename U::Values activated(const GatedActivationQuantParams<A>& p,
                                               typename U::Vector gates, typename U::Vector ups,
                                               A row_scale, Activate activate) {
  typename U::Values y{};
#pragma unroll 1
  for (int left = U::kWidth; left > 0; left -= U::kStep) {
    auto gate = U::take(gates), up = U::take(ups);
    if (!p.numbers.plain) {
#pragma unroll
      for (int i = 0; i < U::kStep; ++i) {
        gate.at[i] = not_above(gate.at[i], p.numbers.limit);
        up.at[i] = p.up.data != nullptr ? product(p.numbers.template factor<A>(up.at[i]), row_scale)
                                        : row_scale;
      }
    }
#pragma unroll
    for (int i = 0; i + U::kStep < U::kWidth; ++i) y.at[i] = y.at[i + U::kStep];
    auto out = gate;
    activate(out, gate, up);
#pragma unroll
    for (int i = 0; i < U::kStep; ++i) y.at[U::kWidth - U::kStep + i] = out.at[i];
  }
  return y;
}

// Computes a thread's units, `lanes` apart, into its slots in shared memory; returns their largest
// magnitude. cols: columns of the row from the thread's first unit on.
template <class U, class A, class Activate>
__device__ inline A compute_units(const GatedActivationQuantParams<A>& p,
                                  const typename U::Row& gate_row, const typename U::Row& up_row,
                                  A row_scale, int count, int lanes, std::int64_t cols,
                                  std::uint32_t staged, Activate activate) {
  const std::uint32_t apart = kVectorBytes * p.config.part_units;
  typename U::Raw gates[U::kInFlight] = {}, ups[U::kInFlight] = {};
  const auto fetch = [&](int i, int at) {
    if (at >= count) return;
    gates[i] = gate_row.load(at, p.dtype, p.cols);
    ups[i] = up_row.load(at, p.dtype, p.cols);
  };
#pragma unroll
  for (int i = 0; i < U::kInFlight; ++i) fetch(i, i * lanes);
  A largest = 0;
#pragma unroll 1
  for (int at = 0; at < count; at += lanes) {
    auto y = activated<U>(p, gate_row.vector(gates[0]), up_row.vector(ups[0]), row_scale, activate);
#pragma unroll
    for (int i = 0; i + 1 < U::kInFlight; ++i) {
      gates[i] = gates[i + 1];
      ups[i] = ups[i + 1];
    }
    fetch(U::kInFlight - 1, at + U::kInFlight * lanes);
    // Without up, zeros past the end of the row may have become nonzero.
    if (!U::kWhole && (at + 1) * U::kWidth > cols) {
#pragma unroll
      for (int k = 0; k < U::kWidth; ++k) y.at[k] = at * U::kWidth + k < cols ? y.at[k] : A(0);
    }
    largest = larger_or_nan(largest, U::largest(y));
    U::stage(staged, apart, y);
    staged += kVectorBytes * lanes;
  }
  return largest;
}

// One block has a tile of a row, several narrow rows, or (one dynamic scale per row) whole rows; of
// aligned rows only the widest come here. It computes a part of the row into shared memory, finds
// the scales and stores the codes; rows longer than a part are computed twice, first for their
// largest magnitude. Arithmetic is in float32 whatever the storage, as results are not rounded to
// it. Memory-bound for 32-bit storage, nearly compute-bound for 16-bit.
template <class T, Access kAccess>
__global__ void __launch_bounds__(tuning::kGateQuantThreads, kAccess == Access::kAligned ? 2 : 1)
    gated_activation_quant_kernel(
        const __grid_constant__ GatedActivationQuantParams<accumulate_t<T>> p) {
  using U = QuantUnit<T, kAccess>;
  using A = accumulate_t<T>;
  using Index = typename U::Index;
  extern __shared__ uint4 shared_results[];
  pdl_launch_unless_few();
  const QuantPosition<Index> position(p);
  const std::int64_t gate_row = p.gate.offset(p.gate_rows, position.row);
  const std::int64_t up_row =
      p.up.data != nullptr ? p.up.offset(p.up_rows, position.row) : gate_row;
  pdl_wait_then_launch();
  const A row_scale =
      p.row_scale.data != nullptr
          ? static_cast<const A*>(
                p.row_scale.data)[p.row_scale.offset(p.row_scale_rows, position.row)]
          : A(1);
  const int part = p.config.part_units, lanes = position.lanes;
  auto staged = static_cast<std::uint32_t>(__cvta_generic_to_shared(
      shared_results + position.row_of_block * (U::kPlanes * part) + position.lane));
  asm volatile("" : "+r"(staged));
  const bool one_scale = U::kWhole || (p.scale.data != nullptr && p.group_lanes == 0);
  const int first_pass = one_scale && position.end - position.first > part ? 0 : 1;
  A inverse = p.static_scale != nullptr ? A(1) / static_cast<A>(*p.static_scale) : A(1);
  A largest = 0;
  std::uint64_t out_row = reinterpret_cast<std::uint64_t>(p.out.data) +
                          static_cast<std::uint64_t>(p.out.offset(p.out_rows, position.row));
  asm volatile("" : "+l"(out_row));
#pragma unroll 1  // not unrolled, to keep the code short
  for (int pass = first_pass; pass < 2; ++pass) {
#pragma unroll 1
    for (Index first = position.first; first < position.end; first += part) {
      const bool last = position.end - first <= part;
      int count = (last ? static_cast<int>(position.end - first) : part) - position.lane;
      asm volatile("" : "+r"(count));
      const Index mine = first + position.lane;
      const typename U::Row gates(p.gate, gate_row, mine, p.cols);
      const typename U::Row ups(p.up.data != nullptr ? p.up : p.gate, up_row, mine, p.cols);
      const auto compute = [&](auto activate) {
        const A found = compute_units<U>(p, gates, ups, row_scale, count, lanes,
                                         p.cols - std::int64_t{mine} * U::kWidth, staged, activate);
        largest = larger_or_nan(largest, found);
      };
      if constexpr (U::kVectors) {
        dispatch_activation(p.numbers.kind, [&]<Activation kKind>() {
          compute([&](auto& out, const auto& gate, const auto& up) {
            activate<kKind, A>(out, gate, up, p.numbers.alpha);
          });
        });
      } else {
        compute([&](auto& out, const auto& gate, const auto& up) {
          dispatch_activation(p.numbers.kind, [&]<Activation kKind>() {
            activate<kKind, A>(out, gate, up, p.numbers.alpha);
          });
        });
      }
      if (one_scale && last && pass == first_pass) {
        const float scale =
            dynamic_scale(position.largest_of_row(largest), p.out_dtype, p.scale_upper_bound);
        inverse = A(1) / static_cast<A>(scale);
        if (position.lane == 0 && position.in_range) *p.scale_at(position.row, 0) = scale;
      }
      if (pass == 0) continue;
      const std::uint32_t apart = kVectorBytes * part;
      if (!U::kWhole && p.group_lanes != 0) {
        const int together = count + position.lane;  // whole warps take part in the shuffles
#pragma unroll 1
        for (int at = 0; at < together; at += lanes) {
          typename U::Values y{};
          if (at < count) y = U::read_staged(staged + kVectorBytes * at, apart);
          const Index unit = mine + at;
          const bool stores = at < count && position.in_range;
          const A own = inverse_of_group(p, U::largest(y), position.row, unit, stores);
          if (!stores) continue;
          U::store(out_row, p.out.col_stride, p.cols, unit, codes_of(p.out_dtype, y.at, own));
        }
      } else if (position.in_range) {
#pragma unroll 1
        for (int at = 0; at < count; at += lanes) {
          const auto y = U::read_staged(staged + kVectorBytes * at, apart);
          const uint2 codes = codes_of(p.out_dtype, y.at, inverse);
          U::store(out_row, p.out.col_stride, p.cols, mine + at, codes);
        }
      }
    }
  }
}

}  // namespace membound::cuda
