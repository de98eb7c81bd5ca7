// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Very many narrow rows that are centred: what a thread finds out once serves two of them.
#include "cuda/l2_priority.cuh"
#include "cuda/rms_norm_kernels.cuh"
#include "cuda/tuning/rms_norm.hpp"

namespace membound::cuda {

// Two rows of one team of a warp, with the tree of HeldRow. Aligned rows that fill their lanes,
// with a weight and a bias of x's dtype, no options and nothing beside them.
template <class T>
class NarrowRows {
  using Accumulate = accumulate_t<T>;
  using Params = RmsNormParams<Accumulate>;
  using Scale = RowScale<Accumulate>;
  static constexpr Centring kCentring = Centring::kAlways;
  static constexpr int kChunks = WarpTeam::kVecs;
  static constexpr int kRows = tuning::kNarrowRows;

 public:
  __device__ explicit NarrowRows(const Params& p)
      : p_(p),
        team_(p.lanes, 1, first_block(0)),
        columns_(p, 0),
        step_(static_cast<int>(blockDim.x) / p.lanes) {}

  __device__ void run() const {
    uint4 weights[kChunks], biases[kChunks], chunks[kRows][kChunks];
    const auto index = [&](int i) { return i * p_.lanes + team_.lane; };
    columns_.load(weights, index);
    columns_.clear_bias(biases);
    columns_.load_bias(biases, index);
#pragma unroll
    for (int i = 0; i < kRows; ++i) fetch(chunks[i], row(i));
    bool trusted[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      // As numbers, weights and biases would be 16 registers more and two blocks less.
      forget_numbers(weights);
      forget_numbers(biases);
      trusted[i] = finish(chunks[i], row(i), weights, biases);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (team_.any(!trusted[i])) [[unlikely]] {
        rescale<T, WarpTeam, Access::kAligned, Beside::kNothing, kCentring, StoreResult>(
            p_, trusted[i], first_block(i));
      }
    }
  }

 private:
  // What a team counts its i-th row from: those of a block are beside each other.
  static __device__ int first_block(int i) {
    return static_cast<int>(blockIdx.x) * (1 - kRows) - i;
  }
  __device__ std::int64_t row(int i) const { return team_.row + i * step_; }
  __device__ int apart() const { return p_.lanes * kPack<T>; }
  template <class U>
  __device__ U* at(U* data, std::int64_t stride, std::int64_t row) const {
    return data + row * stride + team_.lane * kPack<T>;
  }

  // Zeros past the last row.
  __device__ void fetch(uint4 (&chunks)[kChunks], std::int64_t row) const {
    const T* const x = at(static_cast<const T*>(p_.x), p_.x_row_stride, row);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      chunks[i] = {0u, 0u, 0u, 0u};
      if (row < p_.rows) chunks[i] = read_chunk(x + i * apart());
    }
  }

  // As pivot_of has it, from the lanes that hold the first elements.
  __device__ Accumulate pivot(const uint4& first) const {
    constexpr int kHolders = kPivotElements<T> / kPack<T>;
    const Accumulate mine = sum<T>(unpack<T>(first));
    Accumulate total = 0;
#pragma unroll
    for (int holder = 0; holder < kHolders; ++holder) {
      total += __shfl_sync(0xffffffffu, mine, holder, p_.lanes);
    }
    return total * (Accumulate(1) / kPivotElements<T>);
  }

  // Writes a row unless it, or another of its warp, has to be done again; whether it need not.
  __device__ bool finish(const uint4 (&chunks)[kChunks], std::int64_t row,
                         const uint4 (&weights)[kChunks], const uint4 (&biases)[kChunks]) const {
    Scale scale;
    scale.mean = pivot(chunks[0]);
    Pair<Accumulate> sums(0);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const Numbers<T> x = deviations<T, kCentring>(unpack<T>(chunks[i]), scale);
      const Pair<Accumulate> more(sum<T>(x), sum_of_squares<T>(x));
      sums = i == 0 ? more : sums + more;
    }
#pragma unroll
    for (int offset = kWarpLanes / 2; offset > 0; offset /= 2) {
      if (offset < p_.lanes) sums = sums + shuffle_xor(sums, offset);
    }
    bool sound = true;
    const Accumulate squares = leave_pivot<T>(scale, sums, p_.inverse_cols, sound);
    const bool active = row < p_.rows;
    const bool trusted = !active || (sound && is_trusted(p_, squares));
    if (team_.any(!trusted)) [[unlikely]]
      return trusted;
    scale.rstd = plain_rstd(p_, squares);
    if (!active) return true;
    if (p_.rstd != nullptr || p_.mean != nullptr) {
      if (team_.lane == 0) store_statistics(row, scale);
    }
    T* const out = at(static_cast<T*>(p_.out), p_.out_row_stride, row);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      *reinterpret_cast<uint4*>(out + i * apart()) = pack<T>(columns_.template normalised<true>(
          unpack<T>(chunks[i]), scale, weights[i], biases[i], 0));
    }
    return true;
  }

  // As NormRow has it.
  __device__ void store_statistics(std::int64_t row, const Scale& scale) const {
    if (p_.rstd != nullptr) p_.rstd[row * p_.rstd_row_stride] = scale.rstd;
    if (p_.mean != nullptr) p_.mean[row * p_.mean_row_stride] = scale.mean + scale.correction;
  }

  const Params& p_;
  const WarpTeam team_;
  Columns<T, Access::kAligned, kCentring> columns_;
  int step_;  // rows of a block at once
};

// A block does kNarrowRows for each of its teams, all of them asked for at once. Registers hold the
// weight and the bias. Limited by instructions: for a row alone those around its chunks were as
// many as those on them (H200, 128 columns of bfloat16: 387 for two chunks, 300 with two rows).
template <class T>
__global__ void __launch_bounds__(tuning::kWarpFormThreads, 8)
    rms_norm_narrow_kernel(const __grid_constant__ RmsNormParams<accumulate_t<T>> p) {
  const NarrowRows<T> rows(p);
  if (p.overlap_launch) begin_overlapped();
  rows.run();
}

}  // namespace membound::cuda
