// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The block-specialised backward of few rows: row blocks write dx, column blocks write dweight and
// dbias, both in one launch. Each array is read twice, the second time from L2, and there are no
// partial sums. If dweight is not wanted, there are row blocks alone.
#include "cuda/launch/async_copy.cuh"
#include "cuda/norm/rms_norm_backward_config.hpp"
#include "cuda/norm/rms_norm_backward_row.cuh"
#include "cuda/row/column_sum.cuh"
#include "cuda/row/thread_group.cuh"
#include "cuda/row/tile.cuh"

namespace membound::cuda {

// Thread groups that share a row of dx and reduce over it once, in the tree of the persistent
// kernels (persistent_group.cuh): a row has the same bits among few rows and many, with dweight and
// without. The tree by 16-byte vectors of a row: up to 32, a power of two of lanes with one each;
// up to 512, a warp per 32; up to 1024, a warp per 64, where a lane first adds two half a row
// apart; beyond, as few such groups as hold the row. Their sums are added pairwise. The groups
// below have half the lanes: each thread has two items.

// Up to 64 vectors.
struct GradientWarpThreadGroup : WarpThreadGroup {
  static constexpr int kVectorsPerItem = 1;
  static constexpr int kItemsPerThread = 2;
  static constexpr int kVectors = kItemsPerThread * kVectorsPerItem;
  using WarpThreadGroup::WarpThreadGroup;
  // 32 lanes are two warps of the tree. Fewer hold two halves of one warp, which its first step
  // adds.
  template <class Value, class Combine>
  __device__ Value reduce_part(const Value (&values)[kItemsPerThread], int, Combine combine) const {
    if (size < kWarpLanes) return reduce_lanes(combine(values[0], values[1]), size, combine);
    return combine(reduce_warp(values[0], combine), reduce_warp(values[1], combine));
  }
};

// Up to 1024 vectors.
struct GradientBlockThreadGroup : BlockThreadGroup<1> {
  static constexpr int kVectorsPerItem = 1;
  static constexpr int kItemsPerThread = 2;
  static constexpr int kVectors = kItemsPerThread * kVectorsPerItem;
  using BlockThreadGroup::BlockThreadGroup;
  template <class Value, class Combine>
  __device__ Value reduce_part(const Value (&values)[kItemsPerThread], int round,
                               Combine combine) const {
    if (size <= kMaxThreads / 2) return reduce_block<16>(values, round, combine);
    const Value pair[1] = {combine(values[0], values[1])};
    return reduce_block<16>(pair, round, combine);
  }
};

// The same for wide rows: a type of its own selects kernels with fewer registers.
struct GradientWideThreadGroup : GradientBlockThreadGroup {
  using GradientBlockThreadGroup::GradientBlockThreadGroup;
};

template <class Value>
using GradientClusterThreadGroup = ClusterThreadGroup<Value, 2, 16, 1>;

// dweight and dbias of few rows, by column blocks: each sums a segment of the columns over all rows
// of one head, in a reduction tree that the block size fixes.

// How wide a column block's segment is, and where prefetched rows wait. In registers they would
// leave an SM one block of 512 threads instead of two.
enum class ColumnForm {
  kNarrow,   // kColumnSegment, in registers
  kWide,     // kWideColumnSegment, in registers
  kStaged,   // kWideColumnSegment, in shared memory
  kRunTime,  // either, by the width of the rows, in registers
};
template <class T, class ThreadGroup, Access kAccess, bool kGated>
__host__ __device__ constexpr ColumnForm column_form() {
  constexpr bool kStagesRow = kAccess == Access::kAligned && sizeof(T) < 8 && !kGated;
  if (std::is_same_v<ThreadGroup, GradientWideThreadGroup> || ThreadGroup::kClusters) {
    return kStagesRow ? ColumnForm::kStaged : ColumnForm::kWide;
  }
  const bool may_be_wide = std::is_same_v<ThreadGroup, GradientBlockThreadGroup> && !kStagesRow;
  return may_be_wide ? ColumnForm::kRunTime : ColumnForm::kNarrow;
}

// A block's columns and rows, and the last steps of its sums. Neighbouring lanes take the vectors
// of a segment; each such group of lanes is a slot, and the slots take the block's rows in
// rotation. Rows of a slot are added up first, then slots of a warp, then warps.
template <class T, int kMaxSegment, bool kHeads>
class ColumnBlock {
 protected:
  using Accumulate = accumulate_t<T>;
  using Params = RmsNormBackwardParams<Accumulate>;
  static constexpr int kMaxWarps = 16;

  __device__ ColumnBlock(const Params& p, int segment_vectors)
      : p_(p),
        segment_shift_(log2_of(segment_vectors)),
        width_(kPack<T> << segment_shift_),
        of_head_((p.vectors + segment_vectors - 1) >> segment_shift_),
        rows_{p.heads.count, kHeads ? static_cast<int>(blockIdx.x) / of_head_ : 0} {}

  __device__ bool has_rows() const { return !kHeads || rows_.head < p_.heads.count; }
  __device__ int segment_vectors() const { return 1 << segment_shift_; }
  __device__ int step() const { return static_cast<int>(blockDim.x) >> segment_shift_; }
  __device__ int segment() const {
    const int block = static_cast<int>(blockIdx.x);
    return kHeads ? block % of_head_ : block;
  }
  __device__ std::int64_t first_column() const { return std::int64_t{segment()} * width_; }

  // store_warp(sums, to) writes a warp's sums, one for each column, to to[0], to[1] ... .
  template <Centring kCentring, class Sums, class StoreWarp>
  __device__ void store(Sums& weight, Sums& bias, StoreWarp store_warp) const {
    if (p_.dweight.data != nullptr) store(weight, p_.dweight, store_warp);
    if (kCentring != Centring::kNever && p_.dbias.data != nullptr) {
      __syncthreads();  // the sums of the weight have been read
      store(bias, p_.dbias, store_warp);
    }
  }

  const Params& p_;
  const int segment_shift_;
  int width_;    // columns of the block
  int of_head_;  // blocks of a head
  RowsOfHead<kHeads> rows_;

 private:
  template <class Sums, class StoreWarp>
  __device__ void store(Sums& sums, const ColumnSums<Accumulate>& to, StoreWarp store_warp) const {
    __shared__ Accumulate of_warps[kMaxWarps][kMaxSegment * kPack<T>];
    const int thread = static_cast<int>(threadIdx.x);
    store_warp(sums, of_warps[thread / kWarpLanes]);
    __syncthreads();
    const std::int64_t col = first_column() + thread;
    if (thread >= width_ || col >= p_.cols) return;
    Accumulate all[kMaxWarps];
#pragma unroll
    for (int warp = 0; warp < kMaxWarps; ++warp) {
      all[warp] = warp * kWarpLanes < static_cast<int>(blockDim.x) ? of_warps[warp][thread] : 0;
    }
    store_gradient(to, rows_.head, col, reduce_array<kMaxWarps>(all, Sum()), p_.accumulate);
  }
};

// Vectors of a segment, at most.
__host__ __device__ constexpr int most_vectors(ColumnForm form) {
  return form == ColumnForm::kNarrow ? tuning::kColumnSegment : tuning::kWideColumnSegment;
}

// Each thread has one vector of the segment.
template <class T, Access kAccess, Centring kCentring, bool kSplit, bool kGated, ColumnForm kForm>
class ColumnVectors : ColumnBlock<T, most_vectors(kForm), kAccess == Access::kStrided || kSplit> {
  using Block = ColumnBlock<T, most_vectors(kForm), kAccess == Access::kStrided || kSplit>;
  using Block::p_, Block::rows_, Block::segment_shift_, Block::segment_vectors, Block::step;
  using typename Block::Accumulate, typename Block::Params;
  static constexpr int kUnroll = 4;  // rows of a thread in flight in registers
  struct Sums {
    Numbers<T> weight{}, bias{};
  };

 public:
  __device__ explicit ColumnVectors(const Params& p)
      : Block(p, kForm == ColumnForm::kRunTime && p.vectors <= tuning::kNarrowVectors
                     ? tuning::kColumnSegment
                     : most_vectors(kForm)),
        index_((this->segment() << segment_shift_) +
               (static_cast<int>(threadIdx.x) & (segment_vectors() - 1))) {}

  __device__ void run() const {
    if (!this->has_rows()) return;
    Sums sums;
    if constexpr (kForm == ColumnForm::kStaged && MEMBOUND_HAS_ASYNC_COPY) {
      add_staged(sums);
    } else {
      add_held(sums);
    }
    this->template store<kCentring>(sums.weight, sums.bias, [this](Numbers<T>& of, Accumulate* to) {
      const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
#pragma unroll
        for (int offset = kWarpLanes / 2; offset >= tuning::kColumnSegment; offset /= 2) {
          if (offset < segment_vectors()) break;
          of.at[i] += shuffle_xor(of.at[i], offset);
        }
        if (lane < segment_vectors()) to[lane * kPack<T> + i] = of.at[i];
      }
    });
  }

 private:
  using Row = GradientRow<T, kAccess, kSplit>;
  using Statistics = RowStatistics<Accumulate>;
  // Rows that a thread adds at a time: two centred rows would spill.
  static constexpr int kTogether = kCentring == Centring::kAlways ? 1 : 2;
  static constexpr int kBatches = tuning::kColumnRows / kTogether;

  __device__ int first() const { return static_cast<int>(threadIdx.x) >> segment_shift_; }
  __device__ Row row(std::int64_t at) const { return {p_, rows_.at(at)}; }
  __device__ void add(Sums& sums, const uint4& dy, const uint4& x, const uint4& gate,
                      const Statistics& statistics) const {
    const VectorInputs<T> inputs = GateOf<T, kAccess, kGated>{p_}.inputs(dy, x, gate);
    add_weight_gradient<T>(sums.weight, inputs.dy, normal<T, kCentring>(inputs.x, statistics),
                           kCentring != Centring::kAlways && p_.round_before_weight);
    if constexpr (kCentring != Centring::kNever) add_bias_gradient<T>(sums.bias, inputs.dy);
  }

  // A vector of dy or x in a batch of rows. Only its own thread writes and reads it, without a
  // barrier.
  __device__ static uint4& staging(int batch, int row, int array) {
    extern __shared__ uint4 columns[];
    return columns[((batch * kTogether + row) * 2 + array) * static_cast<int>(blockDim.x) +
                   static_cast<int>(threadIdx.x)];
  }
  __device__ void stage(int batch, std::int64_t first_row) const {
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const std::int64_t at = first_row + i * step();
      if (at >= p_.rows || index_ >= p_.vectors) continue;
      const Row from = row(at);
      copy_async(&staging(batch, i, 0), from.dy().address(index_), kVectorBytes);
      copy_async(&staging(batch, i, 1), from.x().address(index_), kVectorBytes);
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
  __device__ void add_staged(Sums& sums) const {
    const int together = kTogether * step();
#pragma unroll
    for (int batch = 0; batch < kBatches; ++batch) stage(batch, first() + batch * together);
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
        add(sums, staging(batch, i, 0), staging(batch, i, 1), uint4{}, of[i]);
      }
      stage(batch, at + std::int64_t{kBatches} * together);
      if (++batch == kBatches) batch = 0;
    }
  }
  __device__ void add_held(Sums& sums) const {
    const GateOf<T, kAccess, kGated> gate{p_};
    const auto index = [&](int) { return index_; };
    for (std::int64_t first_row = first(); first_row < p_.rows; first_row += kUnroll * step()) {
      uint4 dy[kUnroll][1], x[kUnroll][1], gates[kUnroll];
      Statistics statistics[kUnroll];
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        const std::int64_t at = first_row + i * step();
        if (at >= p_.rows) break;
        const Row arrays = row(at);
        arrays.fetch(dy[i], x[i], index);
        if (gate.is_present()) gates[i] = arrays.load_gate(index_);
        statistics[i] = arrays.template statistics<kCentring>();
      }
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        const std::int64_t at = first_row + i * step();
        if (at >= p_.rows) break;
        add(sums, dy[i][0], x[i][0], gates[i], statistics[i]);
      }
    }
  }

  int index_;
};

// dx of one row, which a thread group holds in registers from its only read to its only write.
template <class T, class ThreadGroup, Access kAccess, Centring kCentring, bool kGated>
class HeldGradient {
  using Accumulate = accumulate_t<T>;
  using Params = RmsNormBackwardParams<Accumulate>;
  using Tile = RegisterTile<ThreadGroup, kAccess>;
  using Row = GradientRow<T, kAccess, ThreadGroup::kSplitRows>;
  static constexpr int kVectors = Tile::kVectors;
  static constexpr bool kHeads = kAccess == Access::kStrided || ThreadGroup::kSplitRows;

 public:
  __device__ HeldGradient(const Params& p, const ThreadGroup& thread_group)
      : p_(p),
        thread_group_(thread_group),
        tile_(thread_group, thread_group.row, kHeads ? p.rows * p.heads.count : p.rows),
        row_(p, tile_.row()),
        gate_{p},
        weight_(p.weight, p.vectors, p.cols, kHeads ? p.heads.of(tile_.row()) : 0) {}

  __device__ void run() {
    const auto index = [&](int i) { return tile_.index(i); };
    uint4 dy[kVectors];
    uint4 x[kVectors];
    uint4 weights[kVectors];
    uint4 fused_input[kVectors];  // dsum or the gate
    row_.fetch(dy, x, index);
    weight_.template load<true>(weights, index);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      fused_input[i] = gate_.is_present() ? row_.load_gate(index(i)) : row_.load_dsum(index(i));
    }
    const RowStatistics<Accumulate> row = row_.template statistics<kCentring>();
    thread_group_.start();
    struct Terms {
      Numbers<T> g, h;
    };
    const auto terms = [&](int i) -> Terms {
      const VectorInputs<T> inputs = gate_.inputs(dy[i], x[i], fused_input[i]);
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
    compiler_barrier(dy);
    compiler_barrier(x);
    if (gate_.is_present()) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (!tile_.active()) continue;
        const Terms of = terms(i);
        row_.store_gated(
            index(i), Row::template gradient_of_norm<kCentring>(of.g, of.h, row.rstd, mean),
            norm_before_gate<T>(of.h, weight_, weights[i], index(i), p_.round_before_weight), dy[i],
            x[i], fused_input[i]);
      }
      return;
    }
    tile_.write_out(row_.dx(), [&](int i) {
      const Terms of = terms(i);
      return row_.template gradient<kCentring>(of.g, of.h, row.rstd, mean, fused_input[i],
                                               p_.dsum != nullptr);
    });
  }

 private:
  const Params& p_;
  const ThreadGroup& thread_group_;
  Tile tile_;
  Row row_;
  GateOf<T, kAccess, kGated> gate_;
  AffineReader<T, kAccess> weight_;
};

// Threads in __launch_bounds__, by which the compiler limits registers. Some are more than a block
// has, so that several blocks share an SM (float16 1024 x 4096, 80 registers instead of 86: 12.3 ->
// 11.1 us).
template <class T, class ThreadGroup, Access kAccess, Centring kCentring, bool kGated>
constexpr int specialised_threads() {
  constexpr ColumnForm kColumns = column_form<T, ThreadGroup, kAccess, kGated>();
  if (kColumns == ColumnForm::kStaged) return 1024;
  if (std::is_same_v<ThreadGroup, GradientWarpThreadGroup> && kColumns == ColumnForm::kNarrow &&
      kCentring == Centring::kAlways) {
    return 640;
  }
  const bool fits = std::is_same_v<T, Float16> &&
                    std::is_same_v<ThreadGroup, GradientBlockThreadGroup> &&
                    kColumns == ColumnForm::kNarrow && kCentring == Centring::kNever;
  return fits ? 768 : ThreadGroup::kMaxThreads;
}

// The first column_blocks blocks sum columns, the others take rows as rms_norm_row_kernel does.
// Shared memory: the sums; staged rows of wide columns. Limited by latency; row blocks alone by
// memory bandwidth.
template <class T, class ThreadGroup, Access kAccess, Centring kCentring, bool kGated>
__global__ void __launch_bounds__(specialised_threads<T, ThreadGroup, kAccess, kCentring, kGated>())
    rms_norm_backward_specialised_kernel(
        const __grid_constant__ RmsNormBackwardParams<accumulate_t<T>> p) {
  if constexpr (runs_here<ThreadGroup>()) {
    pdl_wait_and_launch();
    if (static_cast<int>(blockIdx.x) < p.column_blocks) {
      constexpr ColumnForm kColumns = column_form<T, ThreadGroup, kAccess, kGated>();
      return ColumnVectors<T, kAccess, kCentring, ThreadGroup::kSplitRows, kGated, kColumns>(p)
          .run();
    }
    const ThreadGroup thread_group(p.lanes, p.blocks_per_row, p.column_blocks);
    HeldGradient<T, ThreadGroup, kAccess, kCentring, kGated>(p, thread_group).run();
  }
}

// dx of rows too wide for registers: each is read once for its sums and again for its result. One
// row per cluster (or block), after the column blocks. Shared memory: the sums of the row. Limited
// by memory bandwidth.
template <class T, Access kAccess, Centring kCentring, bool kGated>
__global__ void __launch_bounds__(tuning::kPersistentBlock) rms_norm_backward_streamed_kernel(
    const __grid_constant__ RmsNormBackwardParams<accumulate_t<T>> p) {
  using Tile = StreamedTile<RowSum<T, kCentring>, tuning::kGradientVectorsPerItem,
                            tuning::kPersistentBlock / kWarpLanes, 1, kAccess>;
  pdl_wait_and_launch();
  if (static_cast<int>(blockIdx.x) < p.column_blocks) {
    return ColumnVectors<T, kAccess, kCentring, false, kGated, ColumnForm::kWide>(p).run();
  }
  __shared__ typename Tile::Shared shared;
  Tile tile(shared, p.blocks_per_row, p.groups, p.segments_per_group);
  tile.start();
  using Row = GradientRow<T, kAccess, false>;
  const std::int64_t row_index = cluster_index() - p.column_blocks / p.blocks_per_row;
  const Row row(p, row_index);
  const GateOf<T, kAccess, kGated> gate{p};
  const AffineReader<T, kAccess> weight(p.weight, p.vectors, p.cols,
                                        kAccess == Access::kStrided ? p.heads.of(row_index) : 0);
  const auto statistics = row.template statistics<kCentring>();
  const auto gate_at = [&](int at) {
    return gate.is_present() ? row.load_gate(at) : uint4{0u, 0u, 0u, 0u};
  };
  struct Terms {
    Numbers<T> g, h;
  };
  const auto terms = [&](int at) -> Terms {
    const VectorInputs<T> inputs = gate.inputs(row.load_dy(at), row.load_x(at), gate_at(at));
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
  if (gate.is_present()) {
    return tile.each_vector([&](int at) {
      const Terms of = terms(at);
      row.store_gated(at,
                      Row::template gradient_of_norm<kCentring>(of.g, of.h, statistics.rstd, mean),
                      norm_before_gate<T>(of.h, weight, weight.template load<true>(at), at,
                                          p.round_before_weight),
                      row.load_dy(at), row.load_x(at), gate_at(at));
    });
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
