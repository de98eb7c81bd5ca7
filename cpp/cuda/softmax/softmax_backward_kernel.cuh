// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/row/register_part.cuh"
#include "cuda/softmax/softmax_backward_config.hpp"
#include "ops/softmax_backward.hpp"

namespace membound::cuda {

struct SoftmaxBackwardParams {
  DType dtype;
  std::int64_t rows, cols;
  double scale;
  tuning::SoftmaxConfig config;
  PartArray dy, y, dx;
  bool aligned, staged;
};

template <class T>
__device__ inline accumulate_t<T> sum_of_products(const Numbers<T>& dy, const Numbers<T>& y) {
  accumulate_t<T> sum = product(dy.at[0], y.at[0]);
#pragma unroll
  for (int j = 1; j < kPack<T>; ++j) sum = fma(dy.at[j], y.at[j], sum);
  return sum;
}
template <class A>
__device__ inline A gradient(A dy, A y, A sum, A scale) {
  return product(product(dy - sum, y), scale);
}
template <class T>
__device__ inline Numbers<T> gradient(const Numbers<T>& dy, const Numbers<T>& y,
                                      accumulate_t<T> sum, accumulate_t<T> scale) {
  Numbers<T> dx;
#pragma unroll
  for (int j = 0; j < kPack<T>; ++j) {
    dx.at[j] = gradient(dy.at[j], y.at[j], sum, scale);
  }
  return dx;
}
template <class A>
__device__ inline A sum_of_parts(const A* sums, int parts) {
  A sum = 0;
#pragma unroll 1
  for (int i = 0; i < parts; ++i) sum += sums[i];
  return sum;
}

// Register kernel: aligned rows of whole vectors. One block has several narrow rows, one row, or
// one part of a row as a block of a cluster; dy and y are read once and stay in registers. Shared
// memory: per-warp sums and the sums of the cluster's parts. Memory-bound.
template <class T, int kVectors>
__global__ void __launch_bounds__(tuning::kSoftmaxThreads)
    softmax_backward_register_kernel(const __grid_constant__ SoftmaxBackwardParams p) {
  using A = accumulate_t<T>;
  using Part = RegisterPart<T, kVectors>;
  PartPosition position(p.config);
  __shared__ typename PartExchange<A>::Shared shared;
  const PartExchange<A> exchange(shared, position);
  exchange.start();
  pdl_wait_and_launch();
  const bool has_row = position.clamp_row(p.rows);
  uint4 dys[kVectors], ys[kVectors];
  Part(p.dy, position, p.cols).read(dys, 0);
  Part(p.y, position, p.cols).read(ys, 0);
  A sum = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) sum += sum_of_products(unpack<T>(dys[i]), unpack<T>(ys[i]));
  sum = position.reduce(sum, 0, Sum());
  if (position.parts > 1) sum = sum_of_parts(exchange.all(sum), position.parts);
  compiler_barrier(dys);
  compiler_barrier(ys);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const Numbers<T> result =
        gradient<T>(unpack<T>(dys[i]), unpack<T>(ys[i]), sum, static_cast<A>(p.scale));
    dys[i] = pack<T>(result);
  }
  Part(p.dx, position, has_row ? p.cols : 0).write(dys);
}

// The same for unaligned rows. Shared memory holds the parts of dy and y, too. The bound is 56
// registers: with 48 some spill (float32 4096 x 50257: 621 -> 688 us).
template <class T, int kVectors>
__global__ void __launch_bounds__(bulk_threads(56), 2)
    softmax_backward_bulk_kernel(const __grid_constant__ SoftmaxBackwardParams p) {
  using A = accumulate_t<T>;
  using Part = BulkPart<T, kVectors>;
  extern __shared__ uint4 staged[];
  PartPosition position(p.config);
  __shared__ typename PartExchange<A>::Shared shared;
  const PartExchange<A> exchange(shared, position);
  exchange.start();
  Part::start(position, 2);
  pdl_wait_and_launch();
  position.clamp_row(p.rows);
  const T* const dys = p.dy.row<const T>(position.row);
  const T* const ys = p.y.row<const T>(position.row);
  const Part dy(dys, position, p.cols, staged), y(ys, position, p.cols, dy.next_array(staged));
  dy.fetch(dys, p.dy.end);
  y.fetch(ys, p.y.end);
  Part::receive(position);
  constexpr int kUnrolled = 2;  // vectors that are processed together, unrolled
  A sum = 0;
#pragma unroll 1
  for (int first = 0; first < kVectors; first += kUnrolled) {
    uint4 a[kUnrolled], b[kUnrolled];
    dy.vectors(a, 0, first);
    y.vectors(b, 0, first);
#pragma unroll
    for (int i = 0; i < kUnrolled; ++i) sum += sum_of_products(unpack<T>(a[i]), unpack<T>(b[i]));
  }
  sum = position.reduce(sum, 0, Sum());
  if (position.parts > 1) sum = sum_of_parts(exchange.all(sum), position.parts);
  const auto scale = static_cast<A>(p.scale);
  position.locate();
  const bool has_row = position.clamp_row(p.rows);
  const PartUnits<T> units(dy.of_row(p.dx.row<T>(position.row)), has_row ? dy.elements() : 0);
#pragma unroll 1
  for (int first = 0; first < kVectors; first += kUnrolled) {
    uint4 a[kUnrolled], b[kUnrolled];
    dy.units(a, units, first);
    y.units(b, units, first);
#pragma unroll
    for (int i = 0; i < kUnrolled; ++i) {
      units.store(dy.place(first + i),
                  pack<T>(gradient<T>(unpack<T>(a[i]), unpack<T>(b[i]), sum, scale)));
    }
  }
  units.each_edge(position, [&](int i) {
    units.to[i] =
        from_number<T>(gradient(to_number(dy.element(i)), to_number(y.element(i)), sum, scale));
  });
}

// Generic kernel, bit-identical to the register kernel; T is Float16 for bfloat16, too. One block
// has several narrow rows, one row, one part of a row (as a block of a cluster), or all parts of
// one row sequentially, which it reads twice. Shared memory: one part of each row of dy and y, and
// per-warp sums. Memory-bound.
template <class T>
__global__ void __launch_bounds__(tuning::kSoftmaxThreads)
    softmax_backward_any_kernel(const __grid_constant__ SoftmaxBackwardParams p) {
  using A = accumulate_t<T>;
  extern __shared__ uint4 staged[];
  __shared__ typename PartExchange<A>::Shared shared;
  PartPosition position(p.config);
  const PartExchange<A> exchange(shared, position);
  exchange.start();
  pdl_wait_and_launch();
  const bool has_row = position.clamp_row(p.rows);
  uint4* const second = p.staged ? staged + blockDim.x * position.vectors : nullptr;
  const StagedPart<T> dy(p.dy, p.aligned, position, p.staged ? staged : nullptr);
  const StagedPart<T> y(p.y, p.aligned, position, second), dx(p.dx, p.aligned, position, second);
  const std::int64_t parts = position.parts == p.config.parts ? 1 : p.config.parts;
  A whole = 0;
#pragma unroll 1
  for (std::int64_t step = 0; step < 2 * parts; ++step) {
    const bool writes = step >= parts;
    const std::int64_t part = position.part + (writes ? step - parts : step);
    if (!writes || parts > 1) {
      dy.copy_in(part, p.cols);
      y.copy_in(part, p.cols);
    }
    A sum = 0;
#pragma unroll 1
    for (int i = 0; i < position.vectors; ++i) {
      const std::int64_t left = p.cols - position.vector(part, i) * kPack<T>;
      Numbers<T> a = unpack_any<T>(dy.vector(part, i, p.cols), p.dtype);
      Numbers<T> b = unpack_any<T>(y.vector(part, i, p.cols), p.dtype);
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) {
        if (j >= left) a.at[j] = b.at[j] = 0;
      }
      if (writes) {
        const Numbers<T> result = gradient<T>(a, b, whole, static_cast<A>(p.scale));
        dx.write_out(part, i, has_row ? p.cols : 0, pack_any<T>(result, p.dtype));
      } else {
        sum += sum_of_products(a, b);
      }
    }
    if (writes) {
      dx.copy_out(part, has_row ? p.cols : 0);
      continue;
    }
    sum = position.reduce(sum, static_cast<int>(step), Sum());
    whole += position.parts > 1 ? sum_of_parts(exchange.all(sum), position.parts) : sum;
  }
}

}  // namespace membound::cuda
