// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// LayerNorm of very many narrow rows that are aligned and without options.
#include "cuda/row/pair.cuh"

namespace membound::cuda {

// The rows of a block, two per thread group.
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
      WarpThreadGroup::kVectorsPerItem;  // affine vectors that a lane needs

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
    const unsigned again = pair_.compute_scales(held, scales, Tail{has_second()});
    if (again != 0) [[unlikely]] {
      return pair_.run_safe_path(again, [&](int i, bool plain) {
        rescale<T, WarpThreadGroup, Access::kAligned, FusedInput::kNone, kCentring, StoreResult>(
            p_, plain, first_block(i));
      });
    }
#pragma unroll
    for (int place = 0; place < kPlaces; ++place) compiler_barrier(held[place].parts);
    write_out(held, scales, weights, biases);
  }

 private:
  // Whether the second vector is in the row: aligned rows have all of it or nothing.
  struct Tail {
    bool there;
    __device__ void cut(Numbers<T>&) const {}
    __device__ void cut(Accumulate& sum, Accumulate& squares) const {
      sum = there ? sum : Accumulate(0);
      squares = there ? squares : Accumulate(0);
    }
  };

  // The first_block with which a thread group of rescale() gets row i of its pair: the row that
  // block (2 * blockIdx.x + i) would have at one row per thread group.
  static __device__ int first_block(int i) {
    return static_cast<int>(blockIdx.x) * (1 - kRows) - i;
  }
  // The index of the vector in a place, and the row of the pair that it belongs to.
  __device__ int index(int place) const { return place < kRows ? pair_.lane() : pair_.second(); }
  __device__ int of_pair(int place) const {
    return kThreeQuartersFull && place == kRows ? pair_.upper() : place % kRows;
  }
  __device__ bool has_second() const { return pair_.second() < p_.vectors; }
  __device__ bool has(int place) const {
    return pair_.row(of_pair(place)) < p_.rows && (place < kRows || has_second());
  }

  // Zero past the row. The first vectors, needed for the variance shift, are loaded last, else the
  // compiler delays the other loads behind the shift (80 columns on H100: 69 -> 78 us).
  __device__ void fetch(Vectors& held) const {
#pragma unroll
    for (int place = kPlaces - 1; place >= 0; --place) {
      const Row from(p_, pair_.row(of_pair(place)));
      held[place].parts[0] = has(place) ? read_vector(from.x().address(index(place))) : uint4{};
    }
  }
  __device__ void write_out(const Vectors& held, const Scale (&scales)[kRows + 1],
                            const uint4 (&weights)[kColumns],
                            const uint4 (&biases)[kColumns]) const {
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

// A block works on two rows per thread group, all of whose loads are in flight at once. Weight and
// bias are in registers; there is no shared memory. Limited by instructions: at one row per thread
// group, those around a row's vectors were as many as those on them. The launch bounds allow 72
// registers for four vectors per lane, which spill at 64; seven blocks per SM are faster than six.
template <class T, bool kThreeQuartersFull>
__global__ void __launch_bounds__(tuning::kWarpFormThreads, kThreeQuartersFull ? 8 : 7)
    rms_norm_narrow_kernel(const __grid_constant__ RmsNormParams<accumulate_t<T>> p) {
  const NarrowRows<T, kThreeQuartersFull> rows(p);
  if (p.overlap_launch) pdl_wait_and_launch();
  rows.run();
}

}  // namespace membound::cuda
