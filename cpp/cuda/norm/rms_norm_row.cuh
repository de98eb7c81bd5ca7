// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Parameters and per-vector arithmetic that all rms_norm kernels share.
#include <cstdint>

#include "core/layout.hpp"
#include "cuda/activation/silu.cuh"
#include "cuda/norm/centring.cuh"
#include "cuda/norm/rstd.cuh"
#include "cuda/row/affine.cuh"
#include "cuda/row/cluster.cuh"
#include "cuda/row/convert.cuh"
#include "cuda/row/heads.cuh"
#include "cuda/row/reader.cuh"
#include "cuda/row/reduce.cuh"
#include "cuda/row/thread_group.cuh"

namespace membound::cuda {

// Rounds of the exchange between the blocks of a row. The first give the sum of squares: one sum,
// or for centred rows two sums about the variance shift. If the result is not trusted, a round for
// the largest magnitude follows, then the scaled row's: its sum of squares, or its mean, sum of
// squares and the mean's correction.
template <Centring kCentring>
struct RoundsOf {
  static constexpr int kScaledLargest = kCentring == Centring::kNever ? 1 : 2;
  static constexpr int kScaledMoments = kScaledLargest + 1;
  static constexpr int kCount = kScaledMoments + (kCentring == Centring::kNever ? 1 : 3);
};

// Parameters of the norm kernels. Constant memory is cold at every launch and comes line by line,
// so the members that an aligned row needs are first and close together.
template <class Accumulate>
struct RmsNormParams {
  const void* x;
  AffineArray<Accumulate> weight;
  void* out;
  Accumulate* rstd;  // null: not wanted
  std::int64_t rows;
  RowSplit split;
  std::int64_t x_row_stride;
  std::int64_t out_row_stride;
  std::int64_t rstd_row_stride;
  int vectors;             // per row
  int lanes;               // per row, where several rows share a warp
  int blocks_per_row;      // cluster size
  int groups;              // per row, summed in order
  int segments_per_group;  // where the row is read twice
  bool overlap_launch;
  bool round_before_weight;
  bool plain;    // a weight of x's dtype, no offset, one rounding; a bias of x's dtype or none
  bool centred;  // for Centring::kRunTime
  std::int64_t cols;
  std::int64_t group_elements;  // per group, where a row has several
  Accumulate inverse_cols;
  Accumulate eps;
  SafeRange<Accumulate> trusted;  // sums of squares outside take the overflow-safe path
  AffineArray<Accumulate> bias;
  Accumulate* mean;  // null: not wanted
  std::int64_t mean_row_stride;
  Heads heads;
  bool norm_before_gate;
  const void* fused_input;  // residual or gate; null: none
  void* residual_out;
  std::int64_t fused_input_row_stride;
  std::int64_t residual_out_row_stride;
  int sqrt_eps_exponent;
  int vectors_per_item;  // of a virtual thread
  double exact_eps;
  RowArray x_array, out_array, mean_array, rstd_array, fused_input_array, residual_out_array;
};

// Maps a row to its result: (x * scale - mean - correction) * rstd; scale is 1 except on the
// overflow-safe path. If storage is as wide as the accumulator, the mean needs two parts: a mean
// far above the row's spread would otherwise show its rounding error.
template <class Accumulate>
struct RowScale {
  Accumulate scale = 1;
  Accumulate mean = 0;
  Accumulate correction = 0;
  Accumulate rstd = 0;
};
template <class T>
inline constexpr bool kCorrectsMean = sizeof(T) >= 4;

// Sets the rstd of a scaled row. A constant row has no deviations, and its scaled eps may be out of
// range, so it goes on unscaled.
template <class Accumulate, Centring kCentring>
__device__ inline void settle(const RmsNormParams<Accumulate>& p, RowScale<Accumulate>& row,
                              Accumulate scaled_sum, int exponent) {
  row.rstd = scaled_rstd(p, scaled_sum, exponent);
  if (is_centred<kCentring>(p) && scaled_sum == Accumulate(0) && exponent != 0) {
    row.mean /= row.scale;
    row.correction /= row.scale;
    row.scale = 1;
    row.rstd = static_cast<Accumulate>(1.0 / sqrt(p.exact_eps));
  }
}

// One vector of a row as it was read: x and the fused input.
template <class T, FusedInput kFusedInput>
struct SourceVector {
  uint4 parts[kFusedInput == FusedInput::kNone ? 1 : 2];

  // The numbers that are normalised.
  __device__ Numbers<T> numbers(const RmsNormParams<accumulate_t<T>>& p) const {
    Numbers<T> x = unpack<T>(parts[0]);
    if constexpr (kFusedInput == FusedInput::kResidual) {
      const Numbers<T> residual = unpack<T>(parts[1]);
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) x.at[i] += residual.at[i];
    }
    if constexpr (kFusedInput == FusedInput::kGate) {
      if (!p.norm_before_gate) multiply(x, silu_of<T>(parts[1]));
    }
    return x;
  }
};

// Applies a gate that follows the norm; round_before_weight: after rounding the weighted result.
template <class T, FusedInput kFusedInput>
__device__ inline void apply_gate(const RmsNormParams<accumulate_t<T>>& p, Numbers<T>& y,
                                  const uint4& gate) {
  if constexpr (kFusedInput == FusedInput::kGate) {
    if (!p.norm_before_gate) return;
    if (p.round_before_weight) y = rounded<T>(y);
    multiply(y, silu_of<T>(gate));
  }
}

// x * scale - mean - correction.
template <class T, Centring kCentring>
__device__ inline Numbers<T> deviations(Numbers<T> x, const RowScale<accumulate_t<T>>& row) {
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    if constexpr (kCentring == Centring::kNever) {
      x.at[i] *= row.scale;
    } else {
      x.at[i] = fma(x.at[i], row.scale, -row.mean);
      if constexpr (kCorrectsMean<T>) x.at[i] -= row.correction;
    }
  }
  return x;
}

// of(deviations) of one vector, for sums. Elements past the end of the row count as zero: padding
// that was centred would not.
template <class T, Access kAccess, Centring kCentring, class Of>
__device__ inline auto apply_to_deviations(const RmsNormParams<accumulate_t<T>>& p,
                                           const Numbers<T>& numbers,
                                           const RowScale<accumulate_t<T>>& row, int index, Of of) {
  Numbers<T> x = deviations<T, kCentring>(numbers, row);
  if constexpr (kCentring == Centring::kNever) {
    return of(x);
  } else if constexpr (kAccess == Access::kAligned) {  // rows are whole vectors
    const auto sums = of(x);
    return index < p.vectors ? sums : decltype(of(x))(0);
  } else {
    if (index >= p.vectors - 1) {
      const int left =
          index < p.vectors ? static_cast<int>(p.cols - std::int64_t{index} * kPack<T>) : 0;
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) x.at[i] = i < left ? x.at[i] : accumulate_t<T>(0);
    }
    return of(x);
  }
}

// sum / count with one correction step, almost always correctly rounded: a constant row then has
// that mean exactly.
template <class Accumulate>
__device__ inline Accumulate mean_of(Accumulate sum, Accumulate count, Accumulate inverse_count) {
  const Accumulate mean = sum * inverse_count;
  const Accumulate better = fma(fma(-mean, count, sum), inverse_count, mean);
  return better == better ? better : mean;  // false for a mean of inf, where the step gives NaN
}

// The number of elements of a row that one of its groups holds.
template <class Accumulate>
__device__ inline Accumulate group_count(const RmsNormParams<Accumulate>& p, int group) {
  const std::int64_t left = p.cols - group * p.group_elements;
  const std::int64_t held = left < p.group_elements ? left : p.group_elements;
  return held > 0 ? static_cast<Accumulate>(held) : Accumulate(0);
}

// Merges the moments of a row's groups, in order (Chan, Golub and LeVeque 1983): means, sums of
// squared deviations from them, and corrections of the means. Returns the sum of squares and sets
// the row's mean.
template <class T>
__device__ inline accumulate_t<T> merge_groups(const RmsNormParams<accumulate_t<T>>& p,
                                               const accumulate_t<T>* means,
                                               const accumulate_t<T>* squares,
                                               const accumulate_t<T>* rests,
                                               RowScale<accumulate_t<T>>& row) {
  using Accumulate = accumulate_t<T>;
  const auto over_groups = [&](auto of_group) {
    Accumulate sum = 0;
#pragma unroll 2
    for (int group = 0; group < p.groups; ++group) sum += of_group(group_count(p, group), group);
    return sum;
  };
  const auto cols = static_cast<Accumulate>(p.cols);
  row.mean = mean_of(over_groups([&](Accumulate count, int g) { return count * means[g]; }), cols,
                     p.inverse_cols);
  if constexpr (kCorrectsMean<T>) {
    row.correction = over_groups([&](Accumulate count, int g) {
                       return count * (means[g] - row.mean + rests[g]);
                     }) *
                     p.inverse_cols;
  }
  return over_groups([&](Accumulate count, int g) {
    Accumulate apart = means[g] - row.mean;
    if constexpr (kCorrectsMean<T>) apart += rests[g] - row.correction;
    return fma(count * apart, apart, squares[g]);
  });
}

// The sums of a vector of deviations and of their squares.
template <class T>
__device__ inline Pair<accumulate_t<T>> sums_of(const Numbers<T>& x) {
  return {sum<T>(x), sum_of_squares<T>(x)};
}

// Two-pass moments of a row or of one of its groups: sets the mean of `row` from the sum of the
// `count` elements and returns the sum of squared deviations. reduce(of) sums of(deviations).
template <class T, class Reduce>
__device__ inline accumulate_t<T> two_pass_moments(RowScale<accumulate_t<T>>& row,
                                                   accumulate_t<T> total, accumulate_t<T> count,
                                                   accumulate_t<T> inverse_count, Reduce reduce) {
  using Accumulate = accumulate_t<T>;
  row.mean = mean_of(total, count, inverse_count);
  if constexpr (!kCorrectsMean<T>) {
    return reduce([](const Numbers<T>& x) { return sum_of_squares<T>(x); });
  } else {
    const Pair<Accumulate> sums = reduce([](const Numbers<T>& x) { return sums_of<T>(x); });
    row.correction = sums.a * inverse_count;
    const Accumulate squares = sums.b - sums.a * row.correction;
    return squares < 0 ? Accumulate(0) : squares;
  }
}

// The affine parameters, weight and bias, of a row's vectors.
template <class T, Access kAccess, Centring kCentring>
class AffineParameters {
  using Params = RmsNormParams<accumulate_t<T>>;

 public:
  __device__ AffineParameters(const Params& p, std::int64_t head)
      : p_(p), weight_(p.weight, p.vectors, p.cols, head), bias_(p.bias, p.vectors, p.cols, head) {}

  // Issue the loads of the weight and, if rows are always centred, of the bias. kPlain: both are
  // known to have x's dtype, and there is a weight.
  __device__ uint4 load(int index) const { return weight_.load(index); }
  template <bool kPlain = false, int kCount, class Index>
  __device__ void load(uint4 (&weights)[kCount], Index index) const {
    weight_.template load<false, kPlain>(weights, index);
  }
  // Sets the biases of always-centred rows to -0, which load_bias overwrites if there is a bias.
  template <int kCount>
  __device__ void clear_bias(uint4 (&biases)[kCount]) const {
    if constexpr (kCentring == Centring::kAlways) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) biases[i] = negative_zeros<T>();
    }
  }
  template <bool kPlain = false, int kCount, class Index>
  __device__ void load_bias(uint4 (&biases)[kCount], Index index) const {
    if (kCentring == Centring::kAlways && bias_.present()) {
      bias_.template load<false, kPlain>(biases, index);
    }
  }
  // Both of one vector; the bias must have been cleared before.
  template <bool kPlain = false>
  __device__ void load_at(uint4& weight, uint4& bias, int index) const {
    uint4 weights[1] = {weight}, biases[1] = {bias};
    load<kPlain>(weights, [=](int) { return index; });
    load_bias<kPlain>(biases, [=](int) { return index; });
    weight = weights[0];
    bias = biases[0];
  }
  __device__ uint4 load_bias(int index) const {
    uint4 bias[1];
    clear_bias(bias);
    load_bias(bias, [=](int) { return index; });
    return bias[0];
  }

  // One vector of the result; bias: from load_bias. kPlain leaves out the options, whose branches
  // cost a tenth of the instructions.
  template <bool kPlain>
  __device__ Numbers<T> normalised(const Numbers<T>& numbers, const RowScale<accumulate_t<T>>& row,
                                   const uint4& weight, const uint4& bias, int index) const {
    Numbers<T> x = deviations<T, kCentring>(numbers, row);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) x.at[i] *= row.rstd;
    if (!kPlain && kCentring != Centring::kAlways && p_.round_before_weight) x = rounded<T>(x);
    const bool weighted = kPlain || weight_.present();
    Numbers<T> factor;
    if (weighted) factor = kPlain ? unpack<T>(weight) : weight_.numbers(weight, index);
    constexpr bool kAlwaysAdds = kPlain && kCentring == Centring::kAlways;
    if (kCentring != Centring::kNever && (kAlwaysAdds || bias_.present())) {
      const uint4 raw = kCentring == Centring::kAlways ? bias : bias_.load(index);
      const Numbers<T> more = kPlain ? unpack<T>(raw) : bias_.numbers(raw, index);
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        x.at[i] = weighted ? fma(x.at[i], factor.at[i], more.at[i]) : x.at[i] + more.at[i];
      }
    } else if (weighted) {
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) x.at[i] = product(x.at[i], factor.at[i]);
    }
    return x;
  }

 private:
  const Params& p_;
  AffineReader<T, kAccess> weight_;
  AffineReader<T, kAccess> bias_;
};

// Blocks per SM for __launch_bounds__, which caps the registers of a held row; 0: no cap.
template <class T, class ThreadGroup, Access kAccess, FusedInput kFusedInput, Centring kCentring>
constexpr int min_blocks() {
  if (std::is_same_v<ThreadGroup, SmallBlockThreadGroup>) return 3;
  if (kFusedInput != FusedInput::kNone || kAccess != Access::kAligned || ThreadGroup::kSharesWarp)
    return 0;
  if (sizeof(T) == 8 && ThreadGroup::kStagesRow) return 0;
  if (ThreadGroup::kVectorsPerItem > 2 && !ThreadGroup::kStagesRow) return 0;  // only for few rows
  const bool centred = kCentring != Centring::kNever;
  if (ThreadGroup::kClusters) return 5;
  constexpr int kThreads = ThreadGroup::kMaxThreads;
  if (ThreadGroup::kVectorsPerItem > 2) return 1536 / kThreads;
  if (ThreadGroup::kItemsPerThread == 1) return 0;
  // Rows of four vectors per thread: centred 16-bit rows are staged, and float32 fits 64 registers.
  return centred ? (sizeof(T) == 2 && ThreadGroup::kStagesRow ? 1280 : 1024) / kThreads : 0;
}

}  // namespace membound::cuda
