// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Exponentials of softmax and cross entropy, and the merge of a row's partial sums. Each warp takes
// exponentials relative to its own maximum logit, so that one barrier suffices for both the maximum
// and the sum (online softmax).
#include "cuda/row/register_part.cuh"
#include "cuda/softmax/exponential.cuh"

namespace membound::cuda {

// Exponentials of a softmax. For 16-bit storage they use ex2.approx, accurate to 2^-22 plus the
// rounding of the exponent; sums are scaled by 2^kShift, so that bfloat16's smallest numbers are
// normal in float32.
template <class T>
struct SoftmaxPower {
  using A = accumulate_t<T>;
  static constexpr int kShift = sizeof(T) == 2 ? 8 : 0;
  static constexpr A kLogOfShift = static_cast<A>(kShift * 0.6931471805599453);
  // Multiplies logits that have no scale.
  static constexpr A kPlain = static_cast<A>(sizeof(T) == 2 ? 1.4426950408889634 : 1);
  static __host__ __device__ A lowest() { return -static_cast<A>(INFINITY); }

  // e^(exponent * slope / kPlain).
  static __device__ A of(A exponent, A slope = kPlain) {
    if constexpr (sizeof(T) == 2) return power_of_2(product(exponent, slope));
    return of_e(product(exponent, slope));
  }
  // 2^kShift times that.
  static __device__ A large(A exponent, A slope) {
    if constexpr (sizeof(T) == 2) return power_of_2(fmaf(exponent, slope, float{kShift}));
    return of_e(product(exponent, slope));
  }

  // The shift of the exponents: the maximum logit, or 0 if all logits are -infinity.
  static __device__ A exponent_shift(A top) { return top == lowest() ? A(0) : top; }

  static __device__ float power_of_2(float exponent) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
    return power;
  }

 private:
  static __device__ float of_e(float exponent) { return expf(exponent); }
  static __device__ double of_e(double exponent) { return exponential(exponent); }
};

// Maximum of logits; NaN is ignored.
struct Highest {
  template <class Value>
  static __device__ Value zero() {
    return -static_cast<Value>(INFINITY);
  }
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
  __device__ double operator()(double a, double b) const { return fmax(a, b); }
};

template <class T>
__device__ inline accumulate_t<T> highest(const Numbers<T>& logits) {
  return reduce_array<kPack<T>>(logits.at, Highest());
}
// Maximum over all vectors of a thread; 16-bit elements are compared in pairs.
template <class T, int kVectors>
__device__ inline accumulate_t<T> highest(const uint4 (&raw)[kVectors]) {
  auto top = SoftmaxPower<T>::lowest();
  if constexpr (sizeof(T) == 2) {
    using Two = std::conditional_t<kDTypeOf<T> == DType::kFloat16, __half2, __nv_bfloat162>;
    Two both = reinterpret_cast<const Two&>(raw[0].x);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const std::uint32_t words[4] = {raw[i].x, raw[i].y, raw[i].z, raw[i].w};
#pragma unroll
      for (int word = i == 0; word < 4; ++word) {
        both = __hmax2(both, reinterpret_cast<const Two&>(words[word]));
      }
    }
    const auto bits = reinterpret_cast<const std::uint32_t&>(both);
    top = Highest()(top, to_number(T{static_cast<std::uint16_t>(bits)}));
    return Highest()(top, to_number(T{static_cast<std::uint16_t>(bits >> 16)}));
  } else {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) top = Highest()(top, highest(unpack<T>(raw[i])));
    return top;
  }
}

// Maximum over the lanes of a narrow row or of a warp; inputs are not NaN.
__device__ inline double highest_of_lanes(double mine, int lanes) {
  return reduce_lanes(mine, lanes < kWarpLanes ? lanes : kWarpLanes, Highest());
}
__device__ inline float highest_of_lanes(float mine, int lanes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if (lanes >= kWarpLanes) {  // as integers in the same order
    const auto ordered = [](int bits) { return bits ^ ((bits >> 31) & 0x7fffffff); };
    const int found = __reduce_max_sync(0xffffffffu, ordered(__float_as_int(mine)));
    return __int_as_float(ordered(found));
  }
#endif
  return reduce_lanes(mine, lanes < kWarpLanes ? lanes : kWarpLanes, Highest());
}

// Replaces the logits of a vector by their exponentials; returns the sum.
template <class T>
__device__ inline accumulate_t<T> exponentiate(Numbers<T>& logits, accumulate_t<T> top,
                                               accumulate_t<T> slope) {
  const accumulate_t<T> base = SoftmaxPower<T>::exponent_shift(top);
#pragma unroll
  for (int j = 0; j < kPack<T>; ++j) {
    logits.at[j] = SoftmaxPower<T>::large(logits.at[j] - base, slope);
  }
  return reduce_array<kPack<T>>(logits.at, Sum());
}

// exp(logit - reference) * 2^shift. With kManyVectors it is one fma and one ex2.approx, logit *
// slope - reference * slope: rounding the offset multiplies all powers by one factor, known exactly
// (factor()) and within 2^16 up to kMaxScaledReference. Beyond, 16-bit numbers are at least 2^20
// apart: a power is 1 or 0 and log(sum) is lost against the logit, so the slope may be 1, which
// rounds nothing. With kFewVectors, short of registers, the reference is subtracted first (cross
// entropy bfloat16 8192 x 8192: 81 -> 71 us).
template <class T>
class ShiftedExponentials {
  using A = accumulate_t<T>;
  static constexpr float kMaxScaledReference = 1 << 28;

 public:
  // vectors: per thread.
  __device__ ShiftedExponentials(A reference, int shift, int vectors)
      : reference_(reference),
        shift_(shift),
        single_fma_(sizeof(T) == 2 && vectors != tuning::kFewVectors) {
    if constexpr (sizeof(T) == 2) {
      if (!single_fma_) return;
      slope_ = fabsf(reference) > kMaxScaledReference ? 1.0f : SoftmaxPower<T>::kPlain;
      offset_ = fmaf(-reference, slope_, static_cast<float>(shift));
      const float excess = fmaf(reference, slope_, offset_) - static_cast<float>(shift);
      if (isfinite(reference)) factor_ = SoftmaxPower<T>::of(-excess, 1.0f);
    }
  }
  __device__ A of(A logit) const {
    if constexpr (sizeof(T) == 2) {
      if (single_fma_) return SoftmaxPower<T>::power_of_2(fmaf(logit, slope_, offset_));
    }
    return shift_ != 0 ? SoftmaxPower<T>::large(logit - reference_, SoftmaxPower<T>::kPlain)
                       : SoftmaxPower<T>::of(logit - reference_);
  }
  // Multiplies the exponentials, or their sum, to undo the rounding of the offset.
  __device__ A factor() const { return factor_; }
  // Sum of a vector's exponentials.
  __device__ A sum(const Numbers<T>& logits) const {
    Numbers<T> powers;
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) powers.at[j] = of(logits.at[j]);
    return reduce_array<kPack<T>>(powers.at, Sum());
  }

 private:
  A reference_, slope_ = 1, offset_ = 0, factor_ = 1;
  int shift_;
  bool single_fma_;
};
// Exponentials as they are summed over a part of a row.
template <class T>
__device__ inline ShiftedExponentials<T> exponentials_below_top(accumulate_t<T> top, int vectors) {
  return {SoftmaxPower<T>::exponent_shift(top), SoftmaxPower<T>::kShift, vectors};
}
// The sum of exponentials over all vectors of a thread.
template <class T, int kVectors>
__device__ inline accumulate_t<T> sum_of_powers(const uint4 (&raw)[kVectors], accumulate_t<T> top) {
  const ShiftedExponentials<T> powers = exponentials_below_top<T>(top, kVectors);
  accumulate_t<T> sum = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) sum += powers.sum(unpack<T>(raw[i]));
  return product(sum, powers.factor());
}

// Merges up to kMergedParts partial results: returns the maximum logit and the sum of exponentials
// relative to it. Called by whole warps; each half warp holds all the parts.
inline constexpr int kMergedParts = tuning::kSoftmaxGroup;
static_assert(kPartWarps <= kMergedParts);
template <class T>
__device__ inline Pair<accumulate_t<T>> merged(const Pair<accumulate_t<T>>* parts, int count,
                                               accumulate_t<T> slope = SoftmaxPower<T>::kPlain) {
  const int lane = static_cast<int>(threadIdx.x) % kMergedParts;
  Pair<accumulate_t<T>> part(SoftmaxPower<T>::lowest(), 0);
  if (lane < count) part = parts[lane];
  const auto top = highest_of_lanes(part.a, kWarpLanes);
  const auto power = SoftmaxPower<T>::of(part.a - SoftmaxPower<T>::exponent_shift(top), slope);
  return {top, reduce_lanes(product(part.b, power), kMergedParts, Sum())};
}
// Merges the threads' results of one part. top: the maximum of the thread's warp.
template <class T>
__device__ inline Pair<accumulate_t<T>> merged_lanes(
    const PartPosition& position, accumulate_t<T> top, accumulate_t<T> sum, int round,
    accumulate_t<T> slope = SoftmaxPower<T>::kPlain) {
  if (position.lanes <= kWarpLanes) return {top, reduce_lanes(sum, position.lanes, Sum())};
  const Pair<accumulate_t<T>> mine(top, reduce_warp(sum, Sum()));
  return merged<T>(position.of_warps(mine, round), position.lanes / kWarpLanes, slope);
}

// Merges the parts that one block processes sequentially as a cluster merges its own: kMergedParts
// at a time, where the result of one group is the first part of the next.
template <class T>
class PartGroup {
  using A = accumulate_t<T>;

 public:
  struct alignas(16) Shared {
    Pair<A> parts[kMergedParts];
  };
  __device__ PartGroup(Shared& shared, const PartPosition& position)
      : shared_(shared), position_(position) {}

  // Adds a part. Returns the merged result after the last one.
  __device__ Pair<A> with(const Pair<A>& part, bool last, A slope = SoftmaxPower<T>::kPlain) {
    if (position_.lane == 0) shared_.parts[count_] = part;
    if (++count_ < kMergedParts && !last) return part;
    __syncthreads();
    const Pair<A> whole = merged<T>(shared_.parts, count_, slope);
    __syncthreads();
    if (position_.lane == 0) shared_.parts[0] = whole;
    count_ = 1;
    return whole;
  }

 private:
  Shared& shared_;
  const PartPosition& position_;
  int count_ = 0;
};

// True if exponentials are kept, relative to the warp's maximum. 16-bit types would need twice the
// registers of the raw logits, so theirs are recomputed relative to the row's maximum.
template <class T>
inline constexpr bool kKeepsExponentials = sizeof(T) > 2;
template <class T>
__device__ inline accumulate_t<T> part_factor(accumulate_t<T> top, const Pair<accumulate_t<T>>& row,
                                              accumulate_t<T> slope) {
  if constexpr (!kKeepsExponentials<T>) return __fdividef(1.0f, row.b);
  return SoftmaxPower<T>::of(top - SoftmaxPower<T>::exponent_shift(row.a), slope) / row.b;
}

}  // namespace membound::cuda
