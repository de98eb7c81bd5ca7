// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the kernels of rms_norm_backward share: the arithmetic of one vector, and access to a row.
#include <cstdint>
#include <type_traits>

#include "cuda/activation/silu.cuh"
#include "cuda/norm/centring.cuh"
#include "cuda/row/affine.cuh"
#include "cuda/row/convert.cuh"
#include "cuda/row/heads.cuh"
#include "cuda/row/reader.cuh"
#include "cuda/row/reduce.cuh"

namespace membound::cuda {

// Parameters of the rms_norm_backward kernels, and pointers to a row in each of their arrays.

// How the thread groups of a persistent kernel share the rows of a head: group g takes rows g, g +
// step, g + 2 * step ... . Each has `rounds` rows, the first `remainder` groups one more. The other
// members are the bytes from one row of a group to its next, by array.
struct RowSteps {
  int step;
  int rounds;
  int remainder;
  std::int64_t dy, x, dsum, gate, dx, dgate, rstd, mean;
};

// Bytes between neighbouring rows of each array, if they fit (row_strides_fit).
struct RowBytes {
  std::int32_t dy, x, dsum, gate, dx, dgate, rstd, mean;
};

// Constant memory is cold at every launch: what an aligned row needs comes first and close
// together. Strides of absent arrays are 0.
template <class Accumulate>
struct RmsNormBackwardParams {
  const void* dy;
  const void* x;
  const void* dsum;  // null: none
  const Accumulate* rstd;
  void* dx;           // null: not wanted
  std::int64_t rows;  // of a head
  std::int64_t dy_row_stride = 0;
  std::int64_t x_row_stride = 0;
  std::int64_t dx_row_stride = 0;
  std::int64_t rstd_row_stride = 0;
  RowSteps steps;
  RowBytes row_bytes;
  int vectors;         // of a row
  int lanes;           // threads of a row, or of a block's part of it
  int blocks_per_row;  // cluster size
  int groups_of_head;  // blocks or clusters that share its rows
  bool paired;         // partial sums are added up in pairs first
  int column_blocks;   // of the grid, before the row blocks
  bool round_before_weight;
  bool accumulate;
  bool centred;  // for Centring::kRunTime
  bool plain;    // weight of x's dtype without offset, one rounding, dx (and dgate) wanted
  bool common;   // the same, but with any offset and rounding
  std::int64_t cols;
  Accumulate inverse_cols;
  AffineArray<Accumulate> weight;
  ColumnSums<Accumulate> dweight;
  const Accumulate* mean;  // null: not centred
  std::int64_t mean_row_stride = 0;
  ColumnSums<Accumulate> dbias;
  std::int64_t dsum_row_stride = 0;
  Heads heads;
  const void* gate;  // null: none; tested by strided kernels, always there in gated ones
  void* dgate;       // null: not wanted
  std::int64_t gate_row_stride = 0;
  std::int64_t dgate_row_stride = 0;
  bool norm_before_gate;
  RowSplit split;
  int groups;  // of a row that is read twice
  int segments_per_group;
  RowArray dy_array, x_array, dsum_array, dx_array, mean_array, rstd_array, gate_array, dgate_array;
};

template <class U>
__device__ inline U* moved(U* from, std::int64_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<U>, const char, char>;
  return reinterpret_cast<U*>(reinterpret_cast<Byte*>(from) + bytes);
}

// Pointers to a row in each array, computed from its number.
template <class T, Access kAccess, bool kSplit>
class IndexedRowPointers {
  using Accumulate = accumulate_t<T>;
  using Params = RmsNormBackwardParams<Accumulate>;

 public:
  using Row = std::int64_t;
  __device__ IndexedRowPointers(const Params& p, Row row) : p_(p), row_(row) {}

  __device__ int vectors() const { return p_.vectors; }
  __device__ const T* dy() const { return at<const T>(p_.dy, p_.dy_row_stride, p_.dy_array); }
  __device__ const T* x() const { return at<const T>(p_.x, p_.x_row_stride, p_.x_array); }
  __device__ const T* dsum() const {
    return at<const T>(p_.dsum, p_.dsum_row_stride, p_.dsum_array);
  }
  __device__ const T* gate() const {
    return at<const T>(p_.gate, p_.gate_row_stride, p_.gate_array);
  }
  __device__ T* dx() const { return at<T>(p_.dx, p_.dx_row_stride, p_.dx_array); }
  __device__ T* dgate() const { return at<T>(p_.dgate, p_.dgate_row_stride, p_.dgate_array); }
  __device__ const Accumulate* rstd() const {
    return at<const Accumulate>(p_.rstd, p_.rstd_row_stride, p_.rstd_array);
  }
  __device__ const Accumulate* mean() const {
    return at<const Accumulate>(p_.mean, p_.mean_row_stride, p_.mean_array);
  }

 private:
  template <class U, class Data>
  __device__ U* at(Data* data, std::int64_t stride, const RowArray& array) const {
    return static_cast<U*>(data) + row_offset<kAccess, kSplit>(p_.split, stride, array, row_);
  }

  const Params& p_;
  Row row_;
};

// The same for evenly spaced rows, starting at this thread's first vector: a 32-bit product costs
// three instructions per array, a 64-bit one a dozen.
template <class T>
class StridedRowPointers {
  using Accumulate = accumulate_t<T>;
  using Params = RmsNormBackwardParams<Accumulate>;

 public:
  struct Row {
    std::int32_t number;
    std::int32_t vector;
  };
  __device__ StridedRowPointers(const Params& p, Row row) : p_(p), row_(row) {}

  // Vectors of the row from there on.
  __device__ int vectors() const { return p_.vectors - row_.vector; }
  __device__ const T* dy() const { return at<const T>(p_.dy, p_.row_bytes.dy); }
  __device__ const T* x() const { return at<const T>(p_.x, p_.row_bytes.x); }
  __device__ const T* dsum() const { return at<const T>(p_.dsum, p_.row_bytes.dsum); }
  __device__ const T* gate() const { return at<const T>(p_.gate, p_.row_bytes.gate); }
  __device__ T* dx() const { return at<T>(p_.dx, p_.row_bytes.dx); }
  __device__ T* dgate() const { return at<T>(p_.dgate, p_.row_bytes.dgate); }
  __device__ const Accumulate* rstd() const {
    return at<const Accumulate>(p_.rstd, p_.row_bytes.rstd, 0);
  }
  __device__ const Accumulate* mean() const {
    return at<const Accumulate>(p_.mean, p_.row_bytes.mean, 0);
  }

 private:
  template <class U, class Data>
  __device__ U* at(Data* data, std::int32_t row_bytes) const {
    return at<U>(data, row_bytes, std::int64_t{row_.vector} * kVectorBytes);
  }
  template <class U, class Data>
  __device__ U* at(Data* data, std::int32_t row_bytes, std::int64_t bytes) const {
    return moved(static_cast<U*>(data), bytes + std::int64_t{row_.number} * row_bytes);
  }

  const Params& p_;
  Row row_;
};

// The same, advanced from row to row: one instruction less per array, but two registers more, which
// clusters have to spare (bfloat16 LayerNorm 8192 x 16384: 242 -> 234 us; 16384 x 4096: 108 ->
// 133).
template <class T>
class AdvancedRowPointers {
  using Accumulate = accumulate_t<T>;
  using Params = RmsNormBackwardParams<Accumulate>;

 public:
  using Row = const AdvancedRowPointers&;
  __device__ AdvancedRowPointers(const Params&, Row walk) : AdvancedRowPointers(walk) {}
  __device__ AdvancedRowPointers(const StridedRowPointers<T>& first)
      : vectors_(first.vectors()),
        dy_(first.dy()),
        x_(first.x()),
        dsum_(first.dsum()),
        gate_(first.gate()),
        dx_(first.dx()),
        dgate_(first.dgate()),
        rstd_(first.rstd()),
        mean_(first.mean()) {}

  // Pointers that a kernel never reads cost nothing.
  __device__ void next(const RowSteps& steps) {
    dy_ = moved(dy_, steps.dy);
    x_ = moved(x_, steps.x);
    dsum_ = moved(dsum_, steps.dsum);
    gate_ = moved(gate_, steps.gate);
    dx_ = moved(dx_, steps.dx);
    dgate_ = moved(dgate_, steps.dgate);
    rstd_ = moved(rstd_, steps.rstd);
    mean_ = moved(mean_, steps.mean);
  }
  __device__ int vectors() const { return vectors_; }
  __device__ const T* dy() const { return dy_; }
  __device__ const T* x() const { return x_; }
  __device__ const T* dsum() const { return dsum_; }
  __device__ const T* gate() const { return gate_; }
  __device__ T* dx() const { return dx_; }
  __device__ T* dgate() const { return dgate_; }
  __device__ const Accumulate* rstd() const { return rstd_; }
  __device__ const Accumulate* mean() const { return mean_; }

 private:
  int vectors_;
  const T *dy_, *x_, *dsum_, *gate_;
  T *dx_, *dgate_;
  const Accumulate *rstd_, *mean_;
};

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
