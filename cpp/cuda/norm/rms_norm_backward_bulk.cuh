// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The backward of many unaligned rows, through the bulk pipeline (bulk_pipeline.cuh).
#include <type_traits>

#include "cuda/norm/persistent_group.cuh"
#include "cuda/norm/rms_norm_backward_partials.cuh"
#include "cuda/norm/rms_norm_backward_row.cuh"
#include "cuda/row/bulk_config.hpp"
#include "cuda/row/bulk_pipeline.cuh"
#include "cuda/row/realigned_store.cuh"

namespace membound::cuda {

template <class T, class Group, FusedInput kFusedInput, Centring kCentring>
class BulkGradient {
  using Accumulate = accumulate_t<T>;
  using Params = RmsNormBackwardParams<Accumulate>;
  using Row = GradientRow<T, Access::kUnaligned>;
  using Statistics = RowStatistics<Accumulate>;
  using Total = RowSum<T, kCentring>;
  static constexpr int kVectorsPerItem = Group::kVectorsPerItem;
  using Sums = Numbers<T>[kVectorsPerItem];
  static constexpr bool kCentred = kCentring != Centring::kNever;
  // 16-bit inputs are kept as read, in half the registers, where unpacked g and h would spill
  // (bfloat16 LayerNorm 16384 x 4097: 189 -> 159 us).
  static constexpr bool kKeepsRaw =
      sizeof(T) == 2 && (kCentred || (Group::kClusters && kFusedInput == FusedInput::kResidual));
  static constexpr int kArrays = kFusedInput == FusedInput::kNone ? 2 : 3;
  using Pipeline =
      BulkPipeline<T, Group, kArrays, kCentred ? 2 : 1, kVectorsPerItem,
                   tuning::gradient_stages(kVectorsPerItem, kArrays, Group::kMaxThreads)>;

 public:
  // Groups share the rows as in PersistentGradient.
  __device__ BulkGradient(const Params& p, const Group& thread_group)
      : p_(p),
        thread_group_(thread_group),
        groups_(static_cast<int>(blockDim.x) / thread_group.size),
        step_(static_cast<std::int64_t>(p.groups_of_head) * groups_),
        row_(static_cast<std::int64_t>(thread_group.group_in_grid()) * groups_ +
             thread_group.group),
        rounds_(rounds_from(row_)),
        pipeline_(thread_group, sources(), p.rows, row_, step_, rounds_,
                  min(p.vectors - first(), part()), cols()),
        dx_(static_cast<T*>(p.dx) + row_ * p.dx_row_stride + first() * kPack<T>,
            step_ * p.dx_row_stride, thread_group.lane, thread_group.size, cols()),
        weight_(p.weight, p.vectors, p.cols) {
    uint4 weights[kVectorsPerItem];
    weight_.template load<true>(
        weights, [&](int v) { return first() + v * thread_group.size + thread_group.lane; });
#pragma unroll
    for (int v = 0; v < kVectorsPerItem; ++v) pipeline_.column(v) = weights[v];
  }

  __device__ void run() {
    pipeline_.start();
    if constexpr (Group::kClusters) {
      rows_overlapped();
    } else {
      rows_in_sequence();
    }
    pdl_launch_dependents();
    const PartialSums<T, Group, Access::kUnaligned> partials(p_, thread_group_);
    if (p_.dweight.data != nullptr) partials.store(sums_, p_.dweight.partials);
    if (kCentred && p_.dbias.data != nullptr) {
      __syncthreads();  // the sums of the weight have been read
      partials.store(bias_sums_, p_.dbias.partials);
    }
  }

 private:
  // What a thread keeps of a row until its sums are known.
  struct Made {
    Numbers<T> g, h;
  };
  struct RawInputs {
    uint4 dy, x;
  };
  struct Held {
    std::conditional_t<kKeepsRaw, RawInputs, Made> vectors[kVectorsPerItem];
    Statistics statistics;
    uint4 dsum[kVectorsPerItem];  // in clusters, which release the row's stage before finish()
  };

  // A block's part of a row: the number of its vectors, the first of them, and its elements.
  __device__ int part() const { return kVectorsPerItem * thread_group_.size; }
  __device__ int first() const { return Group::kClusters ? thread_group_.rank * part() : 0; }
  __device__ int cols() const {
    const int cols = static_cast<int>(p_.cols);
    return Group::kClusters ? min(cols - first() * kPack<T>, part() * kPack<T>) : cols;
  }
  __device__ int rounds_from(std::int64_t row) const {
    return row < p_.rows ? static_cast<int>((p_.rows - row + step_ - 1) / step_) : 0;
  }
  __device__ auto sources() const {
    typename Pipeline::Sources sources;
    const auto array = [&](const void* data, std::int64_t stride) {
      return BulkSource<T>{static_cast<const T*>(data) + first() * kPack<T>, stride};
    };
    sources.arrays[0] = array(p_.dy, p_.dy_row_stride);
    sources.arrays[1] = array(p_.x, p_.x_row_stride);
    if constexpr (kFusedInput == FusedInput::kResidual)
      sources.arrays[2] = array(p_.dsum, p_.dsum_row_stride);
    sources.numbers[0] = {p_.rstd, p_.rstd_row_stride};
    if constexpr (kCentred) sources.numbers[1] = {p_.mean, p_.mean_row_stride};
    return sources;
  }

  __device__ void rows_in_sequence() {
    // All groups pass equally many barriers, though each has its own: where the numbers differ,
    // racecheck (compute-sanitizer) does not recognise the block's barrier after this loop.
    const int rounds = rounds_from(row_ - thread_group_.group);
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
      if (round >= rounds_) {
        thread_group_.sync();
        break;
      }
      pipeline_.receive();
      Held held;
      Total parts[Group::kParts];
      begin(statistics(), parts, held);
      const auto sum = thread_group_.sum(parts, round);
      pipeline_.refill(round);
      finish(held, means<kCentring>(p_, sum));
      pipeline_.release();
      dx_.next();
    }
  }
  // The sums of a row are in flight through the cluster while the next row is added up.
  __device__ void rows_overlapped() {
    const auto begin_next = [&](int round) {
      Held held;
      pipeline_.receive();
      Total parts[Group::kParts];
      begin(statistics(), parts, held);
      thread_group_.send(parts, round);
      pipeline_.refill(round);
      pipeline_.release();
      return held;
    };
    Held here{};
    if (rounds_ > 0) here = begin_next(0);
#pragma unroll 1
    for (int round = 0; round < rounds_; ++round) {
      Held next{};
      if (round + 1 < rounds_) next = begin_next(round + 1);
      finish(here, means<kCentring>(p_, thread_group_.collect(round)));
      dx_.next();
      here = next;
    }
  }

  __device__ Statistics statistics() const {
    Statistics statistics;
    statistics.rstd = pipeline_.number(0);
    if constexpr (kCentred) statistics.mean = pipeline_.number(1);
    return statistics;
  }

  // dweight and dbias do not depend on the row's sums: only g and h are left for finish().
  __device__ void begin(const Statistics& statistics, Total (&parts)[Group::kParts], Held& held) {
    uint4 dys[kVectorsPerItem], xs[kVectorsPerItem];
    pipeline_.vectors(0, 0, dys);
    pipeline_.vectors(1, 0, xs);
    held.statistics = statistics;
#pragma unroll
    for (int v = 0; v < kVectorsPerItem; ++v) {
      const RawInputs read{dys[v], xs[v]};
      const Numbers<T> dy = unpack<T>(read.dy);
      const Made made = terms_of(read, v, statistics);
      const Total sum = row_sum<T, kCentring>(made.g, made.h);
      parts[v / 2] = v % 2 == 0 ? sum : parts[v / 2] + sum;
      add_weight_gradient<T>(sums_[v], dy, made.h, false);
      if constexpr (kCentred) add_bias_gradient<T>(bias_sums_[v], dy);
      if constexpr (kKeepsRaw) {
        held.vectors[v] = read;
        rematerialise(held.vectors[v].dy);
        rematerialise(held.vectors[v].x);
      } else {
        held.vectors[v] = made;
      }
    }
    if constexpr (kFusedInput == FusedInput::kResidual && Group::kClusters)
      pipeline_.vectors(2, 0, held.dsum);
  }
  __device__ void finish(const Held& held, const RowMeans<Accumulate>& mean) const {
#pragma unroll
    for (int v = 0; v < kVectorsPerItem; ++v) {
      uint4 dsum[1];
      if constexpr (kFusedInput == FusedInput::kResidual) {
        if constexpr (Group::kClusters) {
          dsum[0] = held.dsum[v];
        } else {
          pipeline_.vectors(2, v, dsum);
        }
      }
      const auto [g, h] = terms_of(held.vectors[v], v, held.statistics);
      dx_.store(v, Row::template gradient<kCentring>(g, h, held.statistics.rstd, mean, dsum[0],
                                                     kFusedInput == FusedInput::kResidual));
    }
  }

  __device__ Made terms_of(const RawInputs& read, int v, const Statistics& statistics) const {
    return {times<T, true>(unpack<T>(read.dy), weight_, pipeline_.column(v), 0),
            normal<T, kCentring>(unpack<T>(read.x), statistics)};
  }
  __device__ const Made& terms_of(const Made& made, int, const Statistics&) const { return made; }
  // Values derived from the vector are computed anew after this, rather than kept in registers.
  static __device__ void rematerialise(uint4& vector) {
    asm volatile("" : "+r"(vector.x), "+r"(vector.y), "+r"(vector.z), "+r"(vector.w));
  }
  const Params& p_;
  const Group& thread_group_;
  int groups_;
  std::int64_t step_;
  std::int64_t row_;
  int rounds_;  // rows of the thread group
  Pipeline pipeline_;
  RealignedStore<T, kVectorsPerItem> dx_;
  AffineReader<T, Access::kUnaligned> weight_;
  Sums sums_ = {};
  Sums bias_sums_ = {};
};

// A block (or cluster) takes every partial_rows-th row, or set of rows with one for each of its
// groups, and leaves one row of partial sums of dweight, and of dbias. Shared memory: the row, one
// or two prefetched rows, weights, sums of the warps; at the end the sums of the groups. Limited by
// instructions: one barrier per row. Clusters add up the next row while the sums of one are in
// flight.
template <class T, class Group, FusedInput kFusedInput, Centring kCentring>
__global__ void __launch_bounds__(Group::kMaxThreads, Group::kMinBlocks)
    rms_norm_backward_bulk_kernel(
        const __grid_constant__ RmsNormBackwardParams<accumulate_t<T>> p) {
  if constexpr (MEMBOUND_HAS_CLUSTERS) {
    const Group thread_group(p.lanes, p.blocks_per_row);
    thread_group.start();
    pdl_wait();
    BulkGradient<T, Group, kFusedInput, kCentring>(p, thread_group).run();
  }
}

}  // namespace membound::cuda
