// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The mean of a row and its squares about that from one pass.
#include "cuda/norm/rms_norm_row.cuh"

namespace membound::cuda {

// A row is centred in one pass: sums of x - shift and of its square, where the shift, the mean of
// the row's first elements, is near the mean of the row. Read by every thread: the same bits. With
// 8 of them one of 16,000 rows of normal numbers was too far from it (is_far_from_shift), with 16
// it is one of 70 million: a row that is redone holds up the whole launch (H200, 65536 x 128
// bfloat16: 13.7 us with 8).
template <class T>
inline constexpr int kShiftElements = sizeof(T) <= 4 ? 16 : 8;
template <class T>
inline constexpr int kShiftVectors =
    kShiftElements<T> > kPack<T> ? kShiftElements<T> / kPack<T> : 1;
// What the sum of the first elements is multiplied by.
template <class T>
__device__ inline accumulate_t<T> shift_share(const RmsNormParams<accumulate_t<T>>& p) {
  constexpr int kElements = kShiftElements<T>;
  return p.cols >= kElements ? accumulate_t<T>(1) / kElements : p.inverse_cols;
}
// From the numbers(i) of the first vectors.
template <class T, class OfVector>
__device__ inline accumulate_t<T> shift_from(const RmsNormParams<accumulate_t<T>>& p,
                                             OfVector numbers) {
  accumulate_t<T> sums[kShiftVectors<T>];
#pragma unroll
  for (int i = 0; i < kShiftVectors<T>; ++i) sums[i] = sum_by_halves(numbers(i).at);
  return sum_by_halves(sums) * shift_share<T>(p);
}
// The same where `lanes` of a warp hold the vectors, each those that are so many apart: numbers(i)
// of the i-th of this one.
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
  return sum_by_halves(sums) * shift_share<T>(p);
}
// The same of rows that have them all, number(i) of element i, by whole warps.
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
  return shift_from<T>(p, [&](int i) { return row.load_alike(i); });
}

// What one vector adds to the sums about the shift, which row.mean is.
template <class T, Access kAccess, Centring kCentring>
__device__ inline Pair<accumulate_t<T>> sums_about_shift(const RmsNormParams<accumulate_t<T>>& p,
                                                         const Numbers<T>& numbers,
                                                         const RowScale<accumulate_t<T>>& row,
                                                         int index) {
  return of_deviations<T, kAccess, kCentring>(p, numbers, row, index,
                                              [](const Numbers<T>& x) { return sums_of<T>(x); });
}

// The mean and the sum of squared deviations from the sums about the shift, which row.mean is
// before. sound: the shift is within 1.4 standard deviations of the mean, so that the difference
// triples a relative error at most; false for NaN. Others are redone in two passes.
template <class T>
__device__ inline accumulate_t<T> is_far_from_shift(RowScale<accumulate_t<T>>& row,
                                                    const Pair<accumulate_t<T>>& sums,
                                                    accumulate_t<T> inverse_cols, bool& in_range) {
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
