// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Norms of many narrow rows that start anywhere, without gaps and without options.
#include "cuda/rms_norm_dense_pieces.cuh"
#include "cuda/tuning/dense_rows.hpp"

namespace membound::cuda {

// The rows of a block. A team of lanes has two at once, with the tree of HeldRow: half of the lanes
// finish the sums of one, half those of the other. Its places are the first chunks of a lane in
// both rows, then the second; kSpares: where rows leave a quarter of those empty, a lane has one
// second chunk, of the row whose sums it finishes.
template <class T, Beside kBeside, Centring kCentring, bool kSpares>
class DenseRows {
  using Accumulate = accumulate_t<T>;
  using Params = RmsNormDenseParams<Accumulate>;
  using Chunk = SourceChunk<T, kBeside>;
  using Scale = RowScale<Accumulate>;
  using Pieces = DensePieces<T, kBeside>;
  static constexpr int kRows = tuning::kDenseRows;
  static constexpr int kSecond = kSpares ? 1 : kRows;  // places of second chunks
  static constexpr int kPlaces = kRows + kSecond;
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr bool kCentred = kCentring != Centring::kNever;
  using Chunks = Chunk[kPlaces];

 public:
  __device__ explicit DenseRows(const Params& p)
      : p_(p),
        team_(p.lanes, 1, 0),
        half_(p.lanes / 2),
        upper_(team_.lane & half_),
        second_(p.lanes + (kSpares ? team_.lane & (half_ - 1) : team_.lane)) {
    last_ = min(max(cols() - second_ * kPack<T>, 0), kPack<T>);
    const int row_bytes = (row(1) - row(0)) * cols() * kSize;
    behind_[0] = 0;
    behind_[1] = row_bytes;
    // Where there is no second chunk the first is read again.
    const int second = last_ > 0 ? (second_ - team_.lane) * kChunkBytes : 0;
    behind_[kRows] = second + (kSpares && upper_ && last_ > 0 ? row_bytes : 0);
    if constexpr (!kSpares) behind_[kRows + 1] = second + row_bytes;
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
  // One of the team's rows in the piece.
  __device__ int row(int i) const {
    const int shift = log2_of(p_.lanes);
    return (static_cast<int>(threadIdx.x) >> shift) + i * (static_cast<int>(blockDim.x) >> shift);
  }
  __device__ DenseChunks<T> chunks(const DensePiece<T>& piece) const {
    return piece.chunks(cols(), (row(0) * cols() + team_.lane * kPack<T>)*kSize);
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
    const auto index = [&](int i) { return i * team_.size + team_.lane; };
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
    const unsigned again = take_scales(pieces, held, scales);
    __syncthreads();  // all have been read: results go there
    if constexpr (kBeside == Beside::kResidual) {
      const auto sum = [&](int place) { return pack<T>(held[place].numbers(p_)); };
      const DenseChunks<T> to = chunks(pieces.result(1));
      put<0, kRows>(to, kPack<T>, sum);
      put<kRows, kSecond>(to, last_, sum);
    }
    if (again != 0) [[unlikely]]
      return rescale(pieces, again);
#pragma unroll
    for (int place = 0; place < kPlaces; ++place) forget_numbers(held[place].parts);
    const DenseChunks<T> to = chunks(pieces.result(0));
    put_result<0, kRows>(to, team_.lane, kPack<T>, held, scales);
    put_result<kRows, kSecond>(to, second_, last_, held, scales + (kSpares ? kRows : 0));
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

  // Those of both rows, then of the lane's own, and its statistics. Returns a bit for each lane
  // whose row has to be done again.
  __device__ unsigned take_scales(const Pieces& pieces, const Chunks& held,
                                  Scale (&scales)[kRows + 1]) const {
    Scale& own = scales[kRows];
    bool sound = true;
    const Accumulate squares = squares_of(held, own, sound);
    own.rstd = plain_rstd(p_, squares);
    const int row = this->row(upper_);
    const bool active = row < pieces.rows();
    const unsigned again =
        __ballot_sync(0xffffffffu, active && !(sound && is_trusted(p_, squares)));
    if (again != 0) [[unlikely]]
      return again;
    if (active && (team_.lane & (half_ - 1)) == 0 && (p_.rstd != nullptr || p_.mean != nullptr)) {
      NormRow<T, Access::kShifted, kBeside>(p_, pieces.first_row() + row)
          .template store_statistics<kCentring>(own);
    }
    const auto share = [&](Accumulate Scale::* part) {
      const Accumulate other = shuffle_xor(own.*part, half_);
      scales[0].*part = upper_ ? other : own.*part;
      scales[1].*part = upper_ ? own.*part : other;
    };
    share(&Scale::rstd);
    if constexpr (kCentred) share(&Scale::mean);
    if constexpr (kCentred && kCorrectsMean<T>) share(&Scale::correction);
    return 0;
  }
  __device__ void rescale(const Pieces& pieces, unsigned again) const {
    const int first_lane = static_cast<int>(threadIdx.x) % kWarpLanes - team_.lane;
#pragma unroll 1
    for (int i = 0; i < kRows; ++i) {
      const bool plain = (again >> (first_lane + i * half_) & 1) == 0;
      rescale_dense<T, kBeside, kCentring>(p_, pieces.first_row() + row(i), plain);
    }
  }

  // Of this lane's row, whose mean it sets.
  __device__ Accumulate squares_of(const Chunks& held, Scale& own, bool& sound) const {
    if constexpr (!kCentred) {
      Accumulate of_place[kPlaces];
#pragma unroll
      for (int place = 0; place < kPlaces; ++place) {
        of_place[place] = sum_of_squares<T>(held[place].numbers(p_));
      }
      return finish(one_row(of_place), half_ / 2);
    } else {
      Accumulate pivots[kRows], sums[kPlaces], squares[kPlaces];
#pragma unroll
      for (int row = 0; row < kRows; ++row) pivots[row] = pivot(held[row].numbers(p_));
      own.mean = upper_ ? pivots[1] : pivots[0];
#pragma unroll
      for (int place = 0; place < kPlaces; ++place) {
        const bool second = place >= kRows;
        const Numbers<T> x = about(second && kSpares ? own.mean : pivots[place % kRows],
                                   held[place].numbers(p_), second);
        sums[place] = sum<T>(x);
        squares[place] = sum_of_squares<T>(x);
      }
      const int quarter = half_ / 2;
      const Accumulate one = finish(split(one_row(sums), one_row(squares), quarter), quarter / 2);
      const Accumulate other = shuffle_xor(one, quarter);
      const bool has_squares = team_.lane & quarter;
      return leave_pivot<T>(
          own, has_squares ? Pair<Accumulate>(other, one) : Pair<Accumulate>(one, other),
          p_.inverse_cols, sound);
    }
  }
  __device__ Numbers<T> about(Accumulate pivot, const Numbers<T>& numbers, bool second) const {
    Scale scale;
    scale.mean = pivot;
    Numbers<T> x = deviations<T, kCentring>(numbers, scale);
    if (second) {
      const Masks& mask = masks()[last_];
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        x.at[i] = __uint_as_float(__float_as_uint(x.at[i]) & mask.words[i]);
      }
    }
    return x;
  }
  // The first step of the tree, for the lane's own row.
  __device__ Accumulate one_row(const Accumulate (&of_place)[kPlaces]) const {
    if constexpr (kSpares) {
      const Accumulate theirs = shuffle_xor(upper_ ? of_place[0] : of_place[1], half_);
      const Accumulate lower = upper_ ? theirs : of_place[0];
      return (lower + of_place[2]) + (upper_ ? of_place[1] : theirs);
    } else {
      return split(of_place[0] + of_place[2], of_place[1] + of_place[3], half_);
    }
  }
  // One step for two values: the lower lanes go on with a, the upper with b.
  __device__ Accumulate split(Accumulate a, Accumulate b, int offset) const {
    const bool upper = team_.lane & offset;
    return (upper ? b : a) + shuffle_xor(upper ? a : b, offset);
  }
  // The other steps.
  __device__ Accumulate finish(Accumulate value, int offset) const {
#pragma unroll
    for (int of_warp = kWarpLanes / 4; of_warp > 0; of_warp /= 2) {
      if (of_warp <= offset) value += shuffle_xor(value, of_warp);
    }
    return value;
  }
  // As pivot_of has it, from the lanes that hold the first elements.
  __device__ Accumulate pivot(const Numbers<T>& first) const {
    constexpr int kHolders = kPivotElements<T> / kPack<T>;
    const Accumulate mine = sum<T>(first);
    Accumulate total = 0;
#pragma unroll
    for (int holder = 0; holder < kHolders; ++holder) {
      total += __shfl_sync(0xffffffffu, mine, holder, p_.lanes);
    }
    return total * (Accumulate(1) / kPivotElements<T>);
  }

  const Params& p_;
  const WarpTeam team_;
  const int half_;       // of the lanes
  const bool upper_;     // whether this lane finishes the second row
  const int second_;     // index of its second chunk
  int last_;             // elements of the row in that
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
