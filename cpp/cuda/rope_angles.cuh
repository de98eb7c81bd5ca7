// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// cos and sin of some pairs of one token, from a table or a frequency.
#include "core/sincos.hpp"
#include "cuda/element.cuh"
#include "cuda/row_divider.hpp"
#include "ops/rope.hpp"

namespace membound::cuda {

template <class A>
struct Turn {
  A cos, sin;
};

static __device__ __noinline__ std::int64_t wide_quotient(std::int64_t a, std::int64_t b) {
  return a / b;
}
__device__ inline std::int64_t quotient(std::int64_t number, const RowDivider& by) {
  return (number >> 31) == 0 ? by.quotient(number) : wide_quotient(number, by.extent);
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

template <class A>
__device__ inline Turn<A> made_turn(const RopeProblem& p, double position, double frequency) {
  Turn<A> turn;
  sincos_of(product(position, frequency), turn.sin, turn.cos);
  const A scaling = static_cast<A>(p.scaling);
  return {product(turn.cos, scaling), product(turn.sin, scaling)};
}

// Everyday tables are read in chunks instead.
template <class A>
__device__ __noinline__ Turn<A> one_turn(const RopeProblem& p, const AngleRow& row,
                                         std::int64_t pair) {
  switch (row.kind) {
    case AngleRow::kTable:
      return {read_number<A>(p.cos, p.table_dtype, row.cos + pair * p.cos_col_stride),
              read_number<A>(p.sin, p.table_dtype, row.sin + pair * p.sin_col_stride)};
    case AngleRow::kMade:
      return made_turn<A>(p, row.position,
                          read_number<double>(p.freqs, p.freqs_dtype, pair * p.freqs_stride));
    case AngleRow::kNone: return {1, 0};
    default: {
      const A nan = static_cast<A>(__longlong_as_double(0x7ff8000000000000));
      return {nan, nan};
    }
  }
}

template <class T, int kPairs = kPack<T>>
struct Turns {
  accumulate_t<T> cos[kPairs], sin[kPairs];
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

template <class T, int kPairs>
__device__ inline void fill_turns(Turns<T, kPairs>& turns, accumulate_t<T> cos,
                                  accumulate_t<T> sin) {
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    turns.cos[i] = cos;
    turns.sin[i] = sin;
  }
}

// The row of a table, where it is read in chunks, and the turns by `read`. Inline to the last: a
// call would wait for every load that is on its way (H200, 16384 tokens x 40 heads x 128 bfloat16:
// 124 us with calls).
template <class T, int kPairs, class Read>
__device__ inline void read_table_turns(const RopeProblem& p, std::int64_t b, std::int64_t s,
                                        Turns<T, kPairs>& turns, Read read) {
  std::int64_t position = s;
  if (!p.own_rows) {
    if (!p.where.find(0, b, s, position)) return fill_turns<T>(turns, 1, 0);
    if (position < 0 || position >= p.positions) {
      const auto nan = static_cast<accumulate_t<T>>(NAN);
      return fill_turns<T>(turns, nan, nan);
    }
  }
  read(p.cos, b * p.cos_batch_stride + position * p.cos_row_stride, p.cos_col_stride, turns.cos);
  read(p.sin, b * p.sin_batch_stride + position * p.sin_row_stride, p.sin_col_stride, turns.sin);
}

// Whether make_turns can make a call's turns.
MEMBOUND_HOST_DEVICE inline bool makes_turns(const RopeProblem& p) {
  return p.cos == nullptr && p.axes == 1;
}

// The turns of some pairs, pair i of which is number pair(i), from frequencies on one axis. Inline
// and all at once: sines wait for themselves more than for anything else.
template <class T, int kPairs, class Pair>
__device__ inline void make_turns(const RopeProblem& p, std::int64_t b, std::int64_t s, Pair pair,
                                  Turns<T, kPairs>& turns) {
  double frequencies[kPairs];
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const std::int64_t at = pair(i) * p.freqs_stride;
    frequencies[i] = p.freqs_dtype == DType::kFloat64 ? static_cast<const double*>(p.freqs)[at]
                                                      : static_cast<const float*>(p.freqs)[at];
  }
  std::int64_t position = s;
  if (!p.where.find(0, b, s, position)) return fill_turns<T>(turns, 1, 0);
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const Turn<accumulate_t<T>> turn =
        made_turn<accumulate_t<T>>(p, static_cast<double>(position), frequencies[i]);
    turns.cos[i] = turn.cos;
    turns.sin[i] = turn.sin;
  }
}

// The turns of some pairs, pair i of which is number pair(i), one by one.
template <class T, int kPairs, class Pair>
__device__ inline void find_turns(const RopeProblem& p, std::int64_t b, std::int64_t s, Pair pair,
                                  Turns<T, kPairs>& turns) {
#pragma unroll 1
  for (int i = 0; i < kPairs; ++i) {
    const Turn<accumulate_t<T>> turn =
        one_turn<accumulate_t<T>>(p, angle_row(p, pair(i), b, s), pair(i));
    turns.cos[i] = turn.cos;
    turns.sin[i] = turn.sin;
  }
}

template <class T, int kPairs>
__device__ inline void turn_back(Turns<T, kPairs>& turns, bool inverse) {
  const accumulate_t<T> sign = inverse ? -1 : 1;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) turns.sin[i] = product(turns.sin[i], sign);
}

// Of the pairs first, first + step, ... below `end`; behind it any.
template <class T, int kPairs = kPack<T>>
__device__ __noinline__ Turns<T, kPairs> turns_from(const RopeProblem& p, std::int64_t b,
                                                    std::int64_t s, std::int64_t first, int step,
                                                    std::int64_t end) {
  const auto pair = [=](int i) {
    const std::int64_t number = first + i * step;
    return number < end ? number : 0;
  };
  Turns<T, kPairs> turns;
  if (kPairs < kPack<T> && makes_turns(p)) {
    make_turns<T>(p, b, s, pair, turns);
  } else {
    find_turns<T>(p, b, s, pair, turns);
  }
  return turns;
}
// The same of a table that read_chunks can read.
template <class T>
__device__ inline void read_turns(const RopeProblem& p, std::int64_t b, std::int64_t s,
                                  std::int64_t first, Turns<T>& turns) {
  read_table_turns<T>(p, b, s, turns,
                      [&](const void* table, std::int64_t row, std::int64_t, auto& numbers) {
                        read_chunks<T>(table, p.table_dtype, row + first, numbers);
                      });
}

// The same of a table of T, or of float32 beside 16 bits, whose rows may start anywhere.
template <class T, int kPairs, class Pair>
__device__ inline void read_turns_by_element(const RopeProblem& p, std::int64_t b, std::int64_t s,
                                             Pair pair, Turns<T, kPairs>& turns) {
  const bool is_float = sizeof(T) == 2 && p.table_dtype == DType::kFloat32;
  const auto read = [&](const void* table, std::int64_t row, std::int64_t stride, auto& numbers) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const std::int64_t from = row + pair(i) * stride;
      if (is_float) {
        numbers[i] = static_cast<const float*>(table)[from];
      } else {
        numbers[i] = to_number(static_cast<const T*>(table)[from]);
      }
    }
  };
  read_table_turns<T>(p, b, s, turns, read);
}

}  // namespace membound::cuda
