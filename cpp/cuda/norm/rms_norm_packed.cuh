// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Norms of many narrow rows that start anywhere, without gaps and without options.
#include "cuda/norm/rms_norm_packed_vectors.cuh"
#include "cuda/row/pair.cuh"

namespace membound::cuda {

// The rows of a block, two to a team.
template <class T, Beside kBeside, Centring kCentring, bool kSpares>
class DenseRows {
  using Accumulate = accumulate_t<T>;
  using Params = RmsNormDenseParams<Accumulate>;
  using RowsOfTeam = RowPair<T, kBeside, kCentring, kSpares>;
  using Chunks = typename RowsOfTeam::Chunks;
  using Scale = typename RowsOfTeam::Scale;
  using Pieces = DensePieces<T, kBeside>;
  static constexpr int kRows = RowsOfTeam::kRows;
  static constexpr int kSecond = RowsOfTeam::kSecond;
  static constexpr int kPlaces = RowsOfTeam::kPlaces;
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr bool kCentred = RowsOfTeam::kCentred;

 public:
  __device__ explicit DenseRows(const Params& p) : p_(p), pair_(p) {
    const int second = pair_.second();
    last_ = min(max(cols() - second * kPack<T>, 0), kPack<T>);
    const int row_bytes = (pair_.in_block(1) - pair_.in_block(0)) * cols() * kSize;
    behind_[0] = 0;
    behind_[1] = row_bytes;
    // Where there is no second chunk the first is read again.
    const int to_second = last_ > 0 ? (second - pair_.lane()) * kChunkBytes : 0;
    behind_[kRows] = to_second + (kSpares && pair_.upper() && last_ > 0 ? row_bytes : 0);
    if constexpr (!kSpares) behind_[kRows + 1] = to_second + row_bytes;
  }

  __device__ void run() const {
#if MEMBOUND_HAS_CLUSTERS
    __shared__ std::uint64_t arrived;
    const Pieces pieces(p_);
    if (threadIdx.x == 0) fetch(pieces, &arrived);
    if (threadIdx.x < p_.lanes) load_columns();
    fill_masks();
    __syncthreads();
    wait_for_arrivals(&arrived, 0);
    both_rows(pieces);
    wrote_before_copies();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < Pieces::kResults; ++i) pieces.result(i).send();
    if (threadIdx.x == 0) wait_for_sent();
#endif
  }

 private:
  __device__ int cols() const { return static_cast<int>(p_.cols); }
  __device__ DenseChunks<T> chunks(const DensePiece<T>& piece) const {
    return piece.chunks(cols(), (pair_.in_block(0) * cols() + pair_.lane() * kPack<T>)*kSize);
  }
  // What of a chunk's numbers, or elements, is in the row, by how many are.
  using Mask = std::conditional_t<kCentred, Accumulate, T>;
  struct Masks {
    std::uint32_t words[kPack<T> * sizeof(Mask) / 4];
  };
  static __device__ Masks* masks() {
    __shared__ alignas(kChunkBytes) Masks masks[kPack<T> + 1];
    return masks;
  }
  // What of a second chunk is in the row.
  struct Tail {
    int elements;
    __device__ void cut(Numbers<T>& x) const {
      const Masks& mask = masks()[elements];
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        x.at[i] = __uint_as_float(__float_as_uint(x.at[i]) & mask.words[i]);
      }
    }
    __device__ void cut(Accumulate&, Accumulate&) const {}
  };
  static __device__ void fill_masks() {
    const auto count = static_cast<int>(threadIdx.x);
    if (count > kPack<T>) return;
    const int bytes = count * static_cast<int>(sizeof(Mask));
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(Masks)) / kChunkBytes; ++i) {
      reinterpret_cast<uint4*>(&masks()[count])[i] =
          first_bytes({~0u, ~0u, ~0u, ~0u}, bytes - i * kChunkBytes);
    }
  }
  // Chunks of weights, and behind them of biases.
  static constexpr int kColumns = WarpTeam::kVecs * kWarpLanes;
  static __device__ uint4* columns() {
    __shared__ uint4 columns[(kCentred ? 2 : 1) * kColumns];
    return columns;
  }
  __device__ void load_columns() const {
    const Columns<T, Access::kShifted, kCentring> of(p_, 0);
    const auto index = [&](int i) { return i * p_.lanes + pair_.lane(); };
    uint4 weights[WarpTeam::kVecs], biases[WarpTeam::kVecs];
    of.template load<true>(weights, index);
    of.clear_bias(biases);
    of.template load_bias<true>(biases, index);
#pragma unroll
    for (int i = 0; i < WarpTeam::kVecs; ++i) {
      columns()[index(i)] = weights[i];
      if constexpr (kCentred) columns()[kColumns + index(i)] = biases[i];
    }
  }
#if MEMBOUND_HAS_CLUSTERS
  static __device__ void fetch(const Pieces& pieces, std::uint64_t* arrived) {
    start_arrivals(arrived, Pieces::kSources);
    settle_arrivals();
#pragma unroll
    for (int i = 0; i < Pieces::kSources; ++i) {
      pieces.source(i).fetch(arrived, blockIdx.x == 0, blockIdx.x == gridDim.x - 1);
    }
  }
#endif

  __device__ void both_rows(const Pieces& pieces) const {
    Chunks held;
    load(pieces, held);
    Scale scales[kRows + 1];
    const unsigned again = pair_.take_scales(held, scales, Tail{last_});
    __syncthreads();  // all have been read: results go there
    if constexpr (kBeside == Beside::kResidual) {
      const auto sum = [&](int place) { return pack<T>(held[place].numbers(p_)); };
      const DenseChunks<T> to = chunks(pieces.result(1));
      put<0, kRows>(to, kPack<T>, sum);
      put<kRows, kSecond>(to, last_, sum);
    }
    if (again != 0) [[unlikely]] {
      return pair_.each_again(again, [&](int i, bool plain) {
        rescale_dense<T, kBeside, kCentring>(p_, pair_.row(i), plain);
      });
    }
#pragma unroll
    for (int place = 0; place < kPlaces; ++place) forget_numbers(held[place].parts);
    const DenseChunks<T> to = chunks(pieces.result(0));
    put_result<0, kRows>(to, pair_.lane(), kPack<T>, held, scales);
    put_result<kRows, kSecond>(to, pair_.second(), last_, held, scales + (kSpares ? kRows : 0));
  }

  // Not centred, with zeros behind the row.
  __device__ void load(const Pieces& pieces, Chunks& held) const {
#pragma unroll
    for (int array = 0; array < Pieces::kSources; ++array) {
      uint4 loaded[kPlaces];
      chunks(pieces.source(array)).load(behind_, loaded);
#pragma unroll
      for (int place = 0; place < kPlaces; ++place) {
        uint4& chunk = loaded[place];
        if (!kCentred && place >= kRows) {
          const uint4 mask = reinterpret_cast<const uint4&>(masks()[last_]);
          chunk = {chunk.x & mask.x, chunk.y & mask.y, chunk.z & mask.z, chunk.w & mask.w};
        }
        held[place].parts[array] = chunk;
      }
    }
  }
  // make(place) for kCount places, of which `count` elements are in the row.
  template <int kFirst, int kCount, class Make>
  __device__ void put(const DenseChunks<T>& to, int count, Make make) const {
    int behind[kCount];
    uint4 results[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      behind[i] = behind_[kFirst + i];
      results[i] = make(kFirst + i);
    }
    to.store(behind, results, count);
  }
  // All of one index; scales: one for each place.
  template <int kFirst, int kCount>
  __device__ void put_result(const DenseChunks<T>& to, int index, int count, const Chunks& held,
                             const Scale* scales) const {
    const Columns<T, Access::kShifted, kCentring> of(p_, 0);
    const uint4 weight = columns()[index];
    uint4 bias;
    if constexpr (kCentred) bias = columns()[kColumns + index];
    put<kFirst, kCount>(to, count, [&](int place) {
      Numbers<T> y = of.template normalised<true>(held[place].numbers(p_), scales[place - kFirst],
                                                  weight, bias, 0);
      if constexpr (kBeside == Beside::kGate) pass_gate<T, kBeside>(p_, y, held[place].parts[1]);
      return pack<T>(y);
    });
  }

  const Params& p_;
  const RowsOfTeam pair_;
  int last_;             // elements of the row in the second chunk
  int behind_[kPlaces];  // bytes from the first place
};

// A block does two rows for each of its teams. Shared memory: the pieces, which become the results,
// the weight and the bias. Limited by memory, LayerNorm by instructions. Registers: with a residual
// or a gate 64 of them spill, and six blocks are faster (H200, bfloat16, 396312 x 127 with a
// residual: 98 us, 118).
template <class T, Beside kBeside, Centring kCentring, bool kSpares>
__global__ void __launch_bounds__(tuning::kWarpFormThreads, kBeside == Beside::kNothing ? 8 : 6)
    rms_norm_dense_kernel(const __grid_constant__ RmsNormDenseParams<accumulate_t<T>> p) {
  if constexpr (MEMBOUND_HAS_CLUSTERS) {
    const DenseRows<T, kBeside, kCentring, kSpares> rows(p);
    if (p.overlap_launch) begin_overlapped();
    rows.run();
  }
}

}  // namespace membound::cuda
