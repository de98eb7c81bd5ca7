// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the kernels of rms_norm_backward share: the arithmetic of one vector, and access to a row.
#include <cstdint>
#include <type_traits>

#include "cuda/activation/silu.cuh"
#include "cuda/norm/centring.cuh"
#include "cuda/norm/rms_norm_backward_row_pointers.cuh"
#include "cuda/row/affine.cuh"
#include "cuda/row/convert.cuh"
#include "cuda/row/reader.cuh"
#include "cuda/row/reduce.cuh"

namespace membound::cuda {

// What the forward saved of a row.
template <class Accumulate>
struct RowStatistics {
  Accumulate mean = 0;
  Accumulate rstd = 0;
};

// The rows of one head: a thread group or block works for one head, with its parameters and their
// gradients.
template <bool kHeads>
struct RowsOfHead {
  std::int64_t heads;
  std::int64_t head;

  __device__ std::int64_t at(std::int64_t row) const { return kHeads ? row * heads + head : row; }
};

// One vector of dy and x.
template <class T>
struct VectorInputs {
  Numbers<T> dy, x;
};

// A gate that may come with the rows. Strided kernels test for it at run time; the others are
// compiled for either case.
template <class T, Access kAccess, bool kGated>
struct GateOf {
  const RmsNormBackwardParams<accumulate_t<T>>& p;

  __device__ bool is_present() const {
    return kGated || (kAccess == Access::kStrided && p.gate != nullptr);
  }
  // dy and x as the norm alone would have received them.
  __device__ VectorInputs<T> inputs(const uint4& dy, const uint4& x, const uint4& gate) const {
    VectorInputs<T> inputs{unpack<T>(dy), unpack<T>(x)};
    if (is_present()) {
      const Numbers<T> gate_silu = silu_of<T>(gate);
      if (p.norm_before_gate) {  // selecting a reference would put both into local memory
        multiply(inputs.dy, gate_silu);
      } else {
        multiply(inputs.x, gate_silu);
      }
    }
    return inputs;
  }
};

// Sums over a row: of g * h, and of g too if rows may be centred. RowMeans: their means.
template <class T, Centring kCentring>
using RowSum =
    std::conditional_t<kCentring == Centring::kNever, accumulate_t<T>, Pair<accumulate_t<T>>>;
template <class Accumulate>
struct RowMeans {
  Accumulate gh;
  Accumulate g = 0;
};
// Never -0: whether a sum of nothing but -0 starts from 0 depends on the kernel.
template <class Params, class Accumulate>
__device__ inline Accumulate mean_of(const Params& p, Accumulate sum) {
  return fma(sum, p.inverse_cols, Accumulate(0));
}
template <Centring kCentring, class Params, class Accumulate>
__device__ inline RowMeans<Accumulate> means(const Params& p, Accumulate sum) {
  return {mean_of(p, sum)};
}
template <Centring kCentring, class Params, class Accumulate>
__device__ inline RowMeans<Accumulate> means(const Params& p, const Pair<Accumulate>& sums) {
  return {mean_of(p, sums.a), is_centred<kCentring>(p) ? mean_of(p, sums.b) : Accumulate(0)};
}

// g = dy * weight, or dy without a weight. kPlain: there is a weight, of x's dtype; kOffset: it may
// have an offset.
template <class T, bool kPlain = false, bool kOffset = false, class Reader>
__device__ inline Numbers<T> times(Numbers<T> dy, const Reader& reader, const uint4& weight,
                                   int index) {
  if (kPlain || reader.present()) {
    Numbers<T> factor = kPlain ? unpack<T>(weight) : reader.numbers(weight, index);
    if (kOffset) {  // no offset is -0, which changes nothing: a branch would spill registers
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) factor.at[i] += reader.offset();
    }
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) dy.at[i] = product(dy.at[i], factor.at[i]);
  }
  return dy;
}

// h * weight as the forward passed it to the gate; rounds: rounded before and after the product.
template <class T, class Reader>
__device__ inline Numbers<T> norm_before_gate(Numbers<T> h, const Reader& reader,
                                              const uint4& weight, int index, bool rounds) {
  if (rounds) h = rounded<T>(h);
  h = times<T>(h, reader, weight, index);
  if (rounds) h = rounded<T>(h);
  return h;
}

// h = (x - mean) * rstd. This product comes first: 1e20 * 1e-20 is in range, but 1e20 times another
// factor might not be.
template <class T, Centring kCentring>
__device__ inline Numbers<T> normal(Numbers<T> h, const RowStatistics<accumulate_t<T>>& row) {
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    if constexpr (kCentring != Centring::kNever) h.at[i] -= row.mean;
    h.at[i] *= row.rstd;
  }
  return h;
}

// Sums of one vector, each in two independent chains.
template <class T, Centring kCentring>
__device__ inline RowSum<T, kCentring> row_sum(const Numbers<T>& g, const Numbers<T>& h) {
  accumulate_t<T> even = product(g.at[0], h.at[0]), odd = product(g.at[1], h.at[1]);
  accumulate_t<T> even_g = g.at[0], odd_g = g.at[1];
#pragma unroll
  for (int i = 2; i < kPack<T>; i += 2) {
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

// Adds dy to the sums of the gradient of the bias.
template <class T>
__device__ inline void add_bias_gradient(Numbers<T>& sums, const Numbers<T>& dy) {
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) sums.at[i] += dy.at[i];
}

// Adds dy * h to the sums, with the h that the forward multiplied by the weight.
template <class T>
__device__ inline void add_weight_gradient(Numbers<T>& sums, const Numbers<T>& dy, Numbers<T> h,
                                           bool round_first) {
  if (round_first) h = rounded<T>(h);
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) sums.at[i] = fma(dy.at[i], h.at[i], sums.at[i]);
}

// One row of dy, x, dsum and the gate to read, and of dx and dgate to write. The last parameter is
// the type of the row pointers.
template <class T, Access kAccess, class Places>
class PointedGradientRow {
  using Params = RmsNormBackwardParams<accumulate_t<T>>;
  using Reader = RowReader<T, kAccess>;

 public:
  __device__ PointedGradientRow(const Params& p, typename Places::Row row)
      : p_(p),
        pointers_(p, row),
        dy_(reader(pointers_.dy(), p.dy_array)),
        x_(reader(pointers_.x(), p.x_array)) {}

  // Loads the vectors index(0), index(1) ... of dy and x.
  template <int kCount, class Index>
  __device__ void fetch(uint4 (&dy)[kCount], uint4 (&x)[kCount], Index index) const {
    dy_.fetch(dy, index);
    x_.fetch(x, index);
  }
  __device__ int vectors() const { return pointers_.vectors(); }
  __device__ const Reader& dy() const { return dy_; }
  __device__ const Reader& x() const { return x_; }
  __device__ uint4 load_dy(int index) const { return dy_.load(index); }
  __device__ uint4 load_x(int index) const { return x_.load(index); }
  template <Centring kCentring>
  __device__ RowStatistics<accumulate_t<T>> statistics() const {
    RowStatistics<accumulate_t<T>> row;
    row.rstd = *pointers_.rstd();
    if (is_centred<kCentring>(p_)) row.mean = *pointers_.mean();
    return row;
  }
  __device__ RowWriter<T, kAccess> dx() const {
    return {pointers_.dx(), p_.dx_array, pointers_.vectors(), p_.cols};
  }

  __device__ Reader gate() const { return reader(pointers_.gate(), p_.gate_array); }
  __device__ uint4 load_gate(int index) const { return gate().load(index); }
  __device__ RowWriter<T, kAccess> dgate() const {
    return {pointers_.dgate(), p_.dgate_array, pointers_.vectors(), p_.cols};
  }

  // Stores one vector of dx and of dgate. dx comes in as the gradient of what was normalised; n:
  // the norm's result.
  __device__ void store_gated(int index, Numbers<T> dx, const Numbers<T>& n, const uint4& dy,
                              const uint4& x, const uint4& gate) const {
    if (p_.dgate != nullptr) {
      Numbers<T> dgate;
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) dgate.at[i] = p_.norm_before_gate ? n.at[i] : dx.at[i];
      const uint4 factors{p_.norm_before_gate ? dy.x : x.x, p_.norm_before_gate ? dy.y : x.y,
                          p_.norm_before_gate ? dy.z : x.z, p_.norm_before_gate ? dy.w : x.w};
      multiply(dgate, unpack<T>(factors));
      multiply_by_silu_gradient<T>(dgate, gate);
      this->dgate().store(index, pack<T>(dgate));
    }
    if (p_.dx != nullptr) {
      if (!p_.norm_before_gate) multiply(dx, silu_of<T>(gate));
      this->dx().store(index, pack<T>(dx));
    }
  }

  __device__ Reader dsum() const { return reader(pointers_.dsum(), p_.dsum_array); }
  __device__ uint4 load_dsum(int index) const {
    uint4 vector;  // unset if there is none
    if (p_.dsum != nullptr) vector = dsum().load(index);
    return vector;
  }

  // rstd * (g - mean of g - h * mean of g * h).
  template <Centring kCentring>
  static __device__ Numbers<T> gradient_of_norm(const Numbers<T>& g, const Numbers<T>& h,
                                                accumulate_t<T> rstd,
                                                const RowMeans<accumulate_t<T>>& mean) {
    Numbers<T> dx;
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      const accumulate_t<T> centred = kCentring == Centring::kNever ? g.at[i] : g.at[i] - mean.g;
      dx.at[i] = product(rstd, fma(-h.at[i], mean.gh, centred));
    }
    return dx;
  }
  // One vector of dx without a gate: gradient_of_norm(), plus dsum if add is set.
  template <Centring kCentring>
  static __device__ uint4 gradient(const Numbers<T>& g, const Numbers<T>& h, accumulate_t<T> rstd,
                                   const RowMeans<accumulate_t<T>>& mean, const uint4& dsum,
                                   bool add) {
    Numbers<T> dx = gradient_of_norm<kCentring>(g, h, rstd, mean);
    if (add) {
      const Numbers<T> more = unpack<T>(dsum);
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) dx.at[i] += more.at[i];
    }
    return pack<T>(dx);
  }

 private:
  __device__ Reader reader(const T* row, const RowArray& array) const {
    return {row, array, pointers_.vectors(), p_.cols};
  }

  const Params& p_;
  Places pointers_;
  Reader dy_;
  Reader x_;
};

template <class T, Access kAccess, bool kSplit = true>
using GradientRow = PointedGradientRow<T, kAccess, IndexedRowPointers<T, kAccess, kSplit>>;

}  // namespace membound::cuda
