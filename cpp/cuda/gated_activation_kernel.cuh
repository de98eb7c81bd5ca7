// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/gate_tile.cuh"

namespace membound::cuda {

template <class A>
struct GatedActivationParams {
  GateArray<const void*> gate, up, row_scale;
  GateArray<void*> out;
  std::int64_t rows, units;
  tuning::GatedActivationConfig config;
  GateNumbers<A> numbers;
  RowLayout gate_rows, up_rows, row_scale_rows, out_rows;
};

// One block has a tile of a row, or several narrow rows; a thread loads all of its units of gate
// and up before it computes one. No shared memory. Limited by memory; beside 16-bit storage, with
// gelu, nearly by arithmetic.
template <class T, bool kChunks>
__global__ void __launch_bounds__(tuning::kGateThreads)
    gated_activation_kernel(const __grid_constant__ GatedActivationParams<accumulate_t<T>> p) {
  using U = Unit<T, kChunks>;
  using A = accumulate_t<T>;
  launch_dependents();
  const GatePlace place(p.config);
  if (place.row >= p.rows) return;
  const std::int64_t gate_row = p.gate.offset(p.gate_rows, place.row);
  const std::int64_t out_row = p.out.offset(p.out_rows, place.row);
  const bool has_up = p.up.data != nullptr;
  const std::int64_t up_row = has_up ? p.up.offset(p.up_rows, place.row) : 0;
  wait_for_launch_before();
  typename U::Raw gates[U::kCount] = {}, ups[U::kCount] = {};
#pragma unroll
  for (int i = 0; i < U::kCount; ++i) {
    const std::int64_t unit = place.first + i * place.lanes;
    if (i >= place.count || unit >= p.units) continue;
    gates[i] = *p.gate.template at<T, kChunks>(gate_row, unit);
    if (has_up) ups[i] = *p.up.template at<T, kChunks>(up_row, unit);
  }
  A scale = 1;
  if (p.row_scale.data != nullptr)
    scale =
        static_cast<const A*>(p.row_scale.data)[p.row_scale.offset(p.row_scale_rows, place.row)];
  std::int64_t unit = place.first;
  // Once in the code: what is held moves down.
#pragma unroll 1
  for (int left = place.count; left > 0 && unit < p.units; --left, unit += place.lanes) {
    auto gate = U::unpacked(gates[0]), up = U::unpacked(ups[0]);
    if (!p.numbers.plain) {
#pragma unroll
      for (int i = 0; i < U::kWidth; ++i) {
        gate.at[i] = not_above(gate.at[i], p.numbers.limit);
        up.at[i] = has_up ? product(p.numbers.factor(up.at[i]), scale) : scale;
      }
    }
    typename U::Values out;
    dispatch_activation(p.numbers.kind, [&]<Activation kKind>() {
      activate<kKind, T>(out, gate, up, p.numbers.alpha);
    });
    *p.out.template at<T, kChunks>(out_row, unit) = U::packed(out);
#pragma unroll
    for (int i = 0; i + 1 < U::kCount; ++i) {
      gates[i] = gates[i + 1];
      ups[i] = ups[i + 1];
    }
  }
}

}  // namespace membound::cuda
