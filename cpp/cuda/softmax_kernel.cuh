// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/element.cuh"
#include "cuda/softmax_power.cuh"
#include "ops/softmax.hpp"

namespace membound::cuda {

struct SoftmaxParams {
  SoftmaxProblem problem;
  tuning::SoftmaxConfig config;
  PartArray x, out;
  bool aligned, staged;
  std::uint32_t absent;  // 32 bits of elements that give logits of -infinity
};

// Rows of neighbours without mask or triangle. A block has several narrow rows, one row, or as one
// of a cluster a part of a row, read once and held as numbers.
// Shared memory: the sums of the warps, and of the parts, and the results of rows that are not
// aligned. Limited by memory.
template <class T, Access kAccess>
__global__ void __launch_bounds__(tuning::kSoftmaxThreads, kHeldBlocks<T>)
    softmax_held_kernel(const __grid_constant__ SoftmaxParams p) {
  using A = accumulate_t<T>;
  constexpr int kChunks = kHeldChunks<T>;
  extern __shared__ uint4 staged[];
  PartPlace place(p.config);
  __shared__ typename PartExchange<Pair<A>>::Shared shared;
  __shared__ A of_part;
  const PartExchange<Pair<A>> exchange(shared, place);
  exchange.start();
  begin_overlapped();
  const bool has_row = place.take_row(p.problem.rows);
  uint4 raw[kChunks];
  HeldPart<T, kAccess>(p.x, place, p.problem.cols).read(raw, p.absent);
  Numbers<T> held[kChunks];
  A top = SoftmaxPower<T>::lowest();
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    held[i] = unpack<T>(raw[i]);
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) {
      held[i].at[j] = product(held[i].at[j], static_cast<A>(p.problem.scale));
    }
    top = Highest()(top, highest(held[i]));
  }
  top = place.reduce(top, 0, Highest());
  A sum = 0;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) sum += take_powers(held[i], top);
  sum = place.reduce(sum, 1, Sum());
  const A factor = place.once(of_part, [&] {
    Pair<A> row(top, sum);
    if (place.parts > 1) row = merged<T>(exchange.all(row), place.parts);
    return part_factor<T>(top, row);
  });
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) held[i].at[j] = product(held[i].at[j], factor);
    raw[i] = pack<T>(held[i]);
  }
  HeldPart<T, kAccess>(p.out, place, has_row ? p.problem.cols : 0).write(raw, staged);
}

// What the mask adds to a logit; -infinity for false. Out of line: it is read in any of five
// dtypes.
template <class T>
__device__ __noinline__ accumulate_t<T> mask_number(const SoftmaxProblem& p, std::int64_t index) {
  if (p.mask_dtype != DType::kBool) {
    return read_number<accumulate_t<T>>(p.mask, p.mask_dtype, index);
  }
  const bool kept = static_cast<const unsigned char*>(p.mask)[index] != 0;
  return kept ? accumulate_t<T>(0) : SoftmaxPower<T>::lowest();
}
// The logits of `kept` columns from `first` on, -infinity behind them.
template <class T>
__device__ __noinline__ Numbers<T> any_logits(const SoftmaxParams& p, uint4 raw, std::int64_t row,
                                              std::int64_t first, std::int64_t kept) {
  Numbers<T> values = unpack_any<T>(raw, p.problem.dtype);
  const auto scale = static_cast<accumulate_t<T>>(p.problem.scale);
  if (p.problem.mask == nullptr) {
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) values.at[j] = product(values.at[j], scale);
  } else {
    const bool drops = p.problem.mask_dtype == DType::kBool;
    std::int64_t at =
        looped_row_offset(p.problem.mask_rows, row) + first * p.problem.mask_col_stride;
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j, at += p.problem.mask_col_stride) {
      if (first + j >= kept) continue;
      const auto mask = mask_number<T>(p.problem, at);
      // false drops x whatever it is
      values.at[j] = drops && mask < 0 ? mask : fma(values.at[j], scale, mask);
    }
  }
#pragma unroll
  for (int j = 0; j < kPack<T>; ++j) {
    if (first + j >= kept) values.at[j] = SoftmaxPower<T>::lowest();
  }
  return values;
}

// Any rows, to the bits of the other kernel; T: Float16 for bfloat16, too. A block has several
// narrow rows, one row, a part of one as one of a cluster, or one row part after part, which it
// then reads twice: what is wider than a cluster holds, or than one block where there are no
// clusters. Shared memory: a part of each row, the sums of the warps and of a group of parts.
// Limited by memory and by instructions, as powers are taken twice.
template <class T>
__global__ void __launch_bounds__(tuning::kSoftmaxThreads)
    softmax_any_kernel(const __grid_constant__ SoftmaxParams p) {
  using A = accumulate_t<T>;
  constexpr int kGroup = tuning::kSoftmaxGroup, kChunks = kHeldChunks<T>;
  extern __shared__ uint4 staged[];
  __shared__ typename PartExchange<Pair<A>>::Shared shared;
  __shared__ alignas(16) Pair<A> group[kGroup];
  PartPlace place(p.config);
  const PartExchange<Pair<A>> exchange(shared, place);
  exchange.start();
  begin_overlapped();
  const std::int64_t cols = place.take_row(p.problem.rows) ? p.problem.cols : 0;
  const std::int64_t kept = p.problem.kept(place.row);
  const StagedPart<T> x(p.x, p.aligned, place, p.staged ? staged : nullptr);
  const StagedPart<T> out(p.out, p.aligned, place, p.staged ? staged : nullptr);
  const std::int64_t parts = place.parts == p.config.parts ? 1 : p.config.parts;
  int round = 0;
  A top = 0;
  Pair<A> row(SoftmaxPower<T>::lowest(), 0);
#pragma unroll 1
  for (std::int64_t step = 0; step < 2 * parts; ++step) {
    const bool writes = step >= parts;
    const std::int64_t part = place.part + (writes ? step - parts : step);
    const auto logits = [&](int i) {
      return any_logits<T>(p, x.chunk(part, i, kept), place.row, place.chunk<T>(part, i) * kPack<T>,
                           kept);
    };
    if (!writes || parts > 1) {
      x.copy_in(part, kept);
      top = SoftmaxPower<T>::lowest();
#pragma unroll 1
      for (int i = 0; i < kChunks; ++i) top = Highest()(top, highest(logits(i)));
      top = place.reduce(top, round++, Highest());
    }
    const A factor = writes ? part_factor<T>(top, row) : A(0);
    A sum = 0;
#pragma unroll 1
    for (int i = 0; i < kChunks; ++i) {
      Numbers<T> y = logits(i);
      sum += take_powers(y, top);
      if (!writes) continue;
      const std::int64_t first = place.chunk<T>(part, i) * kPack<T>;
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) {
        y.at[j] = first + j < kept ? product(y.at[j], factor) : A(0);
      }
      out.put(part, i, cols, pack_any<T>(y, p.problem.dtype));
    }
    if (writes) {
      out.copy_out(part, cols);
      continue;
    }
    sum = place.reduce(sum, round++, Sum());
    if (parts == 1) {
      row = {top, sum};
      if (place.parts > 1) row = merged<T>(exchange.all(row), place.parts);
      continue;
    }
    const int place_in_group = static_cast<int>(step % kGroup);
    if (place.lane == 0) group[place_in_group] = {top, sum};
    if (place_in_group + 1 < kGroup && step + 1 < parts) continue;
    __syncthreads();
    const Pair<A> both[2] = {row, merged<T>(group, place_in_group + 1)};
    row = step < kGroup ? both[1] : merged<T>(both, 2);
    __syncthreads();
  }
}

}  // namespace membound::cuda
