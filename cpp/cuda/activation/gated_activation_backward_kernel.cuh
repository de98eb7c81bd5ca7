// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/row/unaligned_units.cuh"

namespace membound::cuda {

template <class A>
struct GatedActivationBackwardParams {
  GateArray<const void*> dy, gate, up, row_scale;
  GateArray<void*> dgate, dup;
  std::int64_t rows, cols, units;
  bool alignments_differ;  // rows of dgate and dup may differ in alignment, modulo 16 bytes
  tuning::GatedActivationConfig config;
  GateNumbers<A> numbers;
  RowLayout dy_rows, gate_rows, up_rows, row_scale_rows, dgate_rows, dup_rows;
};

// In this order of products a slope of 0 is never multiplied by infinity.
template <Activation kKind, class T, class Values>
__device__ inline void activation_gradients(Values& dgate, Values& dup, const Values& dy,
                                            const Values& gate, const Values& up,
                                            const Alpha<accumulate_t<T>>& alpha) {
  constexpr int kWidth = sizeof(dy.at) / sizeof(dy.at[0]);
  DetectUnderflow underflow;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const auto found = ActivationOf<kKind, T>::of(gate.at[i], alpha, underflow);
    dgate.at[i] = product(product(dy.at[i], found.slope),
                          scaled_in_range<kKind>(up.at[i], found.slope_scale));
    dup.at[i] = scaled_in_range<kKind>(product(dy.at[i], found.value), found.scale);
  }
  if (!underflow.any) [[likely]]
    return;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const auto found = activated<kKind, T>(gate.at[i], alpha);
    dgate.at[i] = product(product(dy.at[i], found.slope), product(up.at[i], found.slope_scale));
    dup.at[i] = product(product(dy.at[i], found.value), found.scale);
  }
}

// Gradients of one unit.
template <class T, class U, class A>
__device__ inline void gradients_of_unit(const GatedActivationBackwardParams<A>& p,
                                         typename U::Values& dgate, typename U::Values& dup,
                                         const typename U::Raw& dys, const typename U::Raw& gates,
                                         const typename U::Raw& ups, A scale) {
  auto dy = U::unpacked(dys), gate = U::unpacked(gates), up = U::unpacked(ups);
  if (!p.numbers.plain) {
#pragma unroll
    for (int i = 0; i < U::kWidth; ++i) {
      dy.at[i] = product(dy.at[i], scale);
      gate.at[i] = not_above(gate.at[i], p.numbers.limit);
      up.at[i] = p.up.data != nullptr ? p.numbers.template factor<T>(up.at[i]) : A(1);
    }
  }
  dispatch_activation(p.numbers.kind, [&]<Activation kKind>() {
    activation_gradients<kKind, T>(dgate, dup, dy, gate, up, p.numbers.alpha);
  });
  if (!p.numbers.plain) {
    gate = U::unpacked(gates);
    up = U::unpacked(ups);
#pragma unroll
    for (int i = 0; i < U::kWidth; ++i) {
      if (gate.at[i] > p.numbers.limit) dgate.at[i] = 0;
      dup.at[i] = p.numbers.template gradient_of_up<T>(up.at[i], dup.at[i]);
    }
  }
}

// One block has a tile of a row, or several narrow rows. A thread loads all of its units of dy,
// gate and up before it computes one; each unit is read before it is overwritten, so that gradients
// may be written in place. No shared memory. Memory-bound.
template <class T, bool kVectors>
__global__ void __launch_bounds__(tuning::kGateThreads) gated_activation_backward_kernel(
    const __grid_constant__ GatedActivationBackwardParams<accumulate_t<T>> p) {
  using U = Unit<T, kVectors>;
  using A = accumulate_t<T>;
  pdl_launch_dependents();
  const GatePosition position(p.config);
  if (position.row >= p.rows) return;
  const auto offset_of = [&](const auto& array, const RowLayout& rows) {
    return array.data != nullptr ? array.offset(rows, position.row) : 0;
  };
  const std::int64_t dy_row = offset_of(p.dy, p.dy_rows);
  const std::int64_t gate_row = offset_of(p.gate, p.gate_rows);
  const std::int64_t up_row = offset_of(p.up, p.up_rows);
  const std::int64_t dgate_row = offset_of(p.dgate, p.dgate_rows);
  const std::int64_t dup_row = offset_of(p.dup, p.dup_rows);
  const bool has_up = p.up.data != nullptr;
  pdl_wait();
  typename U::Raw dys[U::kCount] = {}, gates[U::kCount] = {}, ups[U::kCount] = {};
#pragma unroll
  for (int i = 0; i < U::kCount; ++i) {
    const std::int64_t unit = position.first + i * position.lanes;
    if (i >= position.count || unit >= p.units) continue;
    dys[i] = *p.dy.template at<T, kVectors>(dy_row, unit);
    gates[i] = *p.gate.template at<T, kVectors>(gate_row, unit);
    if (has_up) ups[i] = *p.up.template at<T, kVectors>(up_row, unit);
  }
  const A scale = scale_of_row<A>(p.row_scale, p.row_scale_rows, position.row);
  std::int64_t unit = position.first;
  // The loop is not unrolled, to keep the code short: loaded units move down by one per iteration.
#pragma unroll 1
  for (int left = position.count; left > 0 && unit < p.units; --left, unit += position.lanes) {
    typename U::Values dgate, dup;
    gradients_of_unit<T, U>(p, dgate, dup, dys[0], gates[0], ups[0], scale);
    if (p.dgate.data != nullptr)
      *p.dgate.template at<T, kVectors>(dgate_row, unit) = U::packed(dgate);
    if (p.dup.data != nullptr) *p.dup.template at<T, kVectors>(dup_row, unit) = U::packed(dup);
#pragma unroll
    for (int i = 0; i + 1 < U::kCount; ++i) {
      dys[i] = dys[i + 1];
      gates[i] = gates[i + 1];
      ups[i] = ups[i + 1];
    }
  }
}

// The same for unaligned rows, in aligned units of the first gradient. If dup has a different
// alignment, each warp realigns it in shared memory and stores 16 bytes per thread; all its threads
// must take part, and those without a row have no units.
template <class T>
__global__ void __launch_bounds__(tuning::kGateThreads) gated_activation_backward_unaligned_kernel(
    const __grid_constant__ GatedActivationBackwardParams<float> p) {
  using U = Unit<T, true>;
  __shared__ uint4 staged[tuning::kGateThreads];
  pdl_launch_dependents();
  const GatePosition position(p.config);
  const std::int64_t row = position.row < p.rows ? position.row : p.rows - 1;
  const T* const dy = p.dy.template row<T>(p.dy_rows, row);
  const T* const gate = p.gate.template row<T>(p.gate_rows, row);
  const T* const up = p.up.data != nullptr ? p.up.template row<T>(p.up_rows, row) : gate;
  T* const dgate = p.dgate.data != nullptr ? p.dgate.template row<T>(p.dgate_rows, row) : nullptr;
  T* const dup = p.dup.data != nullptr ? p.dup.template row<T>(p.dup_rows, row) : nullptr;
  const T* const rows[] = {dy, gate, up};
  const UnalignedUnits<T> units(dgate != nullptr ? dgate : dup, p.cols, rows, position,
                                position.row < p.rows ? p.units : 0);
  pdl_wait();
  uint4 vectors[3][tuning::kUnalignedPerThread];
  units.load(vectors, rows);
  const float scale = scale_of_row<float>(p.row_scale, p.row_scale_rows, row);
  const int together = min(position.lanes, kWarpLanes);
  const int lane = static_cast<int>(threadIdx.x) & (together - 1);
#pragma unroll 1
  for (int unit = 0; unit < position.count * position.lanes; unit += position.lanes) {
    uint4 second = {};
    if (unit < units.end) {
      typename U::Values to_gate, to_up;
      gradients_of_unit<T, U>(p, to_gate, to_up, vectors[0][0], vectors[1][0], vectors[2][0],
                              scale);
      if (dgate != nullptr) units.store(dgate, unit, U::packed(to_gate));
      second = U::packed(to_up);
      if (dup != nullptr && (!p.alignments_differ || unit >= units.blocks))
        units.store(dup, unit, second);
    }
    if (p.alignments_differ) {
      const int blocks = units.blocks + lane - unit;  // counted from the first of these threads
      store_realigned(dup + units.first + (unit - lane) * kPack<T>, max(0, min(blocks, together)),
                      second, staged + (threadIdx.x - lane), lane, together);
    }
#pragma unroll
    for (int k = 0; k < 3; ++k) {
#pragma unroll
      for (int i = 0; i + 1 < tuning::kUnalignedPerThread; ++i) vectors[k][i] = vectors[k][i + 1];
    }
  }
}

}  // namespace membound::cuda
