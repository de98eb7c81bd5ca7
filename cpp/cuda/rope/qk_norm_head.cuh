// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// One head in the registers of a few lanes of a warp: lane l has the 16-byte vectors l and H + l of
// 2 * H. In a head that rotates as a whole these hold whole pairs. The reduction tree is that of
// rms_norm for a row of up to 64 vectors, where lane l of L has vectors l and L + l; L is H or the
// next power of two. The generic form reads element by element and sums in the same tree.
#include "core/safe_scale.hpp"
#include "cuda/norm/rstd.cuh"
#include "cuda/rope/rope_kernels.cuh"
#include "cuda/row/affine.cuh"
#include "cuda/row/element.cuh"
#include "ops/qk_norm_rope.hpp"

namespace membound::cuda {

// Constants for computing rstd (see set_rstd).
template <class A>
struct QkNorm {
  A inverse_cols, eps;
  SafeRange<A> trusted;
  int sqrt_eps_exponent;
  double exact_eps;
};

// rstd of a head, and the scale that its values were multiplied by first: 1 unless their squares
// are out of range.
template <class A>
struct HeadScale {
  A scale, rstd;
};

// Two vectors of a head.
template <class T>
struct HeadPart {
  Numbers<T> first, second;
};

template <class T>
__device__ inline HeadPart<T> unpack_part(const uint4& first, const uint4& second) {
  HeadPart<T> part{unpack<T>(first), unpack<T>(second)};
  // Unpacks now, so that the next head's vectors can be loaded into the same registers.
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    asm volatile("" : "+f"(part.first.at[i]), "+f"(part.second.at[i])::"memory");
  }
  return part;
}

// Overflow-safe path, for heads whose plain sum of squares is out of range: values are multiplied
// by `scale`, and rstd is 1 / sqrt(sum of scaled squares * inverse_cols + scaled_eps). The scale is
// 1 if the head is `trusted`.
template <class A>
struct SafePath {
  A scale, scaled_eps;
};
template <class A>
__device__ __noinline__ SafePath<A> safe_path_of(const QkNorm<A>& norm, A largest, bool trusted) {
  const int exponent = trusted ? 0 : row_exponent(norm, largest);
  return {power_of_two(exponent, A()), static_cast<A>(ldexp(norm.exact_eps, 2 * exponent))};
}

// Lanes that have a head.
struct HeadLanes {
  int lane, lanes, half;  // lanes from `half` on have no vectors

  __device__ bool holds() const { return lane < half; }
  // Sum over a head, given the terms of a lane's two vectors. All lanes of the warp must take part.
  template <class A>
  __device__ A sum(A first, A second) const {
    if (half != lanes) {  // term c moves to lane c % lanes
      const A behind = __shfl_sync(0xffffffffu, second, lane - half, lanes);
      const A last = __shfl_sync(0xffffffffu, second, lane + lanes - half, lanes);
      first = lane < half ? first : behind;
      second = lane + lanes < 2 * half ? last : A(0);
    }
    first += second;
    // reduce_lanes, unrolled; most heads skip the first steps.
    if (lanes == kWarpLanes) first += shuffle_xor(first, 16);
    if (lanes > 8) first += shuffle_xor(first, 8);
#pragma unroll
    for (int offset = 4; offset > 0; offset /= 2) {
      const A other = shuffle_xor(first, offset);
      if (offset < lanes) first += other;
    }
    return first;
  }
};

// Overflow-safe path of a head; the other heads of the warp take part. Arguments are passed by
// value, because a reference would put the vectors into local memory.
template <class T>
__device__ __noinline__ HeadScale<accumulate_t<T>> scaled_head(QkNorm<accumulate_t<T>> norm,
                                                               uint4 first, uint4 second,
                                                               HeadLanes head, bool trusted) {
  using A = accumulate_t<T>;
  A largest = 0, before = 0, sum = 0;
  SafePath<A> safe_path{1, 0};
#pragma unroll 1
  for (int round = 0; round < 4; ++round) {  // both vectors, twice: maximum, then sum
    Numbers<T> x = unpack<T>(round % 2 == 0 ? first : second);
    if (round == 2)
      safe_path = safe_path_of(norm, reduce_lanes(largest, head.lanes, Largest()), trusted);
    if (round < 2) {
      largest = Largest()(largest, largest_magnitude<T>(x));
    } else {
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) x.at[i] *= safe_path.scale;
      before = sum;
      sum = sum_of_squares<T>(x);
    }
  }
  sum = head.sum(before, sum);
  return {safe_path.scale, inverse_sqrt(sum * norm.inverse_cols + safe_path.scaled_eps)};
}

template <class T>
__device__ inline void multiply(HeadPart<T>& x, accumulate_t<T> by) {
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    x.first.at[i] = product(x.first.at[i], by);
    x.second.at[i] = product(x.second.at[i], by);
  }
}

// rstd of the head with vectors x, which are scaled if out of range. All lanes of the warp must
// take part.
template <class T>
__device__ inline HeadScale<accumulate_t<T>> scale_head(const QkNorm<accumulate_t<T>>& norm,
                                                        HeadPart<T>& x, const HeadLanes& head) {
  using A = accumulate_t<T>;
  const A sum = head.sum(sum_of_squares<T>(x.first), sum_of_squares<T>(x.second));
  const bool trusted = is_trusted(norm, sum);
  if (__any_sync(0xffffffffu, !trusted)) [[unlikely]] {
    const HeadScale<A> by = scaled_head<T>(norm, pack(x.first), pack(x.second), head, trusted);
    multiply<T>(x, by.scale);
    return by;
  }
  return {A(1), plain_rstd(norm, sum)};
}

template <class T>
__device__ inline void multiply(HeadPart<T>& x, const HeadPart<T>& by) {
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    x.first.at[i] = product(x.first.at[i], by.first.at[i]);
    x.second.at[i] = product(x.second.at[i], by.second.at[i]);
  }
}

template <class T>
__device__ inline void round_part(HeadPart<T>& x) {
  x.first = unpack<T>(pack(x.first));
  x.second = unpack<T>(pack(x.second));
}

// Index of the pair that is a lane's i-th.
template <class T>
__device__ inline std::int64_t pair_of_head(int i, const HeadLanes& head, bool interleaved) {
  constexpr int kHalf = kPack<T> / 2;
  if (!interleaved) return head.lane * kPack<T> + i;
  return (i < kHalf ? head.lane : head.half + head.lane) * kHalf + i % kHalf;
}
template <class T>
__device__ __noinline__ Rotations<T> rotations_of_head(const RopeProblem& p, std::int64_t b,
                                                       std::int64_t s, HeadLanes head,
                                                       int element) {
  const auto pair = [&](int i) { return pair_of_head<T>(i, head, p.interleaved); };
  Rotations<T> rotations;
  find_rotations_of<T>(p, b, s, pair, element, computes_rotations(p), rotations);
  return rotations;
}

// Reads cos or sin for one element of each interleaved pair in a lane's two vectors. The table row
// must be aligned to 16 bytes.
template <class T>
__device__ inline void read_half_vectors(const RopeTable& table, DType dtype, std::int64_t row,
                                         const HeadLanes& head, int element,
                                         accumulate_t<T> (&numbers)[kPack<T>]) {
  constexpr int kHalf = kPack<T> / 2;
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const std::int64_t at = row + (part * head.half + head.lane) * kHalf;
    if (table.second != 0) {
      accumulate_t<T> both[kPack<T>];
      read_vectors<T>(table.data, dtype, row + (part * head.half + head.lane) * kPack<T>, both);
      every_other<T>(both, element == 1, numbers + part * kHalf);
    } else if (sizeof(T) == 2 && dtype == DType::kFloat32) {
      const Numbers<float> some = unpack<float>(
          *reinterpret_cast<const uint4*>(static_cast<const float*>(table.data) + at));
#pragma unroll
      for (int i = 0; i < kHalf; ++i) numbers[part * kHalf + i] = some.at[i];
    } else {
      const uint2 both = *reinterpret_cast<const uint2*>(static_cast<const T*>(table.data) + at);
      const Numbers<T> some = unpack<T>(uint4{both.x, both.y, 0u, 0u});
#pragma unroll
      for (int i = 0; i < kHalf; ++i) numbers[part * kHalf + i] = some.at[i];
    }
  }
}

// Reads cos and sin for one element of each pair in a lane's two vectors. in_vectors: read_vectors
// can read the table.
template <class T>
__device__ inline void read_element_rotations(const RopeProblem& p, bool in_vectors, std::int64_t b,
                                              std::int64_t s, const HeadLanes& head, int element,
                                              Rotations<T>& rotations) {
  if (in_vectors) {
    read_table_rotations<T>(
        p, b, s, rotations,
        [&](const RopeTable& table, std::int64_t row, bool sine, auto& numbers) {
          const int of = sine ? sine_of(p, element) : element;
          if (p.interleaved) {
            read_half_vectors<T>(table, p.table_dtype, row, head, of, numbers);
          } else {
            read_vectors<T>(table.data, p.table_dtype,
                            row + head.lane * kPack<T> + of * table.second, numbers);
          }
        });
  } else {
    rotations = rotations_of_head<T>(p, b, s, head, element);
  }
  apply_inverse<T>(rotations, p.inverse);
}

// Reads cos and sin of the pairs in a lane's two vectors. If the second elements have table columns
// of their own, their rotations are stored to `seconds`.
template <class T, class Seconds>
__device__ inline void read_head_rotations(const RopeProblem& p, bool in_vectors, std::int64_t b,
                                           std::int64_t s, const HeadLanes& head,
                                           Rotations<T>& rotations, Seconds& seconds) {
  if (!head.holds()) return fill_rotations<T>(rotations, 1, 0);
  if (p.has_column_each()) {
    read_element_rotations<T>(p, in_vectors, b, s, head, 1, rotations);
    seconds.store(rotations);
  }
  read_element_rotations<T>(p, in_vectors, b, s, head, 0, rotations);
}

// --- generic form: one warp per head ---

// Out of line: inlined at every use, these would make kernels of 50 KB.
template <class A>
__device__ __noinline__ A any_number(const void* from, DType dtype, std::int64_t index) {
  return read_number<A>(from, dtype, index);
}
template <class A>
__device__ __noinline__ void store_number(void* to, DType dtype, std::int64_t index, A value) {
  write_number(to, dtype, index, value);
}
template <class A>
__device__ __noinline__ A round_number(A value, DType dtype) {
  if constexpr (sizeof(A) == 4) {
    if (dtype == DType::kFloat16) return round_to<Float16>(value);
    if (dtype == DType::kBFloat16) return round_to<BFloat16>(value);
  }
  return value;
}

__device__ inline int pack_of(DType dtype) {
  return dtype == DType::kFloat64 ? 2 : dtype == DType::kFloat32 ? 4 : 8;
}

// A head of any strides.
struct StridedHead {
  const void* data;
  std::int64_t at, stride;
  DType dtype;

  template <class A>
  __device__ A number(std::int64_t element) const {
    return any_number<A>(data, dtype, at + element * stride);
  }
};

// Sums term(element, sum) over a head in the tree in which rms_norm sums as many vectors (at most
// 512), where each vector has two chains. Every lane gets the result.
template <class A, class Term>
__device__ inline A sum_elements(std::int64_t head_dim, int pack, Term term) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int vectors = static_cast<int>((head_dim + pack - 1) / pack);
  int threads = 1;  // of a row in rms_norm, each with two vectors
  if (vectors <= 2 * kWarpLanes) {
#pragma unroll 1
    while (2 * threads < vectors) threads *= 2;
  } else {
    threads = (vectors + 4 * kWarpLanes - 1) / (4 * kWarpLanes) * (2 * kWarpLanes);
  }
  A of_warps = 0;  // lane w has the sum of warp w
#pragma unroll 1
  for (int first = 0; first < threads; first += kWarpLanes) {
    A both = 0;
#pragma unroll 1
    for (int vector = first + lane; vector < 2 * threads; vector += threads) {
      A even = 0, odd = 0;
      const int end = first + lane < threads ? (vector + 1) * pack : 0;
#pragma unroll 1
      for (int element = vector * pack; element < end && element < head_dim; ++element) {
        A& chain = element % 2 == 0 ? even : odd;
        chain = term(element, chain);
      }
      both += even + odd;
    }
    both = reduce_warp(both, Sum());
    if (lane == first / kWarpLanes) of_warps = both;
  }
#pragma unroll
  for (int offset = 1; offset < 8; offset *= 2) of_warps += shuffle_xor(of_warps, offset);
  return __shfl_sync(0xffffffffu, of_warps, 0);
}

// All lanes of the warp must take part.
template <class A>
__device__ __noinline__ HeadScale<A> strided_head_scale(const QkNorm<A>& norm, const StridedHead& x,
                                                        std::int64_t head_dim) {
  SafePath<A> safe_path{1, norm.eps};
#pragma unroll 1
  for (bool again = false;; again = true) {
    const A sum = sum_elements<A>(head_dim, pack_of(x.dtype), [&](std::int64_t element, A before) {
      const A value = product(x.number<A>(element), safe_path.scale);
      return fma(value, value, before);
    });
    if (again || is_trusted(norm, sum)) {
      return {safe_path.scale, inverse_sqrt(sum * norm.inverse_cols + safe_path.scaled_eps)};
    }
    A largest = 0;
#pragma unroll 1
    for (std::int64_t i = threadIdx.x % kWarpLanes; i < head_dim; i += kWarpLanes) {
      largest = Largest()(largest, fabs(x.number<A>(i)));
    }
    safe_path = safe_path_of(norm, reduce_warp(largest, Largest()), /*trusted=*/false);
  }
}

// One weight with the offset added; 1 without a weight.
template <class A>
__device__ inline A weight_number(const AffineArray<A>& weight, std::int64_t head,
                                  std::int64_t element) {
  if (weight.data == nullptr) return A(1);
  const A value =
      any_number<A>(weight.data, weight.dtype, head * weight.head_stride + element * weight.stride);
  return value + weight.offset;
}

}  // namespace membound::cuda
