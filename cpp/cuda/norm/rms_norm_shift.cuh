// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Mean and centred sum of squares of a row from one pass: shifted-data variance.
#include "cuda/norm/rms_norm_row.cuh"

namespace membound::cuda {

// Centred rows are read once: they sum x - shift and its square, where the shift is the mean of the
// row's first elements and thus near the row's mean. Every thread gets the same bits. With 16
// elements one in 70 million rows of normal numbers is out of range (moments_from_shifted_sums) and
// takes the overflow-safe path; with 8 it was one in 16,000, and one such row delays the launch.
template <class T>
inline constexpr int kShiftElements = sizeof(T) <= 4 ? 16 : 8;
template <class T>
inline constexpr int kShiftVectors =
    kShiftElements<T> > kPack<T> ? kShiftElements<T> / kPack<T> : 1;
// The factor from the sum of the first elements to their mean.
template <class T>
__device__ inline accumulate_t<T> inverse_shift_count(const RmsNormParams<accumulate_t<T>>& p) {
  constexpr int kElements = kShiftElements<T>;
  return p.cols >= kElements ? accumulate_t<T>(1) / kElements : p.inverse_cols;
}
// The variance shift from the row's first vectors, numbers(i).
template <class T, class OfVector>
__device__ inline accumulate_t<T> shift_from(const RmsNormParams<accumulate_t<T>>& p,
                                             OfVector numbers) {
  accumulate_t<T> sums[kShiftVectors<T>];
#pragma unroll
  for (int i = 0; i < kShiftVectors<T>; ++i) sums[i] = sum_by_halves(numbers(i).at);
  return sum_by_halves(sums) * inverse_shift_count<T>(p);
}
// The same for `lanes` lanes of a warp that hold the first vectors: numbers(i) is this lane's i-th
// vector, `lanes` vectors behind the one before it.
template <class T, class OfVector>
__device__ inline accumulate_t<T> shift_from_lanes(const RmsNormParams<accumulate_t<T>>& p,
                                                   int lanes, OfVector numbers) {
  constexpr int kVectors = kShiftVectors<T>;
  const int first_lane = static_cast<int>(threadIdx.x) % kWarpLanes & -lanes;
  const accumulate_t<T> first = sum_by_halves(numbers(0).at);
  const accumulate_t<T> second =
      lanes < kVectors ? sum_by_halves(numbers(1).at) : accumulate_t<T>(0);
  accumulate_t<T> sums[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const bool of_first = i < lanes;
    sums[i] = shuffle_from(of_first ? first : second, first_lane + (of_first ? i : i - lanes));
    if (i >= 2 * lanes) sums[i] = 0;
  }
  return sum_by_halves(sums) * inverse_shift_count<T>(p);
}
// The same by whole warps, for rows of at least kShiftElements elements; number(i) is element i.
template <class T, class OfElement>
__device__ inline accumulate_t<T> shift_by_lanes(OfElement number) {
  constexpr int kElements = kShiftElements<T>;
  accumulate_t<T> sum = number(static_cast<int>(threadIdx.x % kElements));
#pragma unroll
  for (int offset = kPack<T> / 2; offset > 0; offset /= 2) sum += shuffle_xor(sum, offset);
#pragma unroll
  for (int offset = kElements / 2; offset >= kPack<T>; offset /= 2) sum += shuffle_xor(sum, offset);
  return sum * (accumulate_t<T>(1) / kElements);
}
template <class T, class Row>
__device__ inline accumulate_t<T> variance_shift_of(const RmsNormParams<accumulate_t<T>>& p,
                                                    const Row& row) {
  return shift_from<T>(p, [&](int i) { return row.load(i); });
}

// The sums of one vector about the variance shift, which is in row.mean.
template <class T, Access kAccess, Centring kCentring>
__device__ inline Pair<accumulate_t<T>> sums_about_shift(const RmsNormParams<accumulate_t<T>>& p,
                                                         const Numbers<T>& numbers,
                                                         const RowScale<accumulate_t<T>>& row,
                                                         int index) {
  return apply_to_deviations<T, kAccess, kCentring>(
      p, numbers, row, index, [](const Numbers<T>& x) { return sums_of<T>(x); });
}

// Mean and sum of squared deviations from the sums about the variance shift, which row.mean holds
// on entry. in_range: the shift is within 1.4 standard deviations of the mean, so that the
// subtraction at most triples a relative error; false for NaN. Other rows are redone in two passes.
template <class T>
__device__ inline accumulate_t<T> moments_from_shifted_sums(RowScale<accumulate_t<T>>& row,
                                                            const Pair<accumulate_t<T>>& sums,
                                                            accumulate_t<T> inverse_cols,
                                                            bool& in_range) {
  using Accumulate = accumulate_t<T>;
  const Accumulate variance_shift = row.mean, apart = product(sums.a, inverse_cols);
  row.mean = variance_shift + apart;
  if constexpr (kCorrectsMean<T>) {
    const Accumulate moved = row.mean - variance_shift;
    row.correction = (variance_shift - (row.mean - moved)) + (apart - moved);
  }
  const Accumulate squares = fma(-sums.a, apart, sums.b);
  in_range = 3 * squares >= sums.b;
  return squares;
}

}  // namespace membound::cuda
