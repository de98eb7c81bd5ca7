// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/row/unaligned_units.cuh"

namespace membound::cuda {

template <class A>
struct GatedActivationParams {
  GateArray<const void*> gate, up, row_scale;
  GateArray<void*> out;
  std::int64_t rows, cols, units;
  tuning::GatedActivationConfig config;
  GateNumbers<A> numbers;
  RowLayout gate_rows, up_rows, row_scale_rows, out_rows;
};

// Results of one unit.
template <class T, class U, class A>
__device__ inline typename U::Raw gated_unit(const GatedActivationParams<A>& p,
                                             const typename U::Raw& gates,
                                             const typename U::Raw& ups, A scale) {
  auto gate = U::unpacked(gates), up = U::unpacked(ups);
  if (!p.numbers.plain) {
#pragma unroll
    for (int i = 0; i < U::kWidth; ++i) {
      gate.at[i] = not_above(gate.at[i], p.numbers.limit);
      up.at[i] =
          p.up.data != nullptr ? product(p.numbers.template factor<T>(up.at[i]), scale) : scale;
    }
  }
  typename U::Values out;
  dispatch_activation(p.numbers.kind, [&]<Activation kKind>() {
    activate<kKind, T>(out, gate, up, p.numbers.alpha);
  });
  return U::packed(out);
}

// One block has a tile of a row, or several narrow rows. A thread loads all of its units of gate
// and up before it computes one. No shared memory. Memory-bound; gelu of 16-bit storage is nearly
// compute-bound.
template <class T, bool kVectors>
__global__ void __launch_bounds__(tuning::kGateThreads)
    gated_activation_kernel(const __grid_constant__ GatedActivationParams<accumulate_t<T>> p) {
  using U = Unit<T, kVectors>;
  using A = accumulate_t<T>;
  pdl_launch_dependents();
  const GatePosition position(p.config);
  if (position.row >= p.rows) return;
  const std::int64_t gate_row = p.gate.offset(p.gate_rows, position.row);
  const std::int64_t out_row = p.out.offset(p.out_rows, position.row);
  const bool has_up = p.up.data != nullptr;
  const std::int64_t up_row = has_up ? p.up.offset(p.up_rows, position.row) : 0;
  pdl_wait();
  typename U::Raw gates[U::kCount] = {}, ups[U::kCount] = {};
#pragma unroll
  for (int i = 0; i < U::kCount; ++i) {
    const std::int64_t unit = position.first + i * position.lanes;
    if (i >= position.count || unit >= p.units) continue;
    gates[i] = *p.gate.template at<T, kVectors>(gate_row, unit);
    if (has_up) ups[i] = *p.up.template at<T, kVectors>(up_row, unit);
  }
  const A scale = scale_of_row<A>(p.row_scale, p.row_scale_rows, position.row);
  std::int64_t unit = position.first;
  // The loop is not unrolled, to keep the code short: loaded units move down by one per iteration.
#pragma unroll 1
  for (int left = position.count; left > 0 && unit < p.units; --left, unit += position.lanes) {
    *p.out.template at<T, kVectors>(out_row, unit) = gated_unit<T, U>(p, gates[0], ups[0], scale);
#pragma unroll
    for (int i = 0; i + 1 < U::kCount; ++i) {
      gates[i] = gates[i + 1];
      ups[i] = ups[i + 1];
    }
  }
}

// The same for unaligned rows, in aligned units of the result.
template <class T>
__global__ void __launch_bounds__(tuning::kGateThreads)
    gated_activation_unaligned_kernel(const __grid_constant__ GatedActivationParams<float> p) {
  using U = Unit<T, true>;
  pdl_launch_dependents();
  const GatePosition position(p.config);
  if (position.row >= p.rows) return;
  const T* const gate = p.gate.template row<T>(p.gate_rows, position.row);
  const T* const up = p.up.data != nullptr ? p.up.template row<T>(p.up_rows, position.row) : gate;
  T* const out = p.out.template row<T>(p.out_rows, position.row);
  const T* const rows[] = {gate, up};
  const UnalignedUnits<T> units(out, p.cols, rows, position, p.units);
  pdl_wait();
  uint4 vectors[2][tuning::kUnalignedPerThread];
  units.load(vectors, rows);
  const float scale = scale_of_row<float>(p.row_scale, p.row_scale_rows, position.row);
#pragma unroll 1
  for (int unit = 0; unit < units.end; unit += position.lanes) {
    units.store(out, unit, gated_unit<T, U>(p, vectors[0][0], vectors[1][0], scale));
#pragma unroll
    for (int i = 0; i + 1 < tuning::kUnalignedPerThread; ++i) {
      vectors[0][i] = vectors[0][i + 1];
      vectors[1][i] = vectors[1][i + 1];
    }
  }
}

}  // namespace membound::cuda
