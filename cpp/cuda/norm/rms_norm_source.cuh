// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The arrays of one row of a norm, and where its vectors are kept between their only read and their
// only write: in registers or in shared memory.
#include "cuda/norm/rms_norm_row.cuh"
#include "cuda/row/staged_row.cuh"

namespace membound::cuda {

// The arrays of one row: reads x and the fused input, writes out and residual_out.
template <class T, Access kAccess, FusedInput kFusedInput>
class NormRow {
  using Params = RmsNormParams<accumulate_t<T>>;
  using Reader = RowReader<T, kAccess>;
  using Writer = RowWriter<T, kAccess>;
  static constexpr bool kHasFusedInput = kFusedInput != FusedInput::kNone;

 public:
  using Vector = SourceVector<T, kFusedInput>;

  __device__ NormRow(const Params& p, std::int64_t row)
      : p_(p),
        row_(row),
        x_(at<const T>(p.x, p.x_row_stride, p.x_array), p.x_array, p.vectors, p.cols),
        fused_input_(kHasFusedInput ? Reader(at<const T>(p.fused_input, p.fused_input_row_stride,
                                                         p.fused_input_array),
                                             p.fused_input_array, p.vectors, p.cols)
                                    : x_) {}

  __device__ const Reader& x() const { return x_; }
  __device__ const Reader& fused_input() const { return fused_input_; }

  // Loads the vectors index(0), index(1) ... of x and of the fused input.
  template <int kCount, class Index>
  __device__ void fetch(Vector (&vectors)[kCount], Index index) const {
    uint4 x[kCount], fused_input[kCount];
    x_.fetch(x, index);
    if constexpr (kHasFusedInput) fused_input_.fetch(fused_input, index);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      vectors[i].parts[0] = x[i];
      if constexpr (kHasFusedInput) vectors[i].parts[1] = fused_input[i];
    }
  }
  __device__ Vector load_vector(int index) const {
    Vector vector;
    vector.parts[0] = x_.load(index);
    if constexpr (kHasFusedInput) vector.parts[1] = fused_input_.load(index);
    return vector;
  }
  __device__ Numbers<T> load(int index) const { return load_vector(index).numbers(p_); }
  // A vector of the result in storage format, after a gate that follows the norm.
  __device__ uint4 result(Numbers<T> y, const Vector& vector) const {
    if constexpr (kFusedInput == FusedInput::kGate)
      apply_gate<T, kFusedInput>(p_, y, vector.parts[1]);
    return pack<T>(y);
  }
  __device__ Writer out() const {
    return {at<T>(p_.out, p_.out_row_stride, p_.out_array), p_.out_array, p_.vectors, p_.cols};
  }
  __device__ Writer residual_out() const {
    return {at<T>(p_.residual_out, p_.residual_out_row_stride, p_.residual_out_array),
            p_.residual_out_array, p_.vectors, p_.cols};
  }
  // Called by one thread of the row.
  template <Centring kCentring>
  __device__ void store_statistics(const RowScale<accumulate_t<T>>& scale) const {
    store_statistic(p_.rstd, p_.rstd_row_stride, p_.rstd_array, scale.rstd * scale.scale);
    if constexpr (kCentring != Centring::kNever) {
      // The correction of an infinite mean is NaN.
      const accumulate_t<T> both = scale.mean + scale.correction;
      store_statistic(p_.mean, p_.mean_row_stride, p_.mean_array,
                      (isinf(scale.mean) ? scale.mean : both) / scale.scale);
    }
  }

 private:
  template <class U, class Data>
  __device__ U* at(Data* data, std::int64_t stride, const RowArray& array) const {
    return static_cast<U*>(data) + row_offset<kAccess, true>(p_.split, stride, array, row_);
  }
  __device__ void store_statistic(accumulate_t<T>* data, std::int64_t stride, const RowArray& array,
                                  accumulate_t<T> value) const {
    if (data != nullptr) *at<accumulate_t<T>>(data, stride, array) = value;
  }

  const Params& p_;
  std::int64_t row_;
  Reader x_;
  Reader fused_input_;
};

// A vector of a row, and of its result, for rarely executed code. Out of line: inlined into each of
// its passes, the overflow-safe path was a fifth of all machine code.
template <class T, Access kAccess, FusedInput kFusedInput>
__device__ __noinline__ SourceVector<T, kFusedInput> cold_vector(
    const RmsNormParams<accumulate_t<T>>& p, std::int64_t row, int index) {
  return NormRow<T, kAccess, kFusedInput>(p, row).load_vector(index);
}
template <class T, Access kAccess, FusedInput kFusedInput, Centring kCentring>
__device__ __noinline__ uint4 cold_result(const RmsNormParams<accumulate_t<T>>& p, std::int64_t row,
                                          std::int64_t head, RowScale<accumulate_t<T>> scale,
                                          int index) {
  const NormRow<T, kAccess, kFusedInput> from(p, row);
  const SourceVector<T, kFusedInput> vector = from.load_vector(index);
  const AffineParameters<T, kAccess, kCentring> columns(p, head);
  return from.result(
      columns.template normalised<false>(vector.numbers(p), scale, columns.load(index),
                                         columns.load_bias(index), index),
      vector);
}

// Whether the rows of a thread group are staged in shared memory or kept in registers.
template <class T, class ThreadGroup, Access kAccess, FusedInput kFusedInput, Centring kCentring,
          bool kQuantised>
inline constexpr bool kStaged =
    ThreadGroup::kStagesRow && stages_row(ThreadGroup::kVectorsPerItem,
                                          {kAccess, kFusedInput, kCentring, kQuantised}, sizeof(T));

// Whether a single bulk copy brings the block's part of the row. It costs the other threads no
// instructions, but they wait for all of it, so only float32 LayerNorm gains (8192 x 16384 on H200:
// 295 -> 271 us).
template <class T, class ThreadGroup, Centring kCentring>
inline constexpr bool kStagedByBulkCopy =
    ThreadGroup::kClusters && sizeof(T) == 4 && kCentring == Centring::kAlways;

// Arrays of vectors in shared memory.
template <FusedInput kFusedInput>
inline constexpr int kStagedArrays = kFusedInput == FusedInput::kNone ? 1 : 2;

// The vectors of a thread in registers, where fetch() loads them.
template <class T, class ThreadGroup, Access kAccess, FusedInput kFusedInput>
class RegisterVectors {
  using Row = NormRow<T, kAccess, kFusedInput>;
  using Tile = RegisterTile<ThreadGroup, kAccess>;
  static constexpr int kVectors = Tile::kVectors;

 public:
  using Vector = typename Row::Vector;
  __device__ RegisterVectors(const Row& row, const Tile& tile) : row_(row), tile_(tile) {}

  __device__ void fetch(const RmsNormParams<accumulate_t<T>>&) {
    row_.fetch(vectors_, [this](int i) { return tile_.index(i); });
  }
  __device__ void receive() {}
  __device__ const Vector& at(int i) const { return vectors_[i]; }
  // Between two uses: the unpacked numbers need not stay in registers.
  __device__ void rematerialise() {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) compiler_barrier(vectors_[i].parts);
  }

 private:
  const Row& row_;
  const Tile& tile_;
  Vector vectors_[kVectors];
};

// The same in dynamic shared memory, where each thread stages its own vectors, so that more of them
// are in flight than registers could hold (1024 x 4096 bfloat16 LayerNorm on H200: 8.1 -> 6.8 us).
template <class T, class ThreadGroup, FusedInput kFusedInput, Centring kCentring>
class StagedVectors {
  using Row = NormRow<T, Access::kAligned, kFusedInput>;
  using Tile = RegisterTile<ThreadGroup, Access::kAligned>;
  using Part = StagedRowPart<kStagedByBulkCopy<T, ThreadGroup, kCentring>>;
  static constexpr bool kHasFusedInput = kFusedInput != FusedInput::kNone;

 public:
  using Vector = typename Row::Vector;
  __device__ StagedVectors(const Row& row, const Tile& tile) : row_(row), tile_(tile) {}

  __device__ void fetch(const RmsNormParams<accumulate_t<T>>& p) {
    if constexpr (kHasFusedInput) {
      uint4* const to[] = {part(0), part(1)};
      Part::fetch(to, tile_, p.vectors, [&](int array, int index) {
        return array == 0 ? row_.x().address(index) : row_.fused_input().address(index);
      });
    } else {
      uint4* const to[] = {part(0)};
      Part::fetch(to, tile_, p.vectors, [&](int, int index) { return row_.x().address(index); });
    }
  }
  __device__ void receive() { Part::receive(); }
  __device__ Vector at(int i) const {
    Vector vector;
    vector.parts[0] = part(0)[tile_.place(i)];
    if constexpr (kHasFusedInput) vector.parts[1] = part(1)[tile_.place(i)];
    return vector;
  }
  __device__ void rematerialise() { asm volatile("" ::: "memory"); }
  // The result of an aligned vector replaces its x.
  __device__ uint4& result(int i) const { return part(0)[tile_.place(i)]; }

 private:
  __device__ uint4* part(int array) const {
    extern __shared__ uint4 staging[];
    return staging + array * tile_.places() + tile_.first_slot();
  }
  const Row& row_;
  const Tile& tile_;
};

}  // namespace membound::cuda
