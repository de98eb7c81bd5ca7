// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Parameters of the rms_norm_backward kernels, and pointers to a row in each of their arrays.
#include <cstdint>
#include <type_traits>

#include "cuda/row/affine.cuh"
#include "cuda/row/heads.cuh"
#include "cuda/row/reader.cuh"

namespace membound::cuda {

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

}  // namespace membound::cuda
