// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A pair of rows processed together by one thread group within a warp. Indices and parameters are
// computed once for both rows; half of the lanes finish the sums of one row, half those of the
// other. The reduction tree is that of HeldRow.
#include "cuda/norm/rms_norm_config.hpp"
#include "cuda/norm/rms_norm_kernels.cuh"
#include "cuda/norm/rms_norm_shift.cuh"

namespace membound::cuda {

// The vector slots of a lane are the first vectors of both rows, then the second vectors.
// kThreeQuartersFull: rows leave a quarter of these slots empty, and a lane has one second vector
// only, that of the row whose sums it finishes.
template <class T, FusedInput kFusedInput, Centring kCentring, bool kThreeQuartersFull>
class RowPair {
  using Accumulate = accumulate_t<T>;
  using Params = RmsNormParams<Accumulate>;

 public:
  static constexpr int kRows = tuning::kPairRows;
  static constexpr int kSecond = kThreeQuartersFull ? 1 : kRows;  // slots of second vectors
  static constexpr int kPlaces = kRows + kSecond;
  static constexpr bool kCentred = kCentring != Centring::kNever;
  using Vector = SourceVector<T, kFusedInput>;
  using Vectors = Vector[kPlaces];
  using Scale = RowScale<Accumulate>;

  __device__ explicit RowPair(const Params& p)
      : p_(p),
        lanes_(p.lanes),
        lane_(static_cast<int>(threadIdx.x) & (p.lanes - 1)),
        half_(p.lanes / 2),
        upper_(lane_ & half_) {}

  __device__ int lane() const { return lane_; }
  // Whether this lane finishes the second row.
  __device__ bool upper() const { return upper_; }
  // The index of this lane's second vector, which may be past the end of the row.
  __device__ int second() const {
    return lanes_ + (kThreeQuartersFull ? lane_ & (half_ - 1) : lane_);
  }
  // in_block(): the index of row i of the pair among the rows of the block, which are contiguous.
  // there(): how many rows the block has. row(): the index of row i in the array.
  __device__ int in_block(int i) const {
    return (static_cast<int>(threadIdx.x) >> log2_of(lanes_)) + i * thread_groups();
  }
  __device__ int there() const {
    const std::int64_t left = p_.rows - row_of_block();
    return left < kRows * thread_groups() ? static_cast<int>(left) : kRows * thread_groups();
  }
  __device__ std::int64_t row(int i) const { return row_of_block() + in_block(i); }

  // Scales of both rows, then of the lane's own row, whose statistics it stores. Returns a bit for
  // each lane whose row needs the safe path. tail: cuts second vectors where rows are centred.
  template <class Tail>
  __device__ unsigned compute_scales(const Vectors& held, Scale (&scales)[kRows + 1],
                                     const Tail& tail) const {
    Scale& own = scales[kRows];
    bool in_range = true;
    const Accumulate squares = squares_of(held, own, in_range, tail);
    own.rstd = plain_rstd(p_, squares);
    const bool active = in_block(upper_) < there();
    const unsigned again =
        __ballot_sync(0xffffffffu, active && !(in_range && is_trusted(p_, squares)));
    if (again != 0) [[unlikely]]
      return again;
    if (active && (lane_ & (half_ - 1)) == 0 && (p_.rstd != nullptr || p_.mean != nullptr)) {
      NormRow<T, Access::kAligned, kFusedInput>(p_, row(upper_))
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
  // Calls safe_path(i, plain) for both rows, in all thread groups of the warp together. plain: the
  // row does not need the safe path.
  template <class SafePath>
  __device__ void run_safe_path(unsigned again, SafePath safe_path) const {
    const int first_lane = static_cast<int>(threadIdx.x) % kWarpLanes - lane_;
#pragma unroll 1
    for (int i = 0; i < kRows; ++i) safe_path(i, (again >> (first_lane + i * half_) & 1) == 0);
  }

 private:
  __device__ int thread_groups() const { return static_cast<int>(blockDim.x) >> log2_of(lanes_); }
  __device__ std::int64_t row_of_block() const {
    return static_cast<std::int64_t>(blockIdx.x) * (kRows * thread_groups());
  }

  // The sum of squares of this lane's row, whose mean it sets.
  template <class Tail>
  __device__ Accumulate squares_of(const Vectors& held, Scale& own, bool& in_range,
                                   const Tail& tail) const {
    if constexpr (!kCentred) {
      Accumulate slot_values[kPlaces];
#pragma unroll
      for (int place = 0; place < kPlaces; ++place) {
        slot_values[place] = sum_of_squares<T>(held[place].numbers(p_));
      }
      return finish(one_row(slot_values), half_ / 2);
    } else {
      Accumulate variance_shifts[kRows], sums[kPlaces], squares[kPlaces];
#pragma unroll
      for (int row = 0; row < kRows; ++row)
        variance_shifts[row] = variance_shift(held[row].numbers(p_));
      own.mean = upper_ ? variance_shifts[1] : variance_shifts[0];
#pragma unroll
      for (int place = 0; place < kPlaces; ++place) {
        const bool second = place >= kRows;
        const Scale about{.mean = second && kThreeQuartersFull ? own.mean
                                                               : variance_shifts[place % kRows]};
        Numbers<T> x = deviations<T, kCentring>(held[place].numbers(p_), about);
        if (second) tail.cut(x);
        sums[place] = sum<T>(x);
        squares[place] = sum_of_squares<T>(x);
        if (second) tail.cut(sums[place], squares[place]);
      }
      const int quarter = half_ / 2;
      const Accumulate one = finish(split(one_row(sums), one_row(squares), quarter), quarter / 2);
      const Accumulate other = shuffle_xor(one, quarter);
      const bool has_squares = lane_ & quarter;
      return moments_from_shifted_sums<T>(
          own, has_squares ? Pair<Accumulate>(other, one) : Pair<Accumulate>(one, other),
          p_.inverse_cols, in_range);
    }
  }
  // The first step of the tree: each lane gets the value of its own row.
  __device__ Accumulate one_row(const Accumulate (&slot_values)[kPlaces]) const {
    if constexpr (kThreeQuartersFull) {
      const Accumulate theirs = shuffle_xor(upper_ ? slot_values[0] : slot_values[1], half_);
      const Accumulate lower = upper_ ? theirs : slot_values[0];
      return (lower + slot_values[2]) + (upper_ ? slot_values[1] : theirs);
    } else {
      return split(slot_values[0] + slot_values[2], slot_values[1] + slot_values[3], half_);
    }
  }
  // One butterfly step for two values: the lower lanes continue with a, the upper with b.
  __device__ Accumulate split(Accumulate a, Accumulate b, int offset) const {
    const bool upper = lane_ & offset;
    return (upper ? b : a) + shuffle_xor(upper ? a : b, offset);
  }
  // The remaining butterfly steps.
  __device__ Accumulate finish(Accumulate value, int offset) const {
#pragma unroll
    for (int of_warp = kWarpLanes / 4; of_warp > 0; of_warp /= 2) {
      if (of_warp <= offset) value += shuffle_xor(value, of_warp);
    }
    return value;
  }
  // As variance_shift_of, from the lanes that hold the first elements of the row.
  __device__ Accumulate variance_shift(const Numbers<T>& first) const {
    constexpr int kHolders = kShiftElements<T> / kPack<T>;
    const Accumulate mine = sum_by_halves(first.at);
    Accumulate sums[kHolders];
#pragma unroll
    for (int holder = 0; holder < kHolders; ++holder) {
      sums[holder] = __shfl_sync(0xffffffffu, mine, holder, lanes_);
    }
    return sum_by_halves(sums) * (Accumulate(1) / kShiftElements<T>);
  }

  const Params& p_;
  const int lanes_;
  const int lane_;
  const int half_;
  const bool upper_;
};

}  // namespace membound::cuda
