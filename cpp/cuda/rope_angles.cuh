// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// cos and sin of some pairs of one token, from a table or a frequency.
#include "core/sincos.hpp"
#include "cuda/element.cuh"
#include "ops/rope.hpp"

namespace membound::cuda {

template <class A>
struct Turn {
  A cos, sin;
};

static __device__ __noinline__ std::int64_t wide_quotient(std::int64_t a, std::int64_t b) {
  return a / b;
}
// GPUs divide 32 bits several times faster than 64.
__device__ inline std::int64_t quotient(std::int64_t a, std::int64_t b) {
  const bool narrow = ((a | b) >> 32) == 0;
  return narrow ? static_cast<std::int64_t>(static_cast<std::uint32_t>(a) /
                                            static_cast<std::uint32_t>(b))
                : wide_quotient(a, b);
}

// Which angles the pairs of a token on one axis have.
struct AngleRow {
  enum Kind { kTable, kMade, kNone, kLost } kind;
  std::int64_t cos, sin;  // where the rows of the table start
  double position;
};

// Out of line like all that is long: inlined where it is wanted it makes kernels of 60 KB.
static __device__ __noinline__ AngleRow angle_row(const RopeProblem& p, std::int64_t pair,
                                                  std::int64_t b, std::int64_t s) {
  const int axis = p.axes == 1 ? 0 : p.axis_of(pair);
  AngleRow row{AngleRow::kTable, 0, 0, 0.0};
  std::int64_t position = s;
  if (!p.own_rows && !p.where.find(axis, b, s, position)) {
    row.kind = AngleRow::kNone;
  } else if (p.cos == nullptr) {
    row.kind = AngleRow::kMade;
    row.position = static_cast<double>(position);
  } else if (!p.own_rows && (position < 0 || position >= p.positions)) {
    row.kind = AngleRow::kLost;
  } else {
    row.cos = axis * p.cos_axis_stride + b * p.cos_batch_stride + position * p.cos_row_stride;
    row.sin = axis * p.sin_axis_stride + b * p.sin_batch_stride + position * p.sin_row_stride;
  }
  return row;
}

// Everyday tables are read in chunks instead.
template <class A>
__device__ __noinline__ Turn<A> one_turn(const RopeProblem& p, const AngleRow& row,
                                         std::int64_t pair) {
  switch (row.kind) {
    case AngleRow::kTable:
      return {read_number<A>(p.cos, p.table_dtype, row.cos + pair * p.cos_col_stride),
              read_number<A>(p.sin, p.table_dtype, row.sin + pair * p.sin_col_stride)};
    case AngleRow::kMade: {
      Turn<A> turn;
      const double frequency = read_number<double>(p.freqs, p.freqs_dtype, pair * p.freqs_stride);
      sincos_of(row.position * frequency, turn.sin, turn.cos);
      const A scaling = static_cast<A>(p.scaling);
      return {product(turn.cos, scaling), product(turn.sin, scaling)};
    }
    case AngleRow::kNone: return {1, 0};
    default: {
      const A nan = static_cast<A>(__longlong_as_double(0x7ff8000000000000));
      return {nan, nan};
    }
  }
}

template <class T>
struct Turns {
  accumulate_t<T> cos[kPack<T>], sin[kPack<T>];
};

// kPack numbers of a row that starts at a multiple of 16 bytes, as float32 or as T.
template <class T>
__device__ inline void read_chunks(const void* from, DType dtype, std::int64_t at,
                                   accumulate_t<T> (&numbers)[kPack<T>]) {
  if (sizeof(T) == 2 && dtype == DType::kFloat32) {
    const auto* chunks = reinterpret_cast<const uint4*>(static_cast<const float*>(from) + at);
#pragma unroll
    for (int half = 0; half < kPack<T> / kPack<float>; ++half) {
      const Numbers<float> some = unpack<float>(chunks[half]);
#pragma unroll
      for (int i = 0; i < kPack<float>; ++i) numbers[half * kPack<float> + i] = some.at[i];
    }
  } else {
    const Numbers<T> some =
        unpack<T>(*reinterpret_cast<const uint4*>(static_cast<const T*>(from) + at));
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) numbers[i] = some.at[i];
  }
}

// kPack pairs from `first` on. in_chunks: the table can be read by read_chunks.
template <class T>
__device__ inline void read_turns(const RopeProblem& p, bool in_chunks, std::int64_t b,
                                  std::int64_t s, std::int64_t first, Turns<T>& turns) {
  constexpr int kCount = kPack<T>;
  using A = accumulate_t<T>;
  AngleRow row = angle_row(p, first, b, s);
  if (in_chunks && row.kind == AngleRow::kTable) {
    read_chunks<T>(p.cos, p.table_dtype, row.cos + first, turns.cos);
    read_chunks<T>(p.sin, p.table_dtype, row.sin + first, turns.sin);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i > 0 && p.axes > 1) row = angle_row(p, first + i, b, s);
      const Turn<A> turn = one_turn<A>(p, row, first + i);
      turns.cos[i] = turn.cos;
      turns.sin[i] = turn.sin;
    }
  }
  const A sign = p.inverse ? -1 : 1;
#pragma unroll
  for (int i = 0; i < kCount; ++i) turns.sin[i] = product(turns.sin[i], sign);
}

}  // namespace membound::cuda
