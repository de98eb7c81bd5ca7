// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The mean of a row and its squares about that from one pass.
#include "cuda/norm/rms_norm_row.cuh"

namespace membound::cuda {

// A row is centred in one pass: sums of x - pivot and of its square, where the pivot, the mean of
// the row's first elements, is near the mean of the row. Read by every thread: the same bits. With
// 8 of them one of 16,000 rows of normal numbers was too far from it (leave_pivot), with 16 it is
// one of 70 million: a row that is redone holds up the whole launch (H200, 65536 x 128 bfloat16:
// 13.7 us with 8).
template <class T>
inline constexpr int kPivotElements = sizeof(T) <= 4 ? 16 : 8;
template <class T>
inline constexpr int kPivotChunks = kPivotElements<T> > kPack<T> ? kPivotElements<T> / kPack<T> : 1;
// What the sum of the first elements is multiplied by.
template <class T>
__device__ inline accumulate_t<T> pivot_share(const RmsNormParams<accumulate_t<T>>& p) {
  constexpr int kElements = kPivotElements<T>;
  return p.cols >= kElements ? accumulate_t<T>(1) / kElements : p.inverse_cols;
}
// From the numbers(i) of the first chunks.
template <class T, class OfChunk>
__device__ inline accumulate_t<T> pivot_from(const RmsNormParams<accumulate_t<T>>& p,
                                             OfChunk numbers) {
  accumulate_t<T> sums[kPivotChunks<T>];
#pragma unroll
  for (int i = 0; i < kPivotChunks<T>; ++i) sums[i] = sum_by_halves(numbers(i).at);
  return sum_by_halves(sums) * pivot_share<T>(p);
}
// The same where `lanes` of a warp hold the chunks, each those that are so many apart: numbers(i)
// of the i-th of this one.
template <class T, class OfChunk>
__device__ inline accumulate_t<T> pivot_from_lanes(const RmsNormParams<accumulate_t<T>>& p,
                                                   int lanes, OfChunk numbers) {
  constexpr int kChunks = kPivotChunks<T>;
  const int first_lane = static_cast<int>(threadIdx.x) % kWarpLanes & -lanes;
  const accumulate_t<T> first = sum_by_halves(numbers(0).at);
  const accumulate_t<T> second =
      lanes < kChunks ? sum_by_halves(numbers(1).at) : accumulate_t<T>(0);
  accumulate_t<T> sums[kChunks];
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const bool of_first = i < lanes;
    sums[i] = shuffle_from(of_first ? first : second, first_lane + (of_first ? i : i - lanes));
    if (i >= 2 * lanes) sums[i] = 0;
  }
  return sum_by_halves(sums) * pivot_share<T>(p);
}
// The same of rows that have them all, number(i) of element i, by whole warps.
template <class T, class OfElement>
__device__ inline accumulate_t<T> pivot_by_lanes(OfElement number) {
  constexpr int kElements = kPivotElements<T>;
  accumulate_t<T> sum = number(static_cast<int>(threadIdx.x % kElements));
#pragma unroll
  for (int offset = kPack<T> / 2; offset > 0; offset /= 2) sum += shuffle_xor(sum, offset);
#pragma unroll
  for (int offset = kElements / 2; offset >= kPack<T>; offset /= 2) sum += shuffle_xor(sum, offset);
  return sum * (accumulate_t<T>(1) / kElements);
}
template <class T, class Row>
__device__ inline accumulate_t<T> pivot_of(const RmsNormParams<accumulate_t<T>>& p,
                                           const Row& row) {
  return pivot_from<T>(p, [&](int i) { return row.load_alike(i); });
}

// What one chunk adds to the sums about the pivot, which row.mean is.
template <class T, Access kAccess, Centring kCentring>
__device__ inline Pair<accumulate_t<T>> sums_about_pivot(const RmsNormParams<accumulate_t<T>>& p,
                                                         const Numbers<T>& numbers,
                                                         const RowScale<accumulate_t<T>>& row,
                                                         int index) {
  return of_deviations<T, kAccess, kCentring>(p, numbers, row, index,
                                              [](const Numbers<T>& x) { return sums_of<T>(x); });
}

// The mean and the sum of squared deviations from the sums about the pivot, which row.mean is
// before. sound: the pivot is within 1.4 standard deviations of the mean, so that the difference
// triples a relative error at most; false for NaN. Others are redone in two passes.
template <class T>
__device__ inline accumulate_t<T> leave_pivot(RowScale<accumulate_t<T>>& row,
                                              const Pair<accumulate_t<T>>& sums,
                                              accumulate_t<T> inverse_cols, bool& sound) {
  using Accumulate = accumulate_t<T>;
  const Accumulate pivot = row.mean, apart = product(sums.a, inverse_cols);
  row.mean = pivot + apart;
  if constexpr (kCorrectsMean<T>) {
    const Accumulate moved = row.mean - pivot;
    row.correction = (pivot - (row.mean - moved)) + (apart - moved);
  }
  const Accumulate squares = fma(-sums.a, apart, sums.b);
  sound = 3 * squares >= sums.b;
  return squares;
}

}  // namespace membound::cuda
