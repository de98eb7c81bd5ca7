// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// cos and sin of some pairs of one token, from a table or from frequencies.
#include "core/sincos.hpp"
#include "cuda/row/divider.hpp"
#include "cuda/row/element.cuh"
#include "ops/rope.hpp"

namespace membound::cuda {

template <class A>
struct Rotation {
  A cos, sin;
};

static __device__ __noinline__ std::int64_t wide_quotient(std::int64_t a, std::int64_t b) {
  return a / b;
}
__device__ inline std::int64_t quotient(std::int64_t number, const RowDivider& by) {
  return (number >> 31) == 0 ? by.quotient(number) : wide_quotient(number, by.extent);
}

// Source of the angles of a token's pairs on one axis.
struct AngleRow {
  enum Kind { kTable, kComputed, kNone, kOutOfRange } kind;
  std::int64_t cos, sin;  // row offsets in the tables; cos: also in freqs
  double position;        // multiplies freqs; 1 if freqs are angles
};

// Out of line, like all long code here: inlined at every use, it would make kernels of 60 KB.
static __device__ __noinline__ AngleRow angle_row(const RopeProblem& p, std::int64_t pair,
                                                  std::int64_t b, std::int64_t s) {
  const int axis = p.axes == 1 ? 0 : p.axis_of(pair);
  AngleRow row{AngleRow::kTable, 0, 0, 1.0};
  std::int64_t position = s;
  if (!p.own_rows && !p.where.find(axis, b, s, position)) {
    row.kind = AngleRow::kNone;
  } else if (p.has_rows_by_position() && (position < 0 || position >= p.positions)) {
    row.kind = AngleRow::kOutOfRange;
  } else if (p.cos.data == nullptr) {
    row.kind = AngleRow::kComputed;
    row.cos = p.freqs.at(axis, b, position);
    if (!p.freqs_are_angles) row.position = static_cast<double>(position);
  } else {
    row.cos = p.cos.at(axis, b, position);
    row.sin = p.sin.at(axis, b, position);
  }
  return row;
}

template <class A>
__device__ inline Rotation<A> computed_rotation(const RopeProblem& p, double position,
                                                double frequency) {
  Rotation<A> rotation;
  sincos_of(product(position, frequency), rotation.sin, rotation.cos);
  const A scaling = static_cast<A>(p.scaling);
  return {product(rotation.cos, scaling), product(rotation.sin, scaling)};
}

// The element of a pair, 0 or 1, whose sine an element takes: in the transpose the other one's.
__device__ inline int sine_of(const RopeProblem& p, int element) {
  return p.inverse ? 1 - element : element;
}

// Rotation of one element, 0 or 1, of a pair. Tables of the common dtypes are read in vectors
// instead.
template <class A>
__device__ __noinline__ Rotation<A> one_rotation(const RopeProblem& p, const AngleRow& row,
                                                 std::int64_t pair, int element) {
  const auto made = [&](int of) {
    const std::int64_t at = row.cos + pair * p.freqs.col_stride + of * p.freqs.second;
    return computed_rotation<A>(p, row.position,
                                read_number<double>(p.freqs.data, p.table_dtype, at));
  };
  const int sine = sine_of(p, element);
  switch (row.kind) {
    case AngleRow::kTable:
      return {read_number<A>(p.cos.data, p.table_dtype,
                             row.cos + pair * p.cos.col_stride + element * p.cos.second),
              read_number<A>(p.sin.data, p.table_dtype,
                             row.sin + pair * p.sin.col_stride + sine * p.sin.second)};
    case AngleRow::kComputed: {
      const Rotation<A> own = made(element);
      return {own.cos, p.freqs.second == 0 || sine == element ? own.sin : made(sine).sin};
    }
    case AngleRow::kNone: return {1, 0};
    default: {
      const A nan = static_cast<A>(__longlong_as_double(0x7ff8000000000000));
      return {nan, nan};
    }
  }
}

template <class T, int kPairs = kPack<T>>
struct Rotations {
  accumulate_t<T> cos[kPairs], sin[kPairs];
};

// Reads kPack numbers, float32 or T, of a row that is aligned to 16 bytes.
template <class T>
__device__ inline void read_vectors(const void* from, DType dtype, std::int64_t at,
                                    accumulate_t<T> (&numbers)[kPack<T>]) {
  if (sizeof(T) == 2 && dtype == DType::kFloat32) {
    const auto* vectors = reinterpret_cast<const uint4*>(static_cast<const float*>(from) + at);
#pragma unroll
    for (int half = 0; half < kPack<T> / kPack<float>; ++half) {
      const Numbers<float> some = unpack<float>(vectors[half]);
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
__device__ inline void fill_rotations(Rotations<T, kPairs>& rotations, accumulate_t<T> cos,
                                      accumulate_t<T> sin) {
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    rotations.cos[i] = cos;
    rotations.sin[i] = sin;
  }
}

// Finds the row of a table that is read in vectors, and reads the rotations by read(table, row,
// sine, numbers). Fully inlined: a call would wait for every load in flight (bfloat16, 40 heads of
// 128, 16384 tokens: 124 us with calls).
template <class T, int kPairs, class Read>
__device__ inline void read_table_rotations(const RopeProblem& p, std::int64_t b, std::int64_t s,
                                            Rotations<T, kPairs>& rotations, Read read) {
  std::int64_t position = s;
  if (!p.own_rows) {
    if (!p.where.find(0, b, s, position)) return fill_rotations<T>(rotations, 1, 0);
    if (position < 0 || position >= p.positions) {
      const auto nan = static_cast<accumulate_t<T>>(NAN);
      return fill_rotations<T>(rotations, nan, nan);
    }
  }
  read(p.cos, p.cos.at(0, b, position), /*sine=*/false, rotations.cos);
  read(p.sin, p.sin.at(0, b, position), /*sine=*/true, rotations.sin);
}

// True if compute_rotations can handle the call.
MEMBOUND_HOST_DEVICE inline bool computes_rotations(const RopeProblem& p) {
  return p.freqs.data != nullptr && !p.freqs_are_angles && p.axes == 1;
}
// True if compute_rotations_of_angles can. The transpose takes two angles per element if each
// element has its own.
__device__ inline bool computes_rotations_of_angles(const RopeProblem& p) {
  const bool is_wide = p.table_dtype == DType::kFloat32 || p.table_dtype == DType::kFloat64;
  return p.freqs_are_angles && is_wide && p.axes == 1 && (p.freqs.second == 0 || !p.inverse);
}

// Computes the rotations of some pairs by the angles numbers[i] * factor.
template <class T, int kPairs>
__device__ inline void compute_rotations_of(const RopeProblem& p, double factor,
                                            const double (&numbers)[kPairs],
                                            Rotations<T, kPairs>& rotations) {
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const Rotation<accumulate_t<T>> rotation =
        computed_rotation<accumulate_t<T>>(p, factor, numbers[i]);
    rotations.cos[i] = rotation.cos;
    rotations.sin[i] = rotation.sin;
  }
}
template <class T, int kPairs, class Pair>
__device__ inline void read_freqs(const RopeProblem& p, std::int64_t row, Pair pair,
                                  double (&numbers)[kPairs]) {
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const std::int64_t at = row + pair(i) * p.freqs.col_stride;
    numbers[i] = p.table_dtype == DType::kFloat64 ? static_cast<const double*>(p.freqs.data)[at]
                                                  : static_cast<const float*>(p.freqs.data)[at];
  }
}

// Rotations from frequencies on one axis. Inlined and unrolled, so that the latencies of
// independent sines overlap.
template <class T, int kPairs, class Pair>
__device__ inline void compute_rotations(const RopeProblem& p, std::int64_t b, std::int64_t s,
                                         Pair pair, Rotations<T, kPairs>& rotations) {
  double frequencies[kPairs];
  read_freqs<T>(p, 0, pair, frequencies);
  std::int64_t position = s;
  if (!p.where.find(0, b, s, position)) return fill_rotations<T>(rotations, 1, 0);
  compute_rotations_of<T>(p, static_cast<double>(position), frequencies, rotations);
}

// Rotations of one element of each pair, from float32 or float64 angles on one axis.
template <class T, int kPairs, class Pair>
__device__ inline void compute_rotations_of_angles(const RopeProblem& p, std::int64_t b,
                                                   std::int64_t s, Pair pair, int element,
                                                   Rotations<T, kPairs>& rotations) {
  const AngleRow row = angle_row(p, 0, b, s);
  if (row.kind != AngleRow::kComputed) {
    const Rotation<accumulate_t<T>> rotation = one_rotation<accumulate_t<T>>(p, row, 0, 0);
    return fill_rotations<T>(rotations, rotation.cos, rotation.sin);
  }
  double angles[kPairs];
  read_freqs<T>(p, row.cos + element * p.freqs.second, pair, angles);
  compute_rotations_of<T>(p, 1.0, angles, rotations);
}

// Rotations of some pairs one by one; the i-th is pair(i), for its element element(i), 0 or 1.
template <class T, int kPairs, class Pair, class Element>
__device__ inline void find_rotations(const RopeProblem& p, std::int64_t b, std::int64_t s,
                                      Pair pair, Element element, Rotations<T, kPairs>& rotations) {
#pragma unroll 1
  for (int i = 0; i < kPairs; ++i) {
    const Rotation<accumulate_t<T>> rotation =
        one_rotation<accumulate_t<T>>(p, angle_row(p, pair(i), b, s), pair(i), element(i));
    rotations.cos[i] = rotation.cos;
    rotations.sin[i] = rotation.sin;
  }
}

// The same for one element of every pair, unrolled if possible.
template <class T, int kPairs, class Pair>
__device__ inline void find_rotations_of(const RopeProblem& p, std::int64_t b, std::int64_t s,
                                         Pair pair, int element, bool made,
                                         Rotations<T, kPairs>& rotations) {
  if (made) {
    compute_rotations<T>(p, b, s, pair, rotations);
  } else if (computes_rotations_of_angles(p)) {
    compute_rotations_of_angles<T>(p, b, s, pair, element, rotations);
  } else {
    find_rotations<T>(p, b, s, pair, [=](int) { return element; }, rotations);
  }
}

template <class T, int kPairs>
__device__ inline void apply_inverse(Rotations<T, kPairs>& rotations, bool inverse) {
  const accumulate_t<T> sign = inverse ? -1 : 1;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) rotations.sin[i] = product(rotations.sin[i], sign);
}

// Rotations of the pairs first, first + step, ... below `end`; those from `end` on are unspecified.
// element: which of a pair's two.
template <class T, int kPairs = kPack<T>>
__device__ __noinline__ Rotations<T, kPairs> rotations_from(const RopeProblem& p, std::int64_t b,
                                                            std::int64_t s, std::int64_t first,
                                                            int step, std::int64_t end,
                                                            int element) {
  const auto pair = [=](int i) {
    const std::int64_t number = first + i * step;
    return number < end ? number : 0;
  };
  Rotations<T, kPairs> rotations;
  find_rotations_of<T>(p, b, s, pair, element, kPairs < kPack<T> && computes_rotations(p),
                       rotations);
  return rotations;
}

// Every other one of kPack numbers: the even or the odd ones.
template <class T>
__device__ inline void every_other(const accumulate_t<T> (&both)[kPack<T>], bool odd,
                                   accumulate_t<T>* numbers) {
#pragma unroll
  for (int i = 0; i < kPack<T> / 2; ++i) numbers[i] = odd ? both[2 * i + 1] : both[2 * i];
}

// Reads the rotations of kPack consecutive pairs from a table that read_vectors can read.
template <class T>
__device__ inline void read_rotations(const RopeProblem& p, std::int64_t b, std::int64_t s,
                                      std::int64_t first, Rotations<T>& rotations) {
  read_table_rotations<T>(p, b, s, rotations,
                          [&](const RopeTable& table, std::int64_t row, bool, auto& numbers) {
                            read_vectors<T>(table.data, p.table_dtype, row + first, numbers);
                          });
}

// The same for one element of each pair, if the table has a column per element.
template <class T>
__device__ inline void read_each_rotations(const RopeProblem& p, std::int64_t b, std::int64_t s,
                                           std::int64_t first, int element,
                                           Rotations<T>& rotations) {
  const auto read = [&](const RopeTable& table, std::int64_t row, bool sine, auto& numbers) {
    const int of = sine ? sine_of(p, element) : element;
    if (!p.interleaved) {
      return read_vectors<T>(table.data, p.table_dtype, row + first + of * table.second, numbers);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      accumulate_t<T> both[kPack<T>];
      read_vectors<T>(table.data, p.table_dtype, row + 2 * first + half * kPack<T>, both);
      every_other<T>(both, of == 1, numbers + half * (kPack<T> / 2));
    }
  };
  read_table_rotations<T>(p, b, s, rotations, read);
}

// The same for a table of T, or of float32 with 16-bit T, whose rows may be unaligned.
template <class T, int kPairs, class Pair, class Element>
__device__ inline void read_rotations_by_element(const RopeProblem& p, std::int64_t b,
                                                 std::int64_t s, Pair pair, Element element,
                                                 Rotations<T, kPairs>& rotations) {
  const bool is_float = sizeof(T) == 2 && p.table_dtype == DType::kFloat32;
  const auto read = [&](const RopeTable& table, std::int64_t row, bool sine, auto& numbers) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int of = sine ? sine_of(p, element(i)) : element(i);
      const std::int64_t from = row + pair(i) * table.col_stride + of * table.second;
      if (is_float) {
        numbers[i] = static_cast<const float*>(table.data)[from];
      } else {
        numbers[i] = to_number(static_cast<const T*>(table.data)[from]);
      }
    }
  };
  read_table_rotations<T>(p, b, s, rotations, read);
}

}  // namespace membound::cuda
