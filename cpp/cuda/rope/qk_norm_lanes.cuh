// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// One head with one 16-byte vector per lane, for heads of any alignment: the two elements of a pair
// are exchanged through shared memory. The reduction tree is that of rms_norm for a row of up to 64
// vectors, as in the form with two vectors per lane.
#include "cuda/rope/qk_norm_head.cuh"
#include "cuda/rope/qk_norm_lanes_config.hpp"

namespace membound::cuda {

// Alignment of all heads: whole 16-byte vectors, 8-byte half vectors, or single elements of any
// stride.
enum class VectorAccess { kWhole, kHalves, kElements };

// The vector of a lane. Each head has a power of two of butterfly lanes, which come first in the
// warp; they are followed by the lanes of the remaining vectors, whose terms are first added to
// those of the butterfly lanes.
struct HeadVector {
  int head, vector;     // head: within the warp
  int summing, behind;  // vectors of the head in butterfly lanes, and the others
  int front;            // butterfly lanes of the warp
  bool holds;

  __device__ explicit HeadVector(const tuning::WarpHeads& all)
      : summing(all.summing), behind(all.vectors - all.summing), front(all.heads * all.summing) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
    if (lane < front) {
      head = lane >> log2_of(summing);
      vector = lane & (summing - 1);
    } else {
      head = static_cast<int>((lane - front) * all.behind_magic >> 16);
      vector = summing + lane - front - head * behind;
    }
    holds = head < all.heads;
  }
  // Lane of another vector of the same head.
  __device__ int lane_of(int other) const {
    return other < summing ? head * summing + other : front + head * behind + other - summing;
  }
  // Reduces over all vectors of a head; every lane of the head gets the result. All lanes of the
  // warp must take part.
  template <class A, class Combine>
  __device__ A combined(A own, Combine combine) const {
    const bool adds = vector < behind;
    const A other = shuffle_from(own, adds ? lane_of(summing + vector) : 0);
    if (adds) own = combine(own, other);
#pragma unroll
    for (int offset = kWarpLanes / 2; offset > 0; offset /= 2) {
      if (offset < summing) own = combine(own, shuffle_xor(own, offset));
    }
    return shuffle_from(own, holds ? lane_of(0) : 0);
  }
};

// Loads the first `count` elements of a vector and zeros for the rest; whole vectors have all or
// none.
template <class T>
__device__ inline uint4 load_vector(const T* from, std::int64_t stride, int count,
                                    VectorAccess access) {
  if (access == VectorAccess::kWhole) return count > 0 ? read_vector(from) : uint4{0, 0, 0, 0};
  if (access == VectorAccess::kHalves) {
    const uint2* halves = with_evict_last(reinterpret_cast<const uint2*>(from));
    const uint2 low = count > 0 ? halves[0] : uint2{0, 0};
    const uint2 high = count > kPack<T> / 2 ? halves[1] : uint2{0, 0};
    return {low.x, low.y, high.x, high.y};
  }
  VectorOf<T> loaded;
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    if (i < count) loaded.elements[i] = from[i * stride];
  }
  return loaded.vector;
}
template <class T>
__device__ inline void store_vector(T* to, std::int64_t stride, int count, VectorAccess access,
                                    const uint4& vector) {
  if (access == VectorAccess::kWhole) {
    if (count > 0) *reinterpret_cast<uint4*>(to) = vector;
  } else if (access == VectorAccess::kHalves) {
    uint2* const halves = reinterpret_cast<uint2*>(to);
    if (count > 0) halves[0] = {vector.x, vector.y};
    if (count > kPack<T> / 2) halves[1] = {vector.z, vector.w};
  } else {
    VectorOf<T> stored;
    stored.vector = vector;
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      if (i < count) to[i * stride] = stored.elements[i];
    }
  }
}

// Reads up to kPack numbers of type V that are `stride` apart.
template <class T, class V>
__device__ inline void read_numbers(const V* from, std::int64_t stride, int count,
                                    Numbers<T>& numbers) {
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i, from += stride) {
    if (i < count) numbers.at[i] = to_number(*from);
  }
}

// The weight of a lane's vector with the offset added; ones without a weight. common: the weight
// has type T, or float32 with 16-bit T.
template <class T>
__device__ inline Numbers<T> lane_weight(const AffineArray<accumulate_t<T>>& weight, bool common,
                                         std::int64_t head, int first, int count) {
  Numbers<T> numbers;
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) numbers.at[i] = 1;
  if (weight.data == nullptr) return numbers;
  const std::int64_t from = head * weight.head_stride + first * weight.stride;
  if (!common) {
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      if (i >= count) break;
      numbers.at[i] =
          any_number<accumulate_t<T>>(weight.data, weight.dtype, from + i * weight.stride);
    }
  } else if (weight.is_float) {
    read_numbers(static_cast<const float*>(weight.data) + from, weight.stride, count, numbers);
  } else {
    read_numbers(static_cast<const T*>(weight.data) + from, weight.stride, count, numbers);
  }
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) numbers.at[i] += weight.offset;
  return numbers;
}
template <class T>
__device__ __noinline__ Numbers<T> lane_weight_of_head(const AffineArray<accumulate_t<T>>& weight,
                                                       bool common, std::int64_t head, int first,
                                                       int count) {
  return lane_weight<T>(weight, common, head, first, count);
}

// Overflow-safe path of a head; the other heads of the warp take part.
template <class T>
__device__ __noinline__ HeadScale<accumulate_t<T>> scaled_vector(QkNorm<accumulate_t<T>> norm,
                                                                 uint4 vector, HeadVector mine,
                                                                 bool trusted) {
  Numbers<T> x = unpack<T>(vector);
  const SafePath<accumulate_t<T>> safe_path =
      safe_path_of(norm, mine.combined(largest_magnitude<T>(x), Largest()), trusted);
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) x.at[i] *= safe_path.scale;
  const accumulate_t<T> sum = mine.combined(sum_of_squares<T>(x), Sum());
  return {safe_path.scale, inverse_sqrt(sum * norm.inverse_cols + safe_path.scaled_eps)};
}

template <class T>
__device__ inline void multiply(Numbers<T>& x, accumulate_t<T> by) {
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) x.at[i] = product(x.at[i], by);
}
template <class T>
__device__ inline void multiply(Numbers<T>& x, const Numbers<T>& by) {
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) x.at[i] = product(x.at[i], by.at[i]);
}

// Unpacks a vector now, so that its registers are free for the next load.
template <class T>
__device__ inline Numbers<T> unpack_now(const uint4& vector) {
  Numbers<T> numbers = unpack<T>(vector);
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) asm volatile("" : "+f"(numbers.at[i])::"memory");
  return numbers;
}

// rstd of some heads at once, whose vectors x are scaled if out of range. All lanes of the warp
// must take part.
template <class T, int kHeads>
__device__ inline void scale_vectors(const QkNorm<accumulate_t<T>>& norm, Numbers<T> (&x)[kHeads],
                                     const HeadVector& mine,
                                     HeadScale<accumulate_t<T>> (&by)[kHeads]) {
  using A = accumulate_t<T>;
  A sums[kHeads];
  if constexpr (kHeads == 2) {
    const Pair<A> own(sum_of_squares<T>(x[0]), sum_of_squares<T>(x[1]));
    const Pair<A> both = mine.combined(own, Sum());
    sums[0] = both.a, sums[1] = both.b;
  } else {
    static_assert(kHeads == 1);
    sums[0] = mine.combined(sum_of_squares<T>(x[0]), Sum());
  }
  bool trusted = true;
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    trusted = trusted && is_trusted(norm, sums[i]);
    by[i] = {A(1), plain_rstd(norm, sums[i])};
  }
  if (!__any_sync(0xffffffffu, !trusted)) [[likely]]
    return;
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    by[i] = scaled_vector<T>(norm, pack(x[i]), mine, is_trusted(norm, sums[i]));
    multiply<T>(x[i], by[i].scale);
  }
}

// Shared memory in which a warp exchanges elements: up to two heads, [element of a vector][lane],
// which has no bank conflicts, followed by a zero.
template <class T>
struct HeadExchange {
  static constexpr int kZero = kPack<T> * kWarpLanes;
  accumulate_t<T> at[2][kZero + 1];
};

// The pair of each of a lane's elements, and which of the pair's two elements it is.
struct LaneElements {
  int first, pairs;  // first: of the lane's, among the rotary elements
  bool interleaved, holds;

  __device__ bool rotates(int i) const {
    return holds && static_cast<unsigned>(first + i) < 2u * pairs;
  }
  __device__ int at(int i) const { return rotates(i) ? first + i : 0; }
  __device__ int element(int i) const { return interleaved ? at(i) & 1 : at(i) >= pairs; }
  __device__ int pair(int i) const { return interleaved ? at(i) / 2 : at(i) - element(i) * pairs; }
};
template <class T>
__device__ __noinline__ Rotations<T> rotations_of_elements(const RopeProblem& p, std::int64_t b,
                                                           std::int64_t s, LaneElements mine) {
  Rotations<T> rotations;
  find_rotations<T>(
      p, b, s, [=](int i) { return std::int64_t{mine.pair(i)}; },
      [=](int i) { return mine.element(i); }, rotations);
  return rotations;
}

// Rotation of a lane's elements: x * cos + partner * sin, where sin has the sign. The partner of an
// element that does not rotate is the zero.
template <class T>
struct LaneRotations {
  accumulate_t<T> cos[kPack<T>], sin[kPack<T>];
  int partner[kPack<T>];

  // Each lane finds the angles of every lanes-th pair of its token and shares them through shared
  // memory. If the table has a column per element, each lane finds its own.
  __device__ void find(const RopeProblem& p, bool common_table, std::int64_t b, std::int64_t s,
                       const HeadVector& mine, int lanes, HeadExchange<T>& exchange) {
    constexpr int kMost = kPack<T> / 2;  // a head has at most half as many pairs as elements
    const int pairs = static_cast<int>(p.rotary_dim / 2);
    const auto pair = [&](int i) {
      const int number = mine.vector + i * lanes;
      return number < pairs ? number : 0;
    };
    const bool each = p.has_column_each();
    Rotations<T, kMost> rotations{};
    if (pairs > 0 && common_table && !each) {
      read_rotations_by_element<T>(p, b, s, pair, [](int) { return 0; }, rotations);
    } else if (pairs > 0 && !each) {
      rotations = rotations_from<T, kMost>(p, b, s, mine.vector, lanes, pairs, 0);
    }
    apply_inverse<T>(rotations, p.inverse);
    const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
    if (lane < 2) exchange.at[lane][HeadExchange<T>::kZero] = 0;
    const int summing_lane = mine.lane_of(0),
              behind_lane = mine.lane_of(mine.summing) - mine.summing;
    const auto slot = [&](int element) {
      const int vector = element / kPack<T>;
      return element % kPack<T> * kWarpLanes + vector +
             (vector < mine.summing ? summing_lane : behind_lane);
    };
    // Position of the pair's first element.
    const int offset = static_cast<int>(p.rotary_offset);
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      const int number = mine.vector + i * lanes;
      if (!mine.holds || number >= pairs) continue;
      const int to = slot(offset + (p.interleaved ? 2 * number : number));
      exchange.at[0][to] = rotations.cos[i];
      exchange.at[1][to] = rotations.sin[i];
    }
    __syncwarp();
    const int apart = p.interleaved ? 1 : pairs;
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      const int element = mine.vector * kPack<T> + i, at = element - offset;
      const bool rotates_here = mine.holds && static_cast<unsigned>(at) < 2u * pairs;
      const bool second = p.interleaved ? at & 1 : at >= pairs;
      partner[i] =
          rotates_here ? slot(second ? element - apart : element + apart) : HeadExchange<T>::kZero;
      const int from = second ? partner[i] : rotates_here ? i * kWarpLanes + lane : partner[i];
      const accumulate_t<T> found = exchange.at[1][from];
      cos[i] = rotates_here ? exchange.at[0][from] : accumulate_t<T>(1);
      sin[i] = rotates_here && second ? found : -found;
    }
    __syncwarp();
    if (each) {
      find_own(p, common_table, b, s,
               {mine.vector * kPack<T> - offset, pairs, p.interleaved, mine.holds});
    }
  }
  __device__ void find_own(const RopeProblem& p, bool common_table, std::int64_t b, std::int64_t s,
                           const LaneElements& mine) {
    Rotations<T> own;
    if (common_table) {
      read_rotations_by_element<T>(
          p, b, s, [&](int i) { return mine.pair(i); }, [&](int i) { return mine.element(i); },
          own);
    } else {
      own = rotations_of_elements<T>(p, b, s, mine);
    }
    apply_inverse<T>(own, p.inverse);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      if (!mine.rotates(i)) continue;
      cos[i] = own.cos[i];
      sin[i] = mine.element(i) == 1 ? own.sin[i] : -own.sin[i];
    }
  }

  // All lanes of the warp must take part, and synchronise between this and the next call.
  template <int kHeads>
  __device__ void rotate(Numbers<T> (&x)[kHeads], HeadExchange<T>& exchange) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
#pragma unroll
    for (int head = 0; head < kHeads; ++head) {
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        exchange.at[head][i * kWarpLanes + lane] = x[head].at[i];
      }
    }
    __syncwarp();
#pragma unroll
    for (int head = 0; head < kHeads; ++head) {
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        x[head].at[i] =
            product(x[head].at[i], cos[i]) + product(exchange.at[head][partner[i]], sin[i]);
      }
    }
  }
};

}  // namespace membound::cuda
