// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Norms of many rows that start anywhere, without options (framed_row.cuh).
#include "cuda/norm/rms_norm_kernels.cuh"
#include "cuda/norm/rms_norm_shift.cuh"
#include "cuda/row/bulk_pipeline.cuh"
#include "cuda/row/warp_sums.cuh"

namespace membound::cuda {

// The redo of a row whose plain sums are not trusted, element by element: shared memory holds rows
// that are on their way.
template <class T, class Team, Beside kBeside, Centring kCentring, class Sink>
__device__ __noinline__ void rescale_row(const typename Sink::template Params<accumulate_t<T>>& p,
                                         std::int64_t row, bool plain) {
  Team team(p.lanes, 1, 0);
  team.row = row;
  HeldRow<T, Team, Access::kAny, kBeside, kCentring, Sink>(p, team).run_scaled(plain);
  __syncthreads();  // the next row's sums go where this one's were
}

// What becomes of a row: out, and residual_out, whose rows start as out's do.
template <class T, class Team, Beside kBeside, Centring kCentring>
class FramedStore {
  using Params = RmsNormParams<accumulate_t<T>>;
  static constexpr int kVecs = Team::kVecs;
  static constexpr bool kAdd = kBeside == Beside::kResidual;

 public:
  using Sink = StoreResult;
  static constexpr int kBarriers = 0;

  // Rows `row`, row + step ...
  __device__ FramedStore(const Params& p, const Team& team, std::int64_t row, std::int64_t step)
      : p_(p), out_(frame_of(team, row), team.lane, team.size) {
    place(0, p.out, p.out_row_stride, row, step);
    if constexpr (kAdd) place(1, p.residual_out, p.residual_out_row_stride, row, step);
  }
  __device__ const Frame& frame() const { return out_.frame(); }
  __device__ void next() { out_.next(); }
  template <class Norm, class Scale>
  __device__ void put(const Norm& norm, std::int64_t row, const Scale& scale, int) const {
    norm.each_source(frame(), [&](int v, const auto& of) {
      const Numbers<T> numbers = of.numbers(p_);
      uint4 results[kAdd ? 2 : 1];
      if constexpr (kAdd) results[1] = pack<T>(numbers);
      results[0] = norm.result(row, of, numbers, scale, v);
      out_.store(v, results);
    });
  }

 private:
  __device__ Frame frame_of(const Team& team, std::int64_t row) const {
    const Frame frame = Frame::of(static_cast<const T*>(p_.out) + row * p_.out_row_stride,
                                  p_.chunks, static_cast<int>(p_.cols), kVecs * team.size);
    return kCentring != Centring::kNever && !kAdd ? frame.kept() : frame;  // else they spill
  }
  __device__ void place(int array, void* data, std::int64_t stride, std::int64_t row,
                        std::int64_t step) {
    out_.place(array, static_cast<T*>(data) + row * stride, step * stride);
  }

  const Params& p_;
  FramedResult<T, kVecs, kAdd ? 2 : 1> out_;
};

// Sums over a block, row after row. For one sum kept addresses are not worth their registers
// (H200, 16384 x 4097 with a residual: 138 and 159 us).
template <class Team, class Value>
struct FramedSums {
  const Team& team;
  __device__ FramedSums(const Team& team) : team(team) {}
  __device__ Value of(const Value& mine, int turn) const {
    const Value values[1] = {mine};
    return team.reduce_part(values, turn, Sum());
  }
};
template <class Team, class Accumulate>
struct FramedSums<Team, Pair<Accumulate>> {
  const Team& team;
  WarpSums<Pair<Accumulate>, 1, 1, Team::kVecs <= 2> of_warps;
  __device__ FramedSums(const Team& team) : team(team), of_warps(0, team.lane / kWarpLanes) {
    of_warps.clear();
  }
  __device__ Pair<Accumulate> of(const Pair<Accumulate>& mine, int turn) const {
    Pair<Accumulate> sums[1] = {mine};
    of_warps.sum(sums, turn, [&] { team.sync(); });
    return sums[0];
  }
};

// Output: as FramedStore.
template <class T, class Team, Beside kBeside, Centring kCentring, class Output>
class FramedNorm {
  using Accumulate = accumulate_t<T>;
  using Params = typename Output::Sink::template Params<Accumulate>;
  using Row = NormRow<T, Access::kShifted, kBeside>;
  using Chunk = SourceChunk<T, kBeside>;
  using Scale = RowScale<Accumulate>;
  static constexpr int kVecs = Team::kVecs;
  static constexpr int kArrays = kBeside == Beside::kNothing ? 1 : 2;
  static constexpr bool kCentred = kCentring != Centring::kNever;
  using Sums = std::conditional_t<kCentred, Pair<Accumulate>, Accumulate>;
  using Ring = FramedRing<T, Team, kArrays, 0, (kCentred ? 2 : 1) * kVecs,
                          tuning::framed_ring(kVecs, kArrays)>;

 public:
  // Rows team.row, team.row + the blocks of the grid ...
  __device__ FramedNorm(const Params& p, const Team& team)
      : p_(p),
        team_(team),
        row_(team.row),
        step_(gridDim.x),
        output_(p, team, row_, step_),
        ring_(team, sources(), p.rows, row_, step_, rounds(), p.chunks, cols()),
        columns_(p, 0),
        sums_(team) {
    uint4 none[1];
    columns_.clear_bias(none);
#pragma unroll
    for (int v = 0; v < kVecs; ++v) {
      const auto load = [&](const ColumnArray<Accumulate>& columns) {
        return output_.frame().load(static_cast<const T*>(columns.data), unit(v));
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
      output_.next();
    }
  }

  // body(v, chunk): for each unit of a frame. Two of one array share the branch by their shift.
  template <class Body>
  __device__ void each_source(const Frame& frame, Body body) const {
    constexpr int kSide = kArrays == 1 ? 2 : 1;
#pragma unroll
    for (int first = 0; first < kVecs; first += kSide) {
      uint4 parts[kArrays][kSide];
#pragma unroll
      for (int array = 0; array < kArrays; ++array) ring_.units(array, frame, first, parts[array]);
#pragma unroll
      for (int v = 0; v < kSide; ++v) body(first + v, chunk(parts, v));
    }
  }
  // The same of the output's frame, normalised.
  __device__ uint4 result(std::int64_t row, const Chunk& of, const Numbers<T>& numbers,
                          const Scale& scale, int v) const {
    uint4 bias;
    if constexpr (kCentred) bias = ring_.column(kVecs + v);
    const Numbers<T> y =
        columns_.template normalised<true>(numbers, scale, ring_.column(v), bias, unit(v));
    return Row(p_, row).result(y, of);
  }

 private:
  __device__ int cols() const { return static_cast<int>(p_.cols); }
  __device__ int unit(int v) const { return v * team_.size + team_.lane; }
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
    const int turn = round * (1 + Output::kBarriers);  // of the block's sums
    const Accumulate squares = squares_of_row(scale, turn, sound);
    ring_.refill(round);
    const bool trusted = sound && is_trusted(p_, squares);
    if (!trusted) [[unlikely]]
      return rescale_row<T, Team, kBeside, kCentring, typename Output::Sink>(p_, row_, trusted);
    scale.rstd = plain_rstd(p_, squares);
    if (team_.lane == 0) Row(p_, row_).template store_statistics<kCentring>(scale);
    output_.put(*this, row_, scale, turn + 1);
  }

  // By the chunks of the row, as HeldRow.
  __device__ Accumulate squares_of_row(Scale& scale, int turn, bool& sound) const {
    uint4 parts[kArrays][kVecs];
#pragma unroll
    for (int array = 0; array < kArrays; ++array)
      ring_.template chunks<!kCentred>(array, 0, parts[array]);
    if constexpr (kCentred) scale.mean = pivot_by_lanes<T>([&](int i) { return number(i); });
    Sums sums(0);
#pragma unroll
    for (int v = 0; v < kVecs; ++v) {
      const Numbers<T> numbers = chunk(parts, v).numbers(p_);
      Sums more;
      if constexpr (!kCentred) {
        more = sum_of_squares<T>(numbers);
      } else if (v < kVecs - 1) {
        more = sums_of<T>(deviations<T, kCentring>(numbers, scale));
      } else {
        more = sums_about_pivot<T, Access::kShifted, kCentring>(p_, numbers, scale, unit(v));
      }
      sums = v == 0 ? more : sums + more;
    }
    const Sums of_row = sums_.of(sums, turn);
    if constexpr (kCentred) {
      return leave_pivot<T>(scale, of_row, p_.inverse_cols, sound);
    } else {
      return of_row;
    }
  }
  // Of element i; no gate comes before a row that is centred.
  __device__ Accumulate number(int i) const {
    static_assert(kBeside != Beside::kGate || !kCentred);
    Accumulate x = to_number(ring_.element(0, i));
    if constexpr (kArrays == 2) x += to_number(ring_.element(1, i));
    return x;
  }
  template <int kCount>
  static __device__ Chunk chunk(const uint4 (&parts)[kArrays][kCount], int v) {
    Chunk chunk;
#pragma unroll
    for (int array = 0; array < kArrays; ++array) chunk.parts[array] = parts[array][v];
    return chunk;
  }

  const Params& p_;
  const Team& team_;
  std::int64_t row_;
  std::int64_t step_;
  Output output_;
  Ring ring_;
  Columns<T, Access::kShifted, kCentring> columns_;
  FramedSums<Team, Sums> sums_;
};

// A block works on every gridDim-th row. Shared memory: the row and those to come, weights and
// biases, the sums of the warps. Limited by instructions: one barrier for each row.
template <class T, class Team, Beside kBeside, Centring kCentring>
__global__ void __launch_bounds__(Team::kMaxThreads, tuning::kFramedThreads / Team::kMaxThreads)
    rms_norm_framed_kernel(const __grid_constant__ RmsNormParams<accumulate_t<T>> p) {
  if constexpr (MEMBOUND_HAS_CLUSTERS) {
    const Team team(p.lanes, 1, 0);
    wait_for_launch_before();
    FramedNorm<T, Team, kBeside, kCentring, FramedStore<T, Team, kBeside, kCentring>>(p, team)
        .run();
    launch_dependents();
  }
}

}  // namespace membound::cuda
