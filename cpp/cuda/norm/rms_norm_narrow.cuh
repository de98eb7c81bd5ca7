// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// LayerNorm of very many narrow rows that are aligned, without options.
#include "cuda/row/pair.cuh"

namespace membound::cuda {

// The rows of a block, two to a thread group.
template <class T, bool kThreeQuartersFull>
class NarrowRows {
  static constexpr Centring kCentring = Centring::kAlways;
  using Accumulate = accumulate_t<T>;
  using Params = RmsNormParams<Accumulate>;
  using RowsOfThreadGroup = RowPair<T, FusedInput::kNone, kCentring, kThreeQuartersFull>;
  using Vectors = typename RowsOfThreadGroup::Vectors;
  using Scale = typename RowsOfThreadGroup::Scale;
  using Row = NormRow<T, Access::kAligned, FusedInput::kNone>;
  static constexpr int kRows = RowsOfThreadGroup::kRows;
  static constexpr int kPlaces = RowsOfThreadGroup::kPlaces;
  static constexpr int kColumns =
      WarpThreadGroup::kVectorsPerItem;  // vectors of them that a lane needs

 public:
  __device__ explicit NarrowRows(const Params& p) : p_(p), pair_(p), columns_(p, 0) {}

  __device__ void run() const {
    uint4 weights[kColumns], biases[kColumns];
    const auto index = [&](int i) { return i == 0 ? pair_.lane() : pair_.second(); };
    columns_.template load<true>(weights, index);
    columns_.clear_bias(biases);
    columns_.template load_bias<true>(biases, index);
    Vectors held;
    fetch(held);
    Scale scales[kRows + 1];
    const unsigned again = pair_.take_scales(held, scales, Tail{has_second()});
    if (again != 0) [[unlikely]] {
      return pair_.each_again(again, [&](int i, bool plain) {
        rescale<T, WarpThreadGroup, Access::kAligned, FusedInput::kNone, kCentring, StoreResult>(
            p_, plain, first_block(i));
      });
    }
#pragma unroll
    for (int place = 0; place < kPlaces; ++place) compiler_barrier(held[place].parts);
    put(held, scales, weights, biases);
  }

 private:
  // What of a second vector is in the row: all or nothing.
  struct Tail {
    bool there;
    __device__ void cut(Numbers<T>&) const {}
    __device__ void cut(Accumulate& sum, Accumulate& squares) const {
      sum = there ? sum : Accumulate(0);
      squares = there ? squares : Accumulate(0);
    }
  };

  // What a thread group counts the i-th row of the pair from.
  static __device__ int first_block(int i) {
    return static_cast<int>(blockIdx.x) * (1 - kRows) - i;
  }
  // The vector of a place, and its row.
  __device__ int index(int place) const { return place < kRows ? pair_.lane() : pair_.second(); }
  __device__ int of_pair(int place) const {
    return kThreeQuartersFull && place == kRows ? pair_.upper() : place % kRows;
  }
  __device__ bool has_second() const { return pair_.second() < p_.vectors; }
  __device__ bool has(int place) const {
    return pair_.row(of_pair(place)) < p_.rows && (place < kRows || has_second());
  }

  // Zeros where there is none. The first vectors last, which the pivots wait for: the compiler
  // moved the load of another behind those (H100, 80 columns of bfloat16: 69 to 78 us).
  __device__ void fetch(Vectors& held) const {
#pragma unroll
    for (int place = kPlaces - 1; place >= 0; --place) {
      const Row from(p_, pair_.row(of_pair(place)));
      held[place].parts[0] = has(place) ? read_vector(from.x().address(index(place))) : uint4{};
    }
  }
  __device__ void put(const Vectors& held, const Scale (&scales)[kRows + 1],
                      const uint4 (&weights)[kColumns], const uint4 (&biases)[kColumns]) const {
#pragma unroll
    for (int place = 0; place < kPlaces; ++place) {
      const int column = place / kRows;
      const Scale& scale = scales[kThreeQuartersFull ? place : place % kRows];
      const Numbers<T> y = columns_.template normalised<true>(held[place].numbers(p_), scale,
                                                              weights[column], biases[column], 0);
      if (!has(place)) continue;
      Row(p_, pair_.row(of_pair(place))).out().store(index(place), pack<T>(y));
    }
  }

  const Params& p_;
  const RowsOfThreadGroup pair_;
  AffineParameters<T, Access::kAligned, kCentring> columns_;
};

// A block does two rows for each of its thread groups, all of them asked for at once. Registers
// hold the weight and the bias. Limited by instructions: for a row alone those around its vectors
// were as many as those on them (H200, 128 columns of bfloat16: 387 for two vectors, 300 with two
// rows). Registers: in four places 64 of them spill, 72 do not; seven blocks are faster than six
// (H200, bfloat16, 524288 x 128, 67.3 and 71.8 us).
template <class T, bool kThreeQuartersFull>
__global__ void __launch_bounds__(tuning::kWarpFormThreads, kThreeQuartersFull ? 8 : 7)
    rms_norm_narrow_kernel(const __grid_constant__ RmsNormParams<accumulate_t<T>> p) {
  const NarrowRows<T, kThreeQuartersFull> rows(p);
  if (p.overlap_launch) pdl_wait_and_launch();
  rows.run();
}

}  // namespace membound::cuda
