// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/row/element.cuh"
#include "cuda/softmax/softmax_power.cuh"
#include "ops/softmax.hpp"

namespace membound::cuda {

struct SoftmaxParams {
  SoftmaxProblem problem;
  tuning::SoftmaxConfig config;
  PartArray x, out;
  bool aligned, staged;
  bool scale_folded;     // scale is folded into slope: no mask, scale in a safe range
  double slope;          // multiplies the exponents
  float narrow_slope;    // the same in float32
  std::uint32_t absent;  // bits of -infinity

  template <class A>
  __device__ A exponent_slope() const {
    if constexpr (sizeof(A) == 4) return narrow_slope;
    return slope;
  }
};

// Register kernel: aligned rows of whole vectors, no mask, not causal. One block has several narrow
// rows, one row, or one part of a row as a block of a cluster; logits are read once and stay in
// registers. Shared memory: per-warp sums and the sums of the cluster's parts. Memory-bound.
template <class T, int kVectors>
__global__ void __launch_bounds__(tuning::kSoftmaxThreads, kResidentBlocks<kVectors>)
    softmax_register_kernel(const __grid_constant__ SoftmaxParams p) {
  using A = accumulate_t<T>;
  using Part = RegisterPart<T, kVectors>;
  __shared__ typename PartExchange<Pair<A>>::Shared shared;
  PartPosition position(p.config, sizeof(T) > 2 || kVectors == tuning::kFewVectors);
  const PartExchange<Pair<A>> exchange(shared, position);
  exchange.start();
  pdl_wait_and_launch();
  const bool has_row = position.clamp_row(p.problem.rows);
  const A slope = p.exponent_slope<A>();
  uint4 raw[kVectors];
  Part(p.x, position, p.problem.cols).read(raw, p.absent);
  const A top = highest_of_lanes(highest<T>(raw), position.lanes);
  A sum = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    Numbers<T> powers = unpack<T>(raw[i]);
    sum += exponentiate(powers, top, slope);
    if (kKeepsExponentials<T>) raw[i] = pack<T>(powers);
  }
  Pair<A> row = merged_lanes<T>(position, top, sum, 0, slope);
  if (position.parts > 1) row = merged<T>(exchange.all(row), position.parts, slope);
  const A factor = part_factor<T>(top, row, slope);
  if (!kKeepsExponentials<T>) compiler_barrier(raw);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    Numbers<T> y = unpack<T>(raw[i]);
    if (!kKeepsExponentials<T>) exponentiate(y, row.a, slope);
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) y.at[j] = product(y.at[j], factor);
    raw[i] = pack<T>(y);
  }
  Part(p.out, position, has_row ? p.problem.cols : 0).write(raw);
}

// The same for unaligned rows. Shared memory holds their parts, too. 16-bit rows are limited by
// instructions and by the SM's throughput of exponentials. With few vectors, 40 registers beat 48
// by occupancy (bfloat16 16384 x 8193: 171 -> 159 us).
template <class T, int kVectors>
__global__ void __launch_bounds__(bulk_threads(kVectors == tuning::kFewVectors ? 40 : 56), 2)
    softmax_bulk_kernel(const __grid_constant__ SoftmaxParams p) {
  using A = accumulate_t<T>;
  using Part = BulkPart<T, kVectors>;
  extern __shared__ uint4 staged[];
  __shared__ typename PartExchange<Pair<A>>::Shared shared;
  PartPosition position(p.config, sizeof(T) > 2 || kVectors == tuning::kFewVectors);
  const PartExchange<Pair<A>> exchange(shared, position);
  exchange.start();
  Part::start(position, 1);
  pdl_wait_and_launch();
  position.clamp_row(p.problem.rows);
  const T* const from = p.x.row<const T>(position.row);
  Part x(from, position, p.problem.cols, staged);
  x.fetch(from, p.x.end);
  Part::receive(position);
  const A slope = p.exponent_slope<A>();
  uint4 raw[kVectors];
  x.vectors(raw, p.absent);
  const A top = highest_of_lanes(highest<T>(raw), position.lanes);
  A sum = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    Numbers<T> powers = unpack<T>(raw[i]);
    sum += exponentiate(powers, top, slope);
    if (kKeepsExponentials<T>) raw[i] = pack<T>(powers);
  }
  Pair<A> row = merged_lanes<T>(position, top, sum, 0, slope);
  if (position.parts > 1) row = merged<T>(exchange.all(row), position.parts, slope);
  const A factor = part_factor<T>(top, row, slope);
  const auto result = [&](A number) {
    if (kKeepsExponentials<T>) return number;
    return product(SoftmaxPower<T>::large(number - SoftmaxPower<T>::exponent_shift(row.a), slope),
                   factor);
  };
  if constexpr (kKeepsExponentials<T>) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      Numbers<T> y = unpack<T>(raw[i]);
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) y.at[j] = product(y.at[j], factor);
      raw[i] = pack<T>(y);
    }
    x.replace(raw);
  }
  position.locate();
  const bool has_row = position.clamp_row(p.problem.rows);
  const PartUnits<T> units(x.of_row(p.out.row<T>(position.row)), has_row ? x.elements() : 0);
  x.units(raw, units);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    units.store(x.place(i), pack<T>(mapped(unpack<T>(raw[i]), result)));
  }
  units.each_edge(position,
                  [&](int i) { units.to[i] = from_number<T>(result(to_number(x.element(i)))); });
}

// Value that the mask adds to a logit; a boolean false adds -infinity. Out of line, because the
// mask may have any of five dtypes.
template <class T>
__device__ __noinline__ accumulate_t<T> mask_number(const SoftmaxProblem& p, std::int64_t index) {
  if (p.mask_dtype != DType::kBool) {
    return read_number<accumulate_t<T>>(p.mask, p.mask_dtype, index);
  }
  const bool kept = static_cast<const unsigned char*>(p.mask)[index] != 0;
  return kept ? accumulate_t<T>(0) : SoftmaxPower<T>::lowest();
}
// Logits of one vector, from column `first` on; columns from `kept` on are -infinity.
template <class T>
__device__ __noinline__ Numbers<T> any_logits(const SoftmaxParams& p, uint4 raw, std::int64_t row,
                                              std::int64_t first, std::int64_t kept) {
  Numbers<T> values = unpack_any<T>(raw, p.problem.dtype);
  const auto scale = static_cast<accumulate_t<T>>(p.problem.scale);
  if (p.problem.mask == nullptr) {
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) {
      if (!p.scale_folded) values.at[j] = product(values.at[j], scale);
    }
  } else {
    const bool drops = p.problem.mask_dtype == DType::kBool;
    std::int64_t at =
        looped_row_offset(p.problem.mask_rows, row) + first * p.problem.mask_col_stride;
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j, at += p.problem.mask_col_stride) {
      if (first + j >= kept) continue;
      const auto mask = mask_number<T>(p.problem, at);
      // false masks x even if it is NaN
      values.at[j] = drops && mask < 0 ? mask : fma(values.at[j], scale, mask);
    }
  }
#pragma unroll
  for (int j = 0; j < kPack<T>; ++j) {
    if (first + j >= kept) values.at[j] = SoftmaxPower<T>::lowest();
  }
  return values;
}

// Generic kernel, bit-identical to the register kernel; T is Float16 for bfloat16, too. One block
// has several narrow rows, one row, one part of a row (as a block of a cluster), or all parts of
// one row sequentially, read twice: rows wider than a cluster holds, or than one block if there are
// no clusters. Shared memory: one part of each row, per-warp sums and the sums of up to
// kMergedParts parts. Limited by memory and instructions, as exponentials are computed twice.
template <class T>
__global__ void __launch_bounds__(tuning::kSoftmaxThreads)
    softmax_any_kernel(const __grid_constant__ SoftmaxParams p) {
  using A = accumulate_t<T>;
  extern __shared__ uint4 staged[];
  __shared__ typename PartExchange<Pair<A>>::Shared shared;
  __shared__ typename PartGroup<T>::Shared group_slots;
  PartPosition position(p.config);
  const PartExchange<Pair<A>> exchange(shared, position);
  exchange.start();
  pdl_wait_and_launch();
  const std::int64_t cols = position.clamp_row(p.problem.rows) ? p.problem.cols : 0;
  const std::int64_t kept = p.problem.kept(position.row);
  const A slope = p.exponent_slope<A>();
  const StagedPart<T> x(p.x, p.aligned, position, p.staged ? staged : nullptr);
  const StagedPart<T> out(p.out, p.aligned, position, p.staged ? staged : nullptr);
  const std::int64_t parts = position.parts == p.config.parts ? 1 : p.config.parts;
  PartGroup<T> group(group_slots, position);
  A top = 0;
  Pair<A> row(SoftmaxPower<T>::lowest(), 0);
#pragma unroll 1
  for (std::int64_t step = 0; step < 2 * parts; ++step) {
    const bool writes = step >= parts;
    const std::int64_t part = position.part + (writes ? step - parts : step);
    const auto logits = [&](int i) {
      return any_logits<T>(p, x.vector(part, i, kept), position.row,
                           position.vector(part, i) * kPack<T>, kept);
    };
    if (!writes || parts > 1) {
      x.copy_in(part, kept);
      top = SoftmaxPower<T>::lowest();
#pragma unroll 1
      for (int i = 0; i < position.vectors; ++i) top = Highest()(top, highest(logits(i)));
      top = highest_of_lanes(top, position.lanes);
    }
    const A factor = writes ? part_factor<T>(top, row, slope) : A(0);
    const A base = writes && !kKeepsExponentials<T> ? row.a : top;
    A sum = 0;
#pragma unroll 1
    for (int i = 0; i < position.vectors; ++i) {
      Numbers<T> y = logits(i);
      sum += exponentiate(y, base, slope);
      if (!writes) continue;
      const std::int64_t first = position.vector(part, i) * kPack<T>;
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) {
        y.at[j] = first + j < kept ? product(y.at[j], factor) : A(0);
      }
      out.write_out(part, i, cols, pack_any<T>(y, p.problem.dtype));
    }
    if (writes) {
      out.copy_out(part, cols);
      continue;
    }
    row = merged_lanes<T>(position, top, sum, static_cast<int>(step & 1), slope);
    if (position.parts > 1) row = merged<T>(exchange.all(row), position.parts, slope);
    if (parts > 1) row = group.with(row, step + 1 == parts, slope);
  }
}

}  // namespace membound::cuda
