// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/rms_norm_row.cuh"
#include "cuda/team.cuh"

namespace membound::cuda {

template <class T, class W, class Team, Access kAccess>
__device__ __noinline__ void rescale(const RmsNormParams<accumulate_t<T>>& p, bool plain);

// The row of one team, from its only read to its only write.
template <class T, class W, class Team, Access kAccess>
class HeldRow {
  using Accumulate = accumulate_t<T>;
  static constexpr int kVecs = Team::kVecs;
  static constexpr int kFold = Team::kFold;
  static constexpr int kChunks = kFold * kVecs;

 public:
  __device__ HeldRow(const RmsNormParams<Accumulate>& p, const Team& team)
      : p_(p),
        team_(team),
        active_(team.row < p.rows),
        row_(active_ ? team.row : 0),
        x_(static_cast<const T*>(p.x) + row_offset<kAccess>(p.x_row_stride, p.x_rows, row_),
           p.chunks, p.cols, p.x_col_stride),
        out_(static_cast<T*>(p.out) + row_offset<kAccess>(p.out_row_stride, p.out_rows, row_),
             p.chunks, p.cols, p.out_col_stride),
        weight_(p) {}

  __device__ void run() {
    uint4 chunks[kChunks];
#pragma unroll
    for (int i = 0; i < kChunks; ++i) chunks[i] = x_.load(index(i));
    // Early weights hide their latency behind the reduction (H200, 1024 x 4096: 6.06 to 5.60 us; 1
    // x 4096: 2.16 to 1.51); with eight chunks they would cost occupancy.
    constexpr bool kEarlyWeights = kChunks <= 4;
    WeightChunk<T, W> weights[kChunks];
    if constexpr (kEarlyWeights) {
#pragma unroll
      for (int i = 0; i < kChunks; ++i) weights[i] = weight_.load(index(i));
      asm volatile("" ::: "memory");  // else the compiler sinks the loads below the reduction
    }
    team_.start();

    Accumulate sums[kFold];
#pragma unroll
    for (int fold = 0; fold < kFold; ++fold) {
      sums[fold] = sum_of_squares<T>(chunks[fold * kVecs], Accumulate(1));
#pragma unroll
      for (int v = 1; v < kVecs; ++v) {
        sums[fold] += sum_of_squares<T>(chunks[fold * kVecs + v], Accumulate(1));
      }
    }
    const Accumulate sum = team_.reduce(sums, 0, Sum());
    if (team_.any(!is_trusted(p_, sum))) [[unlikely]]
      return run_scaled(is_trusted(p_, sum));

    const RowScale<Accumulate> scale{Accumulate(1), plain_rstd(p_, sum)};
    store_rstd(scale);
    forget_numbers(chunks);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      if constexpr (!kEarlyWeights) weights[i] = weight_.load(index(i));
      store(i, normalised<T>(p_, chunks[i], scale, weight_, weights[i], index(i)));
      if (i % 4 == 3) asm volatile("" ::: "memory");  // no more than 4 weight chunks in registers
    }
  }

  // The redo of a row whose plain sum left the trusted range. It reads the row again, so that the
  // everyday path keeps its registers. Rows of the same warp come along with `plain`.
  __device__ void run_scaled(bool plain) {
    Accumulate values[kFold] = {};
#pragma unroll
    for (int fold = 0; fold < kFold; ++fold) {
#pragma unroll 1
      for (int v = 0; v < kVecs; ++v) {
        const uint4 chunk = x_.load(index(fold * kVecs + v));
        values[fold] = Largest()(values[fold], largest_magnitude<T>(chunk));
      }
    }
    const int found = row_exponent(p_, team_.reduce(values, 1, Largest()));
    const int exponent = plain ? 0 : found;
    const Accumulate factor = power_of_two(exponent, Accumulate());
#pragma unroll
    for (int fold = 0; fold < kFold; ++fold) {
      values[fold] = 0;
#pragma unroll 1
      for (int v = 0; v < kVecs; ++v) {
        values[fold] += sum_of_squares<T>(x_.load(index(fold * kVecs + v)), factor);
      }
    }
    const RowScale<Accumulate> scale = scaled_row(p_, team_.reduce(values, 2, Sum()), exponent);
    store_rstd(scale);
#pragma unroll 1
    for (int i = 0; i < kChunks; ++i) {
      const WeightChunk<T, W> weights = weight_.load(index(i));
      store(i, normalised<T>(p_, x_.load(index(i)), scale, weight_, weights, index(i)));
    }
  }

 private:
  // Virtual thread fold * size + lane holds the chunks that are a virtual block apart.
  __device__ int index(int i) const {
    return (team_.rank * kChunks + (i % kVecs) * kFold + i / kVecs) * team_.size + team_.lane;
  }
  __device__ void store(int i, const uint4& chunk) const {
    out_.store(index(i), chunk, active_, team_.first_lane(), team_.last_lane());
  }
  __device__ void store_rstd(const RowScale<Accumulate>& scale) const {
    if (p_.rstd != nullptr && team_.lane == 0 && team_.rank == 0 && active_) {
      p_.rstd[row_offset<kAccess>(p_.rstd_row_stride, p_.rstd_rows, row_)] =
          scale.rstd * scale.scale;
    }
  }

  const RmsNormParams<Accumulate>& p_;
  const Team& team_;
  bool active_;
  std::int64_t row_;
  RowReader<T, kAccess> x_;
  RowWriter<T, kAccess> out_;
  WeightReader<T, W, kAccess> weight_;
};

// Out of line, so that the everyday path stays short in the instruction cache.
template <class T, class W, class Team, Access kAccess>
__device__ __noinline__ void rescale(const RmsNormParams<accumulate_t<T>>& p, bool plain) {
  const Team team(p.lanes, p.blocks_per_row, p.groups);
  HeldRow<T, W, Team, kAccess>(p, team).run_scaled(plain);
}

// One row per team, held in registers. A block does threads / lanes rows (WarpTeam), one row
// (BlockTeam) or a part of one (ClusterTeam). Shared memory: the sums of the warps. Limited by
// memory: few threads with several independent 16-byte loads each, many blocks per SM, so that some
// load while others store. Rows of any alignment keep the registers that their shifts need.
template <class T, class W, class Team, Access kAccess, int kMaxThreads>
__global__ void __launch_bounds__(kMaxThreads, kAccess == Access::kAligned ? Team::kMinBlocks : 0)
    rms_norm_row_kernel(const __grid_constant__ RmsNormParams<accumulate_t<T>> p) {
  const Team team(p.lanes, p.blocks_per_row, p.groups);
  HeldRow<T, W, Team, kAccess> row(p, team);
  if (p.overlap_launch) begin_overlapped();
  row.run();
}

// A row too wide to hold, or a GPU without clusters: read once for its sum and again for its
// result. The blocks of a cluster (or one block) take the groups of the row in turn; a group is
// segments of kVecs chunks per thread. Same tree as ClusterTeam, whose groups are one segment each.
template <class T, int kVecs, int kMaxWarps, Access kAccess>
class StreamedRow {
  using Accumulate = accumulate_t<T>;

 public:
  __device__ StreamedRow(const RmsNormParams<Accumulate>& p,
                         typename ClusterExchange<Accumulate>::Shared& shared)
      : p_(p),
        exchange_{shared, p.blocks_per_row, p.groups},
        rank_(cluster_rank()),
        row_(cluster_index()),
        x_(static_cast<const T*>(p.x) + row_offset<kAccess>(p.x_row_stride, p.x_rows, row_),
           p.chunks, p.cols, p.x_col_stride) {}

  __device__ void start() const { exchange_.announce(); }

  template <class OfChunk, class Combine>
  __device__ Accumulate reduce(int round, OfChunk of_chunk, Combine combine) {
    __shared__ alignas(16) Accumulate slots[2][kMaxWarps];
    const int per_block = p_.groups / p_.blocks_per_row;
    int turn = 0;
    for (int group = rank_ * per_block; group < (rank_ + 1) * per_block; ++group) {
      double sum = 0;
      for (int segment = 0; segment < p_.segments_per_group; ++segment, turn ^= 1) {
        Accumulate values[1] = {of_chunk(x_.load(index(group, segment, 0)))};
#pragma unroll
        for (int v = 1; v < kVecs; ++v) {
          values[0] = combine(values[0], of_chunk(x_.load(index(group, segment, v))));
        }
        store_warp_values<kMaxWarps>(values, slots[turn], combine);
        __syncthreads();
        const double more = combine_slots<kMaxWarps>(slots[turn], combine);
        sum = segment == 0 ? more : combine(sum, more);
      }
      if (threadIdx.x < kWarpLanes) {
        if (round == 0 && group == rank_ * per_block) exchange_.wait_for_peers();
        exchange_.send(round, group, static_cast<Accumulate>(sum));
      }
    }
    exchange_.wait(round);
    return exchange_.total(round, combine);
  }

  template <class Weight>
  __device__ void store(const RowScale<Accumulate>& scale, const Weight& weight) {
    const RowWriter<T, kAccess> out(
        static_cast<T*>(p_.out) + row_offset<kAccess>(p_.out_row_stride, p_.out_rows, row_),
        p_.chunks, p_.cols, p_.out_col_stride);
    const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
    const int per_block = p_.groups / p_.blocks_per_row;
    for (int group = rank_ * per_block; group < (rank_ + 1) * per_block; ++group) {
      for (int segment = 0; segment < p_.segments_per_group; ++segment) {
#pragma unroll
        for (int v = 0; v < kVecs; ++v) {
          const int at = index(group, segment, v);
          const uint4 result = normalised<T>(p_, x_.load(at), scale, weight, weight.load(at), at);
          out.store(at, result, true, lane == 0, lane == kWarpLanes - 1);
        }
      }
    }
    if (p_.rstd != nullptr && rank_ == 0 && threadIdx.x == 0) {
      p_.rstd[row_offset<kAccess>(p_.rstd_row_stride, p_.rstd_rows, row_)] =
          scale.rstd * scale.scale;
    }
  }

 private:
  __device__ int index(int group, int segment, int v) const {
    return ((group * p_.segments_per_group + segment) * kVecs + v) * static_cast<int>(blockDim.x) +
           static_cast<int>(threadIdx.x);
  }

  const RmsNormParams<Accumulate>& p_;
  ClusterExchange<Accumulate> exchange_;
  int rank_;
  std::int64_t row_;
  RowReader<T, kAccess> x_;
};

// One row per cluster (or block), read twice. Shared memory: the sums of the warps and groups.
// Limited by memory, the second read by L2 where the rows in flight fit it.
template <class T, int kVecs, int kMaxWarps, Access kAccess>
__global__ void __launch_bounds__(kMaxWarps* kWarpLanes)
    rms_norm_streamed_kernel(const __grid_constant__ RmsNormParams<accumulate_t<T>> p) {
  using Accumulate = accumulate_t<T>;
  __shared__ typename ClusterExchange<Accumulate>::Shared shared;
  StreamedRow<T, kVecs, kMaxWarps, kAccess> row(p, shared);
  row.start();
  if (p.overlap_launch) begin_overlapped();
  const Accumulate sum = row.reduce(
      0, [](const uint4& chunk) { return sum_of_squares<T>(chunk, Accumulate(1)); }, Sum());
  RowScale<Accumulate> scale{Accumulate(1), plain_rstd(p, sum)};
  if (!is_trusted(p, sum)) {
    const Accumulate largest =
        row.reduce(1, [](const uint4& chunk) { return largest_magnitude<T>(chunk); }, Largest());
    const int exponent = row_exponent(p, largest);
    const Accumulate factor = power_of_two(exponent, Accumulate());
    scale = scaled_row(
        p,
        row.reduce(
            2, [=](const uint4& chunk) { return sum_of_squares<T>(chunk, factor); }, Sum()),
        exponent);
  }
  row.store(scale, WeightReader<T, T, kAccess>(p));
}

}  // namespace membound::cuda
