// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The block-specialised backward of few rows: row blocks write dx, column blocks write dweight and
// dbias, both in one launch. Each array is read twice, the second time from L2, and there are no
// partial sums. If dweight is not wanted, there are row blocks alone.
#include "cuda/norm/gradient_group.cuh"
#include "cuda/norm/rms_norm_backward_affine_sums.cuh"
#include "cuda/norm/rms_norm_backward_config.hpp"
#include "cuda/norm/rms_norm_backward_row.cuh"
#include "cuda/row/tile.cuh"

namespace membound::cuda {

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
