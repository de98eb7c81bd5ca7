// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the kernels of rms_norm_backward share: parameters, and the arithmetic of one chunk.
#include <cstdint>
#include <type_traits>

#include "cuda/centring.cuh"
#include "cuda/columns.cuh"
#include "cuda/convert.cuh"
#include "cuda/reduce.cuh"
#include "cuda/vec.cuh"

namespace membound::cuda {

// Constant memory is cold at every launch: what an aligned row needs comes first and close
// together.
template <class Accumulate>
struct RmsNormBackwardParams {
  const void* dy;
  const void* x;
  const void* dsum;  // null: none
  const Accumulate* rstd;
  void* dx;  // null: not wanted
  std::int64_t rows;
  std::int64_t dy_row_stride;
  std::int64_t x_row_stride;
  std::int64_t dx_row_stride;
  std::int64_t rstd_row_stride;
  int chunks;          // of a row
  int lanes;           // threads of a row, or of a block's part of it
  int blocks_per_row;  // the cluster
  int partial_rows;    // the teams that share the rows
  int column_blocks;   // of the grid, before those of the rows
  bool round_before_weight;
  bool accumulate;
  bool centred;  // kAsked
  bool plain;    // a weight of x's dtype without offset, one rounding, dx wanted
  std::int64_t cols;
  Accumulate inverse_cols;
  ColumnArray<Accumulate> weight;
  ColumnSums<Accumulate> dweight;
  const Accumulate* mean;  // null: not centred
  std::int64_t mean_row_stride;
  ColumnSums<Accumulate> dbias;
  std::int64_t dsum_row_stride;
  RowSplit split;
  int groups;  // of a row, where it is read twice
  int segments_per_group;
  RowArray dy_array, x_array, dsum_array, dx_array, mean_array, rstd_array;
};

// What the forward left of a row.
template <class Accumulate>
struct RowStatistics {
  Accumulate mean = 0;
  Accumulate rstd = 0;
};

// What is summed over a row: g * h, and where it may be centred g too; and their means.
template <class T, Centring kCentring>
using RowSum =
    std::conditional_t<kCentring == Centring::kNever, accumulate_t<T>, Pair<accumulate_t<T>>>;
template <class Accumulate>
struct RowMeans {
  Accumulate gh;
  Accumulate g = 0;
};
template <Centring kCentring, class Params, class Accumulate>
__device__ inline RowMeans<Accumulate> means(const Params& p, Accumulate sum) {
  return {product(sum, p.inverse_cols)};
}
template <Centring kCentring, class Params, class Accumulate>
__device__ inline RowMeans<Accumulate> means(const Params& p, const Pair<Accumulate>& sums) {
  return {product(sums.a, p.inverse_cols),
          is_centred<kCentring>(p) ? product(sums.b, p.inverse_cols) : Accumulate(0)};
}

// g = dy * weight; without a weight dy itself. kPlain: there is one, and no option.
template <class T, bool kPlain = false, class Reader>
__device__ inline Numbers<T> times(Numbers<T> dy, const Reader& reader, const uint4& weight,
                                   int index) {
  if (kPlain || reader.present()) {
    const Numbers<T> factor = kPlain ? unpack<T>(weight) : reader.numbers(weight, index);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) dy.at[i] = product(dy.at[i], factor.at[i]);
  }
  return dy;
}

// h = (x - mean) * rstd: first of all, so that 1e20 * 1e-20 meets no other factor before.
template <class T, Centring kCentring>
__device__ inline Numbers<T> normal(const uint4& x, const RowStatistics<accumulate_t<T>>& row) {
  Numbers<T> h = unpack<T>(x);
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    if constexpr (kCentring != Centring::kNever) h.at[i] -= row.mean;
    h.at[i] *= row.rstd;
  }
  return h;
}

// The sums of one chunk, each in two chains.
template <class T, Centring kCentring>
__device__ inline RowSum<T, kCentring> row_sum(const Numbers<T>& g, const Numbers<T>& h) {
  accumulate_t<T> even = 0, odd = 0, even_g = 0, odd_g = 0;
#pragma unroll
  for (int i = 0; i < kPack<T>; i += 2) {
    even = fma(g.at[i], h.at[i], even);
    odd = fma(g.at[i + 1], h.at[i + 1], odd);
    even_g += g.at[i];
    odd_g += g.at[i + 1];
  }
  if constexpr (kCentring == Centring::kNever) {
    return even + odd;
  } else {
    return {even + odd, even_g + odd_g};
  }
}

// sums += dy, for the gradient of the bias.
template <class T>
__device__ inline void add_bias_gradient(Numbers<T>& sums, const Numbers<T>& dy) {
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) sums.at[i] += dy.at[i];
}

// sums += dy * h, of the h that the forward multiplied with the weight.
template <class T>
__device__ inline void add_weight_gradient(Numbers<T>& sums, const Numbers<T>& dy, Numbers<T> h,
                                           bool round_first) {
  if (round_first) {
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) h.at[i] = round_to<T>(h.at[i]);
  }
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) sums.at[i] = fma(dy.at[i], h.at[i], sums.at[i]);
}

// One row of dy, x and dsum to be read, and of dx to be written.
template <class T, Access kAccess, bool kSplit = true>
class GradientRow {
  using Params = RmsNormBackwardParams<accumulate_t<T>>;
  using Reader = RowReader<T, kAccess>;

 public:
  __device__ GradientRow(const Params& p, std::int64_t row)
      : p_(p),
        row_(row),
        dy_(reader(p.dy, p.dy_row_stride, p.dy_array)),
        x_(reader(p.x, p.x_row_stride, p.x_array)) {}

  // The kCount chunks index(0), index(1) ... of dy and x, in two steps: all loads first.
  template <int kCount>
  struct Raw {
    RawChunk<kAccess> dy[kCount];
    RawChunk<kAccess> x[kCount];
  };
  template <int kCount, class Index>
  __device__ void fetch(Raw<kCount>& raw, Index index) const {
    dy_.fetch(raw.dy, index);
    x_.fetch(raw.x, index);
  }
  template <bool kUniform, int kCount, class Index>
  __device__ void chunks(const Raw<kCount>& raw, uint4 (&dy)[kCount], uint4 (&x)[kCount],
                         Index index) const {
    dy_.template chunks<kUniform>(raw.dy, dy, index);
    x_.template chunks<kUniform>(raw.x, x, index);
  }
  __device__ const Reader& dy() const { return dy_; }
  __device__ const Reader& x() const { return x_; }
  __device__ uint4 load_dy(int index) const { return dy_.load(index); }
  __device__ uint4 load_x(int index) const { return x_.load(index); }
  template <Centring kCentring>
  __device__ RowStatistics<accumulate_t<T>> statistics() const {
    RowStatistics<accumulate_t<T>> row;
    row.rstd = statistic(p_.rstd, p_.rstd_row_stride, p_.rstd_array);
    if (is_centred<kCentring>(p_)) row.mean = statistic(p_.mean, p_.mean_row_stride, p_.mean_array);
    return row;
  }
  __device__ RowWriter<T, kAccess> dx() const {
    return {at<T>(p_.dx, p_.dx_row_stride, p_.dx_array), p_.dx_array, p_.chunks, p_.cols};
  }

  __device__ uint4 load_dsum(int index) const {
    uint4 chunk;  // stays unset where there is none
    if (p_.dsum != nullptr) {
      chunk = reader(p_.dsum, p_.dsum_row_stride, p_.dsum_array).load(index);
    }
    return chunk;
  }

  // One chunk of dx = rstd * (g - mean of g - h * mean of g * h) + dsum. add: there is a dsum.
  template <Centring kCentring>
  __device__ uint4 gradient(const Numbers<T>& g, const Numbers<T>& h, accumulate_t<T> rstd,
                            const RowMeans<accumulate_t<T>>& mean, const uint4& dsum,
                            bool add) const {
    Numbers<T> dx;
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      const accumulate_t<T> centred = kCentring == Centring::kNever ? g.at[i] : g.at[i] - mean.g;
      dx.at[i] = product(rstd, fma(-h.at[i], mean.gh, centred));
    }
    if (add) {
      const Numbers<T> more = unpack<T>(dsum);
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) dx.at[i] += more.at[i];
    }
    return pack<T>(dx);
  }

 private:
  __device__ accumulate_t<T> statistic(const accumulate_t<T>* data, std::int64_t stride,
                                       const RowArray& array) const {
    return data[row_offset<kAccess, kSplit>(p_.split, stride, array, row_)];
  }
  template <class U, class Data>
  __device__ U* at(Data* data, std::int64_t stride, const RowArray& array) const {
    return static_cast<U*>(data) + row_offset<kAccess, kSplit>(p_.split, stride, array, row_);
  }
  __device__ Reader reader(const void* data, std::int64_t stride, const RowArray& array) const {
    return {at<const T>(data, stride, array), array, p_.chunks, p_.cols};
  }

  const Params& p_;
  std::int64_t row_;
  Reader dy_;
  Reader x_;
};

}  // namespace membound::cuda
