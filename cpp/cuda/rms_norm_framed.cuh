// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Norms of many rows that start anywhere, without options (framed_row.cuh).
#include "cuda/framed_row.cuh"
#include "cuda/rms_norm_kernels.cuh"

namespace membound::cuda {

// The redo of a row whose plain sums are not trusted, element by element: shared memory holds rows
// that are on their way.
template <class T, class Team, Beside kBeside, Centring kCentring>
__device__ __noinline__ void rescale_row(const RmsNormParams<accumulate_t<T>>& p, std::int64_t row,
                                         bool plain) {
  Team team(p.lanes, 1, 0);
  team.row = row;
  HeldRow<T, Team, Access::kAny, kBeside, kCentring, StoreResult>(p, team).run_scaled(plain);
  __syncthreads();  // the next row's sums go where this one's were
}

template <class T, class Team, Beside kBeside, Centring kCentring>
class FramedNorm {
  using Accumulate = accumulate_t<T>;
  using Params = RmsNormParams<Accumulate>;
  using Row = NormRow<T, Access::kShifted, kBeside>;
  using Chunk = SourceChunk<T, kBeside>;
  using Scale = RowScale<Accumulate>;
  static constexpr int kVecs = Team::kVecs;
  static constexpr int kArrays = kBeside == Beside::kNothing ? 1 : 2;
  static constexpr bool kAdd = kBeside == Beside::kResidual;
  static constexpr bool kCentred = kCentring != Centring::kNever;
  using Ring = FramedRing<T, Team, kArrays, 0, (kCentred ? 2 : 1) * kVecs,
                          tuning::framed_ring(kVecs, kArrays)>;
  using Result = FramedResult<T, kVecs, kAdd ? 2 : 1>;

 public:
  // Rows team.row, team.row + the blocks of the grid ...
  __device__ FramedNorm(const Params& p, const Team& team)
      : p_(p),
        team_(team),
        row_(team.row),
        step_(gridDim.x),
        frame_(Frame::of(row_of(p.out, p.out_row_stride), p.chunks, cols(), kVecs * team.size)),
        out_(frame_, team.lane, team.size),
        ring_(team, sources(), p.rows, row_, step_, rounds(), p.chunks, cols()),
        columns_(p, 0) {
    place(0, p.out, p.out_row_stride);
    if constexpr (kAdd) place(1, p.residual_out, p.residual_out_row_stride);
    uint4 none[1];
    columns_.clear_bias(none);
#pragma unroll
    for (int v = 0; v < kVecs; ++v) {
      const auto load = [&](const ColumnArray<Accumulate>& columns) {
        return frame_.load(static_cast<const T*>(columns.data), unit(v));
      };
      ring_.column(v) = load(p.weight);
      if constexpr (kCentred) {
        ring_.column(kVecs + v) = p.bias.data != nullptr ? load(p.bias) : none[0];
      }
    }
  }

  __device__ void run() {
    ring_.start();
#pragma unroll 1
    for (int round = 0; row_ < p_.rows; row_ += step_, ++round) {
      ring_.receive();
      one_row(round);
      ring_.release();
      out_.next();
    }
  }

  // One chunk that every thread reads, for the pivot.
  __device__ Numbers<T> load_alike(int index) const {
    Chunk chunk;
#pragma unroll
    for (int array = 0; array < kArrays; ++array) {
      chunk.parts[array] = ring_.chunk_alike(array, index);
    }
    return chunk.numbers(p_);
  }

 private:
  __device__ int cols() const { return static_cast<int>(p_.cols); }
  __device__ int unit(int v) const { return v * team_.size + team_.lane; }
  __device__ T* row_of(void* data, std::int64_t stride) const {
    return static_cast<T*>(data) + row_ * stride;
  }
  __device__ void place(int array, void* data, std::int64_t stride) {
    out_.place(array, row_of(data, stride), step_ * stride);
  }
  __device__ int rounds() const {
    return row_ < p_.rows ? static_cast<int>((p_.rows - row_ + step_ - 1) / step_) : 0;
  }
  __device__ auto sources() const {
    typename Ring::Sources sources;
    sources.arrays[0] = {static_cast<const T*>(p_.x), p_.x_row_stride};
    if constexpr (kArrays == 2) {
      sources.arrays[1] = {static_cast<const T*>(p_.beside), p_.beside_row_stride};
    }
    return sources;
  }

  __device__ void one_row(int round) {
    Scale scale;
    bool sound = true;
    const Accumulate squares = squares_of_row(scale, round, sound);
    ring_.refill(round);
    const bool trusted = sound && is_trusted(p_, squares);
    if (!trusted) [[unlikely]]
      return rescale_row<T, Team, kBeside, kCentring>(p_, row_, trusted);
    scale.rstd = plain_rstd(p_, squares);
    const Row row(p_, row_);
    if (team_.lane == 0) row.template store_statistics<kCentring>(scale);
    put(row, scale);
  }

  // By the chunks of the row, as HeldRow.
  __device__ Accumulate squares_of_row(Scale& scale, int round, bool& sound) const {
    const HeldTile<Team, Access::kShifted> tile(team_, row_, p_.rows);
    uint4 parts[kArrays][kVecs];
#pragma unroll
    for (int array = 0; array < kArrays; ++array) ring_.chunks(array, 0, parts[array]);
    const auto numbers = [&](int v) { return chunk(parts, v).numbers(p_); };
    if constexpr (!kCentred) {
      return tile.template reduce<Accumulate>(
          round, 0, [&](int v) { return sum_of_squares<T>(numbers(v)); }, Sum());
    } else {
      scale.mean = pivot_of<T>(p_, *this);
      const auto sums = tile.template reduce<Pair<Accumulate>>(
          round, 0,
          [&](int v) {
            return sums_about_pivot<T, Access::kShifted, kCentring>(p_, numbers(v), scale, unit(v));
          },
          Sum());
      return leave_pivot<T>(scale, sums, p_.inverse_cols, sound);
    }
  }
  static __device__ Chunk chunk(const uint4 (&parts)[kArrays][kVecs], int v) {
    Chunk chunk;
#pragma unroll
    for (int array = 0; array < kArrays; ++array) chunk.parts[array] = parts[array][v];
    return chunk;
  }

  __device__ void put(const Row& row, const Scale& scale) const {
#pragma unroll
    for (int v = 0; v < kVecs; ++v) {
      Chunk of;
#pragma unroll
      for (int array = 0; array < kArrays; ++array) {
        of.parts[array] = ring_.unit(array, frame_, v);
      }
      const Numbers<T> numbers = of.numbers(p_);
      uint4 results[kAdd ? 2 : 1], bias;
      if constexpr (kAdd) results[1] = pack<T>(numbers);
      if constexpr (kCentred) bias = ring_.column(kVecs + v);
      const Numbers<T> y =
          columns_.template normalised<true>(numbers, scale, ring_.column(v), bias, unit(v));
      results[0] = row.result(y, of);
      out_.store(v, results);
    }
  }

  const Params& p_;
  const Team& team_;
  std::int64_t row_;
  std::int64_t step_;
  Frame frame_;
  Result out_;  // and residual_out
  Ring ring_;
  Columns<T, Access::kShifted, kCentring> columns_;
};

// A block works on every gridDim-th row. Shared memory: the row and those to come, weights and
// biases, the sums of the warps. Limited by instructions: one barrier for each row.
template <class T, class Team, Beside kBeside, Centring kCentring>
__global__ void __launch_bounds__(Team::kMaxThreads, tuning::kFramedThreads / Team::kMaxThreads)
    rms_norm_framed_kernel(const __grid_constant__ RmsNormParams<accumulate_t<T>> p) {
  if constexpr (MEMBOUND_HAS_CLUSTERS) {
    const Team team(p.lanes, 1, 0);
    wait_for_launch_before();
    FramedNorm<T, Team, kBeside, kCentring>(p, team).run();
    launch_dependents();
  }
}

}  // namespace membound::cuda
