// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The backward in two roles: blocks of rows write dx, blocks of columns write dweight. One launch
// for both where rows are few: each array is read twice, the second time from L2, and no partial
// sums are left over. Alone, the first role serves when dweight is not wanted.
#include "cuda/async_copy.cuh"
#include "cuda/column_gradient.cuh"
#include "cuda/gradient_team.cuh"
#include "cuda/rms_norm_backward_row.cuh"
#include "cuda/row_tile.cuh"
#include "cuda/tuning/rms_norm_backward.hpp"

namespace membound::cuda {

// dx of one row, held by a team from its only read to its only write.
template <class T, class Team, Access kAccess, Centring kCentring, bool kGated>
class HeldGradient {
  using Accumulate = accumulate_t<T>;
  using Params = RmsNormBackwardParams<Accumulate>;
  using Tile = HeldTile<Team, kAccess>;
  using Row = GradientRow<T, kAccess, Team::kSplitRows>;
  static constexpr int kChunks = Tile::kChunks;
  static constexpr bool kHeads = kAccess == Access::kAny || Team::kSplitRows;

 public:
  __device__ HeldGradient(const Params& p, const Team& team)
      : p_(p),
        team_(team),
        tile_(team, team.row, kHeads ? p.rows * p.heads.count : p.rows),
        row_(p, tile_.row()),
        gate_{p},
        weight_(p.weight, p.chunks, p.cols, kHeads ? p.heads.of(tile_.row()) : 0) {}

  __device__ void run() {
    const auto index = [&](int i) { return tile_.index(i); };
    uint4 dy[kChunks];
    uint4 x[kChunks];
    uint4 weights[kChunks];
    uint4 beside[kChunks];  // of dsum or the gate
    typename Row::template Raw<kChunks> raw;
    row_.fetch(raw, index);
    weight_.template load<true>(weights, index);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      beside[i] = gate_.is_there() ? row_.load_gate(index(i)) : row_.load_dsum(index(i));
    }
    const RowStatistics<Accumulate> row = row_.template statistics<kCentring>();
    team_.start();
    row_.template chunks<Team::kUniformShift>(raw, dy, x, index);
    struct Terms {
      Numbers<T> g, h;
    };
    const auto terms = [&](int i) -> Terms {
      const ChunkInputs<T> inputs = gate_.inputs(dy[i], x[i], beside[i]);
      return {times<T>(inputs.dy, weight_, weights[i], index(i)),
              normal<T, kCentring>(inputs.x, row)};
    };
    const RowMeans<Accumulate> mean =
        means<kCentring>(p_, tile_.template reduce<RowSum<T, kCentring>>(
                                 0, 0,
                                 [&](int i) {
                                   const Terms of = terms(i);
                                   return row_sum<T, kCentring>(of.g, of.h);
                                 },
                                 Sum()));
    forget_numbers(dy);
    forget_numbers(x);
    if constexpr (kAccess != Access::kShifted) {
      if (gate_.is_there()) {
#pragma unroll
        for (int i = 0; i < kChunks; ++i) {
          if (!tile_.active()) continue;
          const Terms of = terms(i);
          row_.store_gated(
              index(i), Row::template gradient_of_norm<kCentring>(of.g, of.h, row.rstd, mean),
              norm_before_gate<T>(of.h, weight_, weights[i], index(i), p_.round_before_weight),
              dy[i], x[i], beside[i]);
        }
        return;
      }
    }
    tile_.put(row_.dx(), [&](int i) {
      const Terms of = terms(i);
      return row_.template gradient<kCentring>(of.g, of.h, row.rstd, mean, beside[i],
                                               p_.dsum != nullptr);
    });
    tile_.flush(row_.dx());
  }

 private:
  const Params& p_;
  const Team& team_;
  Tile tile_;
  Row row_;
  GateOf<T, kAccess, kGated> gate_;
  ColumnReader<T, kAccess> weight_;
};

// How much of a row a block of columns has, and where rows that are on their way wait: in registers
// they would leave a multiprocessor one block of 512 threads in place of two.
enum class ColumnForm {
  kNarrow,  // kColumnSegment, in registers
  kWide,    // kWideColumnSegment, in registers
  kParked,  // the same, in shared memory
  kAsked,   // as many as the width says, in registers
};
template <class T, class Team, Access kAccess, bool kGated>
__host__ __device__ constexpr ColumnForm column_form() {
  constexpr bool kParks = kAccess == Access::kAligned && sizeof(T) < 8 && !kGated;
  if (std::is_same_v<Team, GradientWideTeam> || Team::kClusters) {
    return kParks ? ColumnForm::kParked : ColumnForm::kWide;
  }
  const bool may_be_wide = std::is_same_v<Team, GradientBlockTeam> && !kParks;
  return may_be_wide ? ColumnForm::kAsked : ColumnForm::kNarrow;
}
// Threads that __launch_bounds__ is told of, of which a multiprocessor's registers are for one
// block: blocks are smaller (H200, float16 1024 x 4096 12.3 and 11.1 us with 80 registers for 86).
template <class T, class Team, Access kAccess, Centring kCentring, bool kGated>
constexpr int roles_threads() {
  constexpr ColumnForm kColumns = column_form<T, Team, kAccess, kGated>();
  if (kColumns == ColumnForm::kParked) return 1024;
  const bool fits = std::is_same_v<T, Float16> && std::is_same_v<Team, GradientBlockTeam> &&
                    kColumns == ColumnForm::kNarrow && kCentring == Centring::kNever;
  return fits ? 768 : Team::kMaxThreads;
}

// dweight and dbias of a segment of columns over all rows: lanes beside each other take its chunks,
// and the rest of the block rows in turn. Each adds up its rows, then lanes, then warps: an
// order that the size of the block fixes. A block works for one head.
template <class T, Access kAccess, Centring kCentring, bool kSplit, bool kGated, ColumnForm kForm>
class ColumnGradient {
  using Accumulate = accumulate_t<T>;
  using Params = RmsNormBackwardParams<Accumulate>;
  static constexpr int kMaxWarps = 16;
  static constexpr int kMaxSegment =
      kForm == ColumnForm::kNarrow ? tuning::kColumnSegment : tuning::kWideColumnSegment;
  static constexpr int kUnroll = 4;  // rows of a thread that are on their way in registers
  static constexpr bool kHeads = kAccess == Access::kAny || kSplit;

 public:
  __device__ explicit ColumnGradient(const Params& p)
      : p_(p),
        segment_shift_(log2_of(kForm == ColumnForm::kAsked && p.chunks <= tuning::kNarrowChunks
                                   ? tuning::kColumnSegment
                                   : kMaxSegment)),
        segments_((p.chunks + segment_chunks() - 1) >> segment_shift_),
        rows_{p.heads.count, kHeads ? static_cast<int>(blockIdx.x) / segments_ : 0},
        index_((segment() << segment_shift_) +
               (static_cast<int>(threadIdx.x) & (segment_chunks() - 1))) {}

  __device__ void run() const {
    if (kHeads && rows_.head >= p_.heads.count) return;
    Sums sums;
    if constexpr (kForm == ColumnForm::kParked && MEMBOUND_HAS_ASYNC_COPY) {
      add_parked(sums);
    } else {
      add_held(sums);
    }
    if (p_.dweight.data != nullptr) store(sums.weight, p_.dweight);
    if (kCentring != Centring::kNever && p_.dbias.data != nullptr) {
      __syncthreads();  // the sums of the weight have been read
      store(sums.bias, p_.dbias);
    }
  }

 private:
  using Row = GradientRow<T, kAccess, kSplit>;
  using Statistics = RowStatistics<Accumulate>;
  // Of a thread at a time: two of centred rows would spill.
  static constexpr int kTogether = kCentring == Centring::kAlways ? 1 : 2;
  static constexpr int kBatches = tuning::kColumnRows / kTogether;
  struct Sums {
    Numbers<T> weight{}, bias{};
  };

  __device__ int segment_chunks() const { return 1 << segment_shift_; }
  __device__ int first() const { return static_cast<int>(threadIdx.x) >> segment_shift_; }
  __device__ int step() const { return static_cast<int>(blockDim.x) >> segment_shift_; }
  __device__ Row row(std::int64_t at) const { return {p_, rows_.at(at)}; }
  __device__ void add(Sums& sums, const uint4& dy, const uint4& x, const uint4& gate,
                      const Statistics& statistics) const {
    const ChunkInputs<T> inputs = GateOf<T, kAccess, kGated>{p_}.inputs(dy, x, gate);
    add_weight_gradient<T>(sums.weight, inputs.dy, normal<T, kCentring>(inputs.x, statistics),
                           p_.round_before_weight);
    if constexpr (kCentring != Centring::kNever) add_bias_gradient<T>(sums.bias, inputs.dy);
  }

  // Of dy or x in a batch of rows, which its thread alone reads and writes.
  __device__ static uint4& parked(int batch, int row, int array) {
    extern __shared__ uint4 columns[];
    return columns[((batch * kTogether + row) * 2 + array) * static_cast<int>(blockDim.x) +
                   static_cast<int>(threadIdx.x)];
  }
  __device__ void park(int batch, std::int64_t first_row) const {
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const std::int64_t at = first_row + i * step();
      if (at >= p_.rows || index_ >= p_.chunks) continue;
      const Row from = row(at);
      copy_async(&parked(batch, i, 0), from.dy().address(index_), kChunkBytes);
      copy_async(&parked(batch, i, 1), from.x().address(index_), kChunkBytes);
    }
    commit_copies();
  }
  __device__ void load(Statistics (&statistics)[kTogether], std::int64_t first_row) const {
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const std::int64_t at = first_row + i * step();
      if (at < p_.rows) statistics[i] = row(at).template statistics<kCentring>();
    }
  }
  __device__ void add_parked(Sums& sums) const {
    const int together = kTogether * step();
#pragma unroll
    for (int batch = 0; batch < kBatches; ++batch) park(batch, first() + batch * together);
    Statistics next[kTogether];
    load(next, first());
    int batch = 0;
#pragma unroll 1
    for (std::int64_t at = first(); at < p_.rows; at += together) {
      Statistics of[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) of[i] = next[i];
      load(next, at + together);
      wait_for_copies<kBatches - 1>();
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (at + i * step() >= p_.rows) break;
        add(sums, parked(batch, i, 0), parked(batch, i, 1), uint4{}, of[i]);
      }
      park(batch, at + std::int64_t{kBatches} * together);
      if (++batch == kBatches) batch = 0;
    }
  }
  __device__ void add_held(Sums& sums) const {
    const GateOf<T, kAccess, kGated> gate{p_};
    const auto index = [&](int) { return index_; };
    for (std::int64_t first_row = first(); first_row < p_.rows; first_row += kUnroll * step()) {
      typename Row::template Raw<1> raw[kUnroll];
      uint4 gates[kUnroll];
      Statistics statistics[kUnroll];
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        const std::int64_t at = first_row + i * step();
        if (at >= p_.rows) break;
        const Row arrays = row(at);
        arrays.fetch(raw[i], index);
        if (gate.is_there()) gates[i] = arrays.load_gate(index_);
        statistics[i] = arrays.template statistics<kCentring>();
      }
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        const std::int64_t at = first_row + i * step();
        if (at >= p_.rows) break;
        uint4 dy[1];
        uint4 x[1];
        row(at).template chunks<false>(raw[i], dy, x, index);
        add(sums, dy[0], x[0], gates[i], statistics[i]);
      }
    }
  }

  __device__ void store(Numbers<T>& sums, const ColumnSums<Accumulate>& to) const {
    __shared__ Accumulate of_warps[kMaxWarps][kMaxSegment * kPack<T>];
    const int thread = static_cast<int>(threadIdx.x);
    const int lane = thread % kWarpLanes;
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
#pragma unroll
      for (int offset = kWarpLanes / 2; offset >= tuning::kColumnSegment; offset /= 2) {
        if (offset < segment_chunks()) break;
        sums.at[i] += __shfl_xor_sync(0xffffffffu, sums.at[i], offset);
      }
      if (lane < segment_chunks()) of_warps[thread / kWarpLanes][lane * kPack<T> + i] = sums.at[i];
    }
    __syncthreads();
    const int width = kPack<T> << segment_shift_;
    const std::int64_t col = static_cast<std::int64_t>(segment()) * width + thread;
    if (thread >= width || col >= p_.cols) return;
    Accumulate all[kMaxWarps];
#pragma unroll
    for (int warp = 0; warp < kMaxWarps; ++warp) {
      all[warp] = warp * kWarpLanes < static_cast<int>(blockDim.x) ? of_warps[warp][thread] : 0;
    }
    store_gradient(to, rows_.head, col, reduce_array<kMaxWarps>(all, Sum()), p_.accumulate);
  }
  __device__ int segment() const {
    const int block = static_cast<int>(blockIdx.x);
    return kHeads ? block % segments_ : block;
  }

  const Params& p_;
  const int segment_shift_;
  int segments_;
  RowsOfHead<kHeads> rows_;
  int index_;
};

// The first column_blocks blocks work on columns, the others on rows as in rms_norm_row_kernel.
// Shared memory: sums, rows of wide columns to come. Limited by latency, rows alone by memory.
template <class T, class Team, Access kAccess, Centring kCentring, bool kGated>
__global__ void __launch_bounds__(roles_threads<T, Team, kAccess, kCentring, kGated>())
    rms_norm_backward_roles_kernel(
        const __grid_constant__ RmsNormBackwardParams<accumulate_t<T>> p) {
  if constexpr (runs_here<Team>()) {
    begin_overlapped();
    if (static_cast<int>(blockIdx.x) < p.column_blocks) {
      constexpr ColumnForm kColumns = column_form<T, Team, kAccess, kGated>();
      return ColumnGradient<T, kAccess, kCentring, Team::kSplitRows, kGated, kColumns>(p).run();
    }
    const Team team(p.lanes, p.blocks_per_row, p.column_blocks);
    HeldGradient<T, Team, kAccess, kCentring, kGated>(p, team).run();
  }
}

// dx of rows too wide to hold: read once for their sum and again for their result. One row per
// cluster (or block), after the blocks of columns. Limited by memory.
template <class T, Access kAccess, Centring kCentring, bool kGated>
__global__ void __launch_bounds__(tuning::kPersistentBlock) rms_norm_backward_streamed_kernel(
    const __grid_constant__ RmsNormBackwardParams<accumulate_t<T>> p) {
  using Tile = StreamedTile<RowSum<T, kCentring>, tuning::kGradientVecs,
                            tuning::kPersistentBlock / kWarpLanes, 1, kAccess>;
  begin_overlapped();
  if (static_cast<int>(blockIdx.x) < p.column_blocks) {
    return ColumnGradient<T, kAccess, kCentring, false, kGated, ColumnForm::kWide>(p).run();
  }
  __shared__ typename Tile::Shared shared;
  Tile tile(shared, p.blocks_per_row, p.groups, p.segments_per_group);
  tile.start();
  using Row = GradientRow<T, kAccess, false>;
  const std::int64_t row_index = cluster_index() - p.column_blocks / p.blocks_per_row;
  const Row row(p, row_index);
  const GateOf<T, kAccess, kGated> gate{p};
  const ColumnReader<T, kAccess> weight(p.weight, p.chunks, p.cols,
                                        kAccess == Access::kAny ? p.heads.of(row_index) : 0);
  const auto statistics = row.template statistics<kCentring>();
  const auto gate_at = [&](int at) {
    return gate.is_there() ? row.load_gate(at) : uint4{0u, 0u, 0u, 0u};
  };
  struct Terms {
    Numbers<T> g, h;
  };
  const auto terms = [&](int at) -> Terms {
    const ChunkInputs<T> inputs = gate.inputs(row.load_dy(at), row.load_x(at), gate_at(at));
    return {times<T>(inputs.dy, weight, weight.template load<true>(at), at),
            normal<T, kCentring>(inputs.x, statistics)};
  };
  const auto mean = means<kCentring>(p, tile.reduce(
                                            0,
                                            [&](int at) {
                                              const Terms of = terms(at);
                                              return row_sum<T, kCentring>(of.g, of.h);
                                            },
                                            Sum()));
  if constexpr (kAccess != Access::kShifted) {
    if (gate.is_there()) {
      return tile.each_chunk([&](int at) {
        const Terms of = terms(at);
        row.store_gated(
            at, Row::template gradient_of_norm<kCentring>(of.g, of.h, statistics.rstd, mean),
            norm_before_gate<T>(of.h, weight, weight.template load<true>(at), at,
                                p.round_before_weight),
            row.load_dy(at), row.load_x(at), gate_at(at));
      });
    }
  }
  tile.each_segment([&](int group, int segment) {
    tile.write(row.dx(), group, segment, [&](int, int at) {
      const Terms of = terms(at);
      return row.template gradient<kCentring>(of.g, of.h, statistics.rstd, mean, row.load_dsum(at),
                                              p.dsum != nullptr);
    });
  });
}

}  // namespace membound::cuda
