// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/cluster.cuh"
#include "cuda/rms_norm_row.cuh"

namespace membound::cuda {

// A row is summed by virtual threads of two chunks each, in a tree that its width fixes. A thread
// plays kFold of them: one where rows are few and latency counts, several where rows are many and
// bytes in flight count. The bits are the same.
inline constexpr int kVecs = 2;

// Lanes that share a row: part of a warp, several rows per block.
template <class Accumulate>
struct WarpTeam {
  int size;
  int lane;
  std::int64_t row;

  __device__ explicit WarpTeam(const RmsNormParams<Accumulate>& p)
      : size(p.lanes),
        lane(static_cast<int>(threadIdx.x) & (p.lanes - 1)),
        row((static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / p.lanes) {}
  template <class Combine>
  __device__ Accumulate reduce(const Accumulate (&values)[1], int, Combine combine) const {
    return reduce_lanes(values[0], size, combine);
  }
  // Rows of one warp decide together: the shuffles need every lane.
  __device__ bool any(bool mine) const { return __any_sync(0xffffffffu, mine); }
  __device__ bool first_lane() const { return lane == 0; }
  __device__ bool last_lane() const { return lane == size - 1; }
};

// A block that shares a row, as at most kMaxWarps virtual warps.
template <class Accumulate, int kFold, int kMaxWarps>
struct BlockTeam {
  int size;
  int lane;
  std::int64_t row;

  __device__ explicit BlockTeam(const RmsNormParams<Accumulate>&)
      : size(static_cast<int>(blockDim.x)), lane(static_cast<int>(threadIdx.x)), row(blockIdx.x) {}
  template <class Combine>
  __device__ Accumulate reduce(const Accumulate (&values)[kFold], int round,
                               Combine combine) const {
    // One set of slots per round: no barrier is needed before they are used again.
    __shared__ alignas(16) Accumulate slots[3][kMaxWarps];
    return reduce_block<kMaxWarps>(values, slots[round], combine);
  }
  __device__ bool any(bool mine) const { return mine; }  // the sum is the same in every thread
  __device__ bool first_lane() const { return lane % kWarpLanes == 0; }
  __device__ bool last_lane() const { return lane % kWarpLanes == kWarpLanes - 1; }
};

// The row of one team, from its only read to its only write.
template <class T, class W, int kFold, class Team, Access kAccess>
class HeldRow {
  using Accumulate = accumulate_t<T>;
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
    constexpr bool kEarlyWeights = kFold <= 2;
    WeightChunk<T, W> weights[kChunks];
    if constexpr (kEarlyWeights) {
#pragma unroll
      for (int i = 0; i < kChunks; ++i) weights[i] = weight_.load(index(i));
      asm volatile("" ::: "memory");  // else the compiler sinks the loads below the reduction
    }

    Accumulate sums[kFold];
#pragma unroll
    for (int fold = 0; fold < kFold; ++fold) {
      sums[fold] = sum_of_squares<T>(chunks[fold * kVecs], Accumulate(1)) +
                   sum_of_squares<T>(chunks[fold * kVecs + 1], Accumulate(1));
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

 private:
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

  // Virtual thread fold * size + lane holds the chunks that are a virtual block apart.
  __device__ int index(int i) const {
    return ((i % kVecs) * kFold + i / kVecs) * team_.size + team_.lane;
  }
  __device__ void store(int i, const uint4& chunk) const {
    out_.store(index(i), chunk, active_, team_.first_lane(), team_.last_lane());
  }
  __device__ void store_rstd(const RowScale<Accumulate>& scale) const {
    if (p_.rstd != nullptr && team_.lane == 0 && active_) {
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

// One row per team, held in registers. A block does one row (BlockTeam) or threads / lanes rows
// (WarpTeam). Shared memory: the sums of the warps. Limited by memory: few threads with several
// independent 16-byte loads each, many blocks per SM, so that some load while others store.
template <class T, class W, int kFold, class Team, Access kAccess, int kMaxThreads>
__global__ void __launch_bounds__(kMaxThreads)
    rms_norm_row_kernel(const __grid_constant__ RmsNormParams<accumulate_t<T>> p) {
  const Team team(p);
  HeldRow<T, W, kFold, Team, kAccess> row(p, team);
  if (p.overlap_launch) begin_overlapped();
  row.run();
}

inline constexpr int kBlockWarps = 8;  // of the wide form

// A cluster of blocks that share a row, cut into segments: kVecs chunks per thread and step, summed
// one by one in the order of the row, so that the sum does not depend on how blocks share them.
template <class T, class W, Access kAccess>
class WideRow {
  using Accumulate = accumulate_t<T>;
  static constexpr int kVecs = 8;

 public:
  __device__ WideRow(const RmsNormParams<Accumulate>& p, uint4* shared)
      : p_(p),
        parked_(shared),
        rank_(cluster_rank()),
        blocks_(p.blocks_per_row),
        row_(blockIdx.x / static_cast<unsigned>(p.blocks_per_row)),
        x_(static_cast<const T*>(p.x) + row_offset<kAccess>(p.x_row_stride, p.x_rows, row_),
           p.chunks, p.cols, p.x_col_stride) {
    const int parked = p.resident ? p.segments_per_block * kVecs * static_cast<int>(blockDim.x) : 0;
    warp_sums_ = reinterpret_cast<Accumulate*>(shared + parked);
    row_sums_ = warp_sums_ + p.segments_per_block * kBlockWarps;
  }

  // Asks for the whole row at once; a thread reads back only what it asked for itself.
  __device__ void park() {
    if (!p_.resident) return;
    for (int segment = 0; segment < p_.segments_per_block; ++segment) {
#pragma unroll
      for (int v = 0; v < kVecs; ++v) {
        uint4* to = parked_ + place(segment, v);
        if constexpr (kAccess == Access::kAligned) {
          const int index = chunk_index(segment, 0, v);
          if (index < p_.chunks) {
            copy_chunk_async(to, static_cast<const uint4*>(x_.address()) + index);
          } else {
            *to = {0u, 0u, 0u, 0u};
          }
        } else {
          *to = x_.load(chunk_index(segment, 0, v));
        }
      }
    }
    wait_for_copies();
  }

  // Over the row: of_chunk(chunk) within a thread and a segment, then combine, in three rounds.
  template <class OfChunk, class Combine>
  __device__ Accumulate reduce(int round, OfChunk of_chunk, Combine combine) {
    const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
    const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
    for (int segment = 0; segment < p_.segments_per_block; ++segment) {
      Accumulate mine = Combine::template zero<Accumulate>();
      for (int step = 0; step < p_.steps; ++step) {
#pragma unroll
        for (int v = 0; v < kVecs; ++v) mine = combine(mine, of_chunk(chunk(segment, step, v)));
      }
      mine = reduce_warp(mine, combine);
      if (lane == 0) warp_sums_[segment * kBlockWarps + warp] = mine;
    }
    __syncthreads();
    publish(round, combine);
    return collect(round, combine);
  }

  template <class Weight>
  __device__ void store(const RowScale<Accumulate>& scale, const Weight& weight) {
    const RowWriter<T, kAccess> out(
        static_cast<T*>(p_.out) + row_offset<kAccess>(p_.out_row_stride, p_.out_rows, row_),
        p_.chunks, p_.cols, p_.out_col_stride);
    const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
    for (int segment = 0; segment < p_.segments_per_block; ++segment) {
      for (int step = 0; step < p_.steps; ++step) {
#pragma unroll
        for (int v = 0; v < kVecs; ++v) {
          const int index = chunk_index(segment, step, v);
          const uint4 result =
              normalised<T>(p_, chunk(segment, step, v), scale, weight, weight.load(index), index);
          out.store(index, result, true, lane == 0, lane == kWarpLanes - 1);
        }
      }
    }
    if (p_.rstd != nullptr && rank_ == 0 && threadIdx.x == 0) {
      p_.rstd[row_offset<kAccess>(p_.rstd_row_stride, p_.rstd_rows, row_)] =
          scale.rstd * scale.scale;
    }
  }

 private:
  __device__ int place(int segment, int v) const {
    return (segment * kVecs + v) * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
  }
  __device__ int chunk_index(int segment, int step, int v) const {
    const int of_row = rank_ * p_.segments_per_block + segment;
    return ((of_row * p_.steps + step) * kVecs + v) * static_cast<int>(blockDim.x) +
           static_cast<int>(threadIdx.x);
  }
  __device__ uint4 chunk(int segment, int step, int v) const {
    return p_.resident ? parked_[place(segment, v)] : x_.load(chunk_index(segment, step, v));
  }

  // Sums this block's segments and writes them to every block of the cluster.
  template <class Combine>
  __device__ void publish(int round, Combine combine) {
    const int warps = static_cast<int>(blockDim.x) / kWarpLanes;
    const int segments = p_.segments_per_block;
    Accumulate* slots = row_sums_ + round * segments * blocks_;
    if (round == 0 && blocks_ > 1) cluster_wait();  // every block runs: see cluster_announce
    for (int i = static_cast<int>(threadIdx.x); i < segments * blocks_; i += blockDim.x) {
      const int segment = i % segments;
      Accumulate sum = warp_sums_[segment * kBlockWarps];
      for (int warp = 1; warp < warps; ++warp) {
        sum = combine(sum, warp_sums_[segment * kBlockWarps + warp]);
      }
      Accumulate* slot = slots + rank_ * segments + segment;
      if (blocks_ > 1) {
        cluster_store(slot, i / segments, sum);
      } else {
        *slot = sum;
      }
    }
    if (blocks_ > 1) {
      cluster_sync();
    } else {
      __syncthreads();
    }
  }

  template <class Combine>
  __device__ Accumulate collect(int round, Combine combine) const {
    const int segments = p_.segments_per_block * blocks_;
    const Accumulate* slots = row_sums_ + round * segments;
    Accumulate total = slots[0];
    for (int i = 1; i < segments; ++i) total = combine(total, slots[i]);
    return total;
  }

  const RmsNormParams<Accumulate>& p_;
  uint4* parked_;
  Accumulate* warp_sums_;
  Accumulate* row_sums_;
  int rank_;
  int blocks_;
  std::int64_t row_;
  RowReader<T, kAccess> x_;
};

// One row per cluster of blocks, parked in their shared memory (or, where it does
// not fit or there are no clusters, read twice). Shared memory: the block's share of the row, one
// sum per warp and segment, three rounds of one sum per segment of the row. Limited by memory.
template <class T, class W, Access kAccess>
__global__ void __launch_bounds__(256)
    rms_norm_wide_kernel(const __grid_constant__ RmsNormParams<accumulate_t<T>> p) {
  using Accumulate = accumulate_t<T>;
  extern __shared__ uint4 shared[];
  if (p.blocks_per_row > 1) cluster_announce();
  if (p.overlap_launch) begin_overlapped();
  WideRow<T, W, kAccess> row(p, shared);
  row.park();
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
  row.store(scale, WeightReader<T, W, kAccess>(p));
}

}  // namespace membound::cuda
