// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The backward of many rows that start anywhere. What is summed over a row goes by its chunks, all
// else by its frame (framed_row.cuh): sums over rows stay in place, as all rows of a team have the
// same.
#include "cuda/framed_row.cuh"
#include "cuda/gated_gradient.cuh"
#include "cuda/persistent_team.cuh"
#include "cuda/rms_norm_backward_row.cuh"
#include "cuda/tuning/framed_row.hpp"

namespace membound::cuda {

// What stands beside dy and x in the ring: of dsum and the gate at most one.
enum class Third { kNothing, kDsum, kGate };

template <class T, class Group, Third kThird, Centring kCentring, bool kOptions>
class FramedGradient {
  using Accumulate = accumulate_t<T>;
  using Params = RmsNormBackwardParams<Accumulate>;
  using Row = GradientRow<T, Access::kShifted>;
  using Statistics = RowStatistics<Accumulate>;
  static constexpr int kVecs = Group::kVecs;
  using Sums = Numbers<T>[kVecs];
  static constexpr bool kGated = kThird == Third::kGate;
  static constexpr bool kCentred = kCentring != Centring::kNever;
  static constexpr int kArrays = kThird == Third::kNothing ? 2 : 3;

 public:
  // Rows as in PersistentGradient.
  __device__ FramedGradient(const Params& p, const Group& team)
      : p_(p),
        team_(team),
        groups_(static_cast<int>(blockDim.x) / team.size),
        step_(static_cast<std::int64_t>(p.teams_of_head) * groups_),
        row_(static_cast<std::int64_t>(team.team()) * groups_ + team.group),
        rounds_(rounds_from(row_)),
        frame_(Frame::of(row_of(p.dx, p.dx_row_stride), p.chunks, cols(), kVecs * team.size)),
        dx_(frame_, row_of(p.dx, p.dx_row_stride), step_ * p.dx_row_stride, team.lane, team.size),
        dgate_(frame_, row_of(p.dgate, p.dgate_row_stride), step_ * p.dgate_row_stride, team.lane,
               team.size),
        ring_(team, p.rows, row_, step_, p.chunks, cols(), sources()),
        weight_(p.weight, p.chunks, p.cols) {
    const T* weight = static_cast<const T*>(p.weight.data);
#pragma unroll
    for (int v = 0; v < kVecs; ++v) {
      ring_.column(v) = Frame{0, p.chunks, cols(), false}.load(weight, unit(v));
      ring_.column(kVecs + v) = frame_.load(weight, unit(v));
    }
  }

  __device__ void run() {
    const Accumulate* rstd = p_.rstd + row_ * p_.rstd_row_stride;
    const Accumulate* mean = kCentred ? p_.mean + row_ * p_.mean_row_stride : nullptr;
    Statistics next;
    const auto load_next = [&](int round) {
      if (round < rounds_) {
        next.rstd = *rstd;
        if constexpr (kCentred) next.mean = *mean;
      }
      rstd += step_ * p_.rstd_row_stride;
      if constexpr (kCentred) mean += step_ * p_.mean_row_stride;
    };
    ring_.start(sources());
    load_next(0);
    const int rounds = rounds_from(row_ - team_.group);
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
      const Statistics statistics = next;
      if (round < rounds_) ring_.receive();
      load_next(round + 1);
      if constexpr (kGated) {
        p_.norm_before_gate ? one_gated_row<true>(statistics, round)
                            : one_gated_row<false>(statistics, round);
      } else {
        one_row(statistics, round);
      }
      ring_.release();
      dx_.next();
      if constexpr (kGated) dgate_.next();
    }
    launch_dependents();
    if (p_.dweight.data != nullptr) store_partials(sums_, p_.dweight.partials);
    if (kCentred && p_.dbias.data != nullptr) store_partials(bias_sums_, p_.dbias.partials);
  }

 private:
  __device__ int cols() const { return static_cast<int>(p_.cols); }
  __device__ int unit(int v) const { return v * team_.size + team_.lane; }
  __device__ T* row_of(void* data, std::int64_t stride) const {
    return static_cast<T*>(data) + row_ * stride;
  }
  __device__ int rounds_from(std::int64_t row) const {
    return row < p_.rows ? static_cast<int>((p_.rows - row + step_ - 1) / step_) : 0;
  }
  __device__ auto sources() const {
    return [this](int array) -> FramedSource {
      if (array == 0) return {p_.dy, p_.dy_row_stride};
      if (array == 1) return {p_.x, p_.x_row_stride};
      if (kGated) return {p_.gate, p_.gate_row_stride};
      return {p_.dsum, p_.dsum_row_stride};
    };
  }

  __device__ Numbers<T> gradient_of_result(const Numbers<T>& dy, const uint4& weight) const {
    return times<T, true, kOptions>(dy, weight_, weight, 0);
  }

  __device__ RowMeans<Accumulate> means_of(const RowSum<T, kCentring> (&parts)[1], int round) {
    const auto sum = team_.sum(parts, round);
    ring_.refill(round, sources());
    return means<kCentring>(p_, sum);
  }

  __device__ void one_row(const Statistics& statistics, int round) {
    RowSum<T, kCentring> parts[1] = {};
    {
      uint4 dy[kVecs], x[kVecs];
      ring_.chunks(0, 0, dy);
      ring_.chunks(1, 0, x);
#pragma unroll
      for (int v = 0; v < kVecs; ++v) {
        parts[0] =
            parts[0] + row_sum<T, kCentring>(gradient_of_result(unpack<T>(dy[v]), ring_.column(v)),
                                             normal<T, kCentring>(unpack<T>(x[v]), statistics));
      }
    }
    const RowMeans<Accumulate> mean = means_of(parts, round);
    if (round >= rounds_) return;
#pragma unroll
    for (int v = 0; v < kVecs; ++v) {
      uint4 dsum;
      if constexpr (kThird == Third::kDsum) dsum = ring_.unit(2, frame_, v);
      const Numbers<T> dy = unpack<T>(ring_.unit(0, frame_, v));
      const Numbers<T> h = normal<T, kCentring>(unpack<T>(ring_.unit(1, frame_, v)), statistics);
      add_weight_gradient<T>(sums_[v], dy, h, kOptions && p_.round_before_weight);
      if constexpr (kCentred) add_bias_gradient<T>(bias_sums_[v], dy);
      dx_.store(v, Row::template gradient<kCentring>(
                       gradient_of_result(dy, ring_.column(kVecs + v)), h, statistics.rstd, mean,
                       dsum, kThird == Third::kDsum));
    }
  }

  // Without options.
  template <bool kNormFirst>
  __device__ void one_gated_row(const Statistics& statistics, int round) {
    using Chunk = GatedChunk<T, kNormFirst>;
    Accumulate parts[1] = {};
#pragma unroll
    for (int v = 0; v < kVecs; ++v) {  // one by one: three arrays fill the registers
      uint4 dy[1], x[1], gate[1];
      ring_.chunks(0, v, dy);
      ring_.chunks(1, v, x);
      ring_.chunks(2, v, gate);
      parts[0] = parts[0] + Chunk(dy[0], x[0], gate[0], ring_.column(v)).sum(statistics.rstd);
      asm volatile("" ::: "memory");
    }
    const RowMeans<Accumulate> mean = means_of(parts, round);
    if (round >= rounds_) return;
#pragma unroll
    for (int v = 0; v < kVecs; ++v) {
      const auto array = [&](int i) { return ring_.unit(i, frame_, v); };
      const auto [dx, dgate] = Chunk(array(0), array(1), array(2), ring_.column(kVecs + v))
                                   .gradients(statistics.rstd, mean.gh, sums_[v]);
      dx_.store(v, dx);
      dgate_.store(v, dgate);
      asm volatile("" ::: "memory");
    }
  }

  // One row of partial sums for the block, its groups in turn as in PersistentGradient.
  __device__ void store_partials(const Sums& sums, Accumulate* partials) const {
    extern __shared__ uint4 ring[];
    Accumulate* const folded = reinterpret_cast<Accumulate*>(ring);
    const int width = kVecs * team_.size * kPack<T>;
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    __syncthreads();
#pragma unroll
    for (int v = 0; v < kVecs; ++v) {
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        const int col = frame_.template column<T>(unit(v), i);
        if (col < cols()) {
          folded[team_.group * width + col] = sums[v].at[i];
        }
      }
    }
    __syncthreads();
    for (int col = thread; col < cols(); col += threads) {
      Accumulate sum = 0;
      for (int group = 0; group < groups_; ++group) sum += folded[group * width + col];
      partials[team_.team() * p_.cols + col] = sum;
    }
  }

  const Params& p_;
  const Group& team_;
  int groups_;
  std::int64_t step_;
  std::int64_t row_;
  int rounds_;  // rows of the team
  Frame frame_;
  FramedResult<T, kVecs> dx_;
  FramedResult<T, kVecs> dgate_;
  FramedRing<T, Group, kArrays, 2 * kVecs> ring_;
  ColumnReader<T, Access::kShifted> weight_;
  Sums sums_ = {};
  Sums bias_sums_ = {};
};

// A block works on every partial_rows-th row (or set of rows, one for each of its groups) and
// leaves one row of partial sums of dweight, and of dbias. Shared memory: the row, two to come,
// weights, the sums of the warps; at the end those of the groups. Limited by instructions: one
// barrier for each row.
template <class T, class Group, Third kThird, Centring kCentring, bool kOptions>
__global__ void __launch_bounds__(Group::kMaxThreads, Group::kMinBlocks)
    rms_norm_backward_framed_kernel(
        const __grid_constant__ RmsNormBackwardParams<accumulate_t<T>> p) {
  if constexpr (MEMBOUND_HAS_CLUSTERS) {
    const Group team(p.lanes, p.blocks_per_row);
    team.start();
    wait_for_launch_before();
    FramedGradient<T, Group, kThird, kCentring, kOptions>(p, team).run();
  }
}

}  // namespace membound::cuda
