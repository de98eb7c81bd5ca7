// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Norms of many unaligned rows without options, through the pipeline of cuda/row/bulk_pipeline.cuh.
#include "cuda/norm/rms_norm_kernels.cuh"
#include "cuda/norm/rms_norm_shift.cuh"
#include "cuda/row/bulk_pipeline.cuh"
#include "cuda/row/warp_sums.cuh"

namespace membound::cuda {

// The overflow-safe path of a row. It reads element by element: shared memory holds rows in flight.
template <class T, class ThreadGroup, FusedInput kFusedInput, Centring kCentring>
__device__ __noinline__ void rescale_row(const RmsNormParams<accumulate_t<T>>& p,
                                         std::int64_t row) {
  ThreadGroup thread_group(p.lanes, 1, 0);
  thread_group.row = row;
  HeldRow<T, ThreadGroup, Access::kStrided, kFusedInput, kCentring, StoreResult>(p, thread_group)
      .run_scaled(false);
  __syncthreads();  // the next row reuses the shared memory of the sums
}

// Stores out and residual_out, whose rows are equally far from a 16-byte boundary.
template <class T, class ThreadGroup, FusedInput kFusedInput, Centring kCentring>
class BulkStore {
  using Params = RmsNormParams<accumulate_t<T>>;
  static constexpr int kVectorsPerItem = ThreadGroup::kVectorsPerItem;
  static constexpr bool kAdd = kFusedInput == FusedInput::kResidual;

 public:
  // For the rows `row`, row + step ...
  __device__ BulkStore(const Params& p, const ThreadGroup& thread_group, std::int64_t row,
                       std::int64_t step)
      : p_(p), out_(span_of(thread_group, row), thread_group.lane, thread_group.size) {
    place(0, p.out, p.out_row_stride, row, step);
    if constexpr (kAdd) place(1, p.residual_out, p.residual_out_row_stride, row, step);
  }
  __device__ const AlignedSpan& span() const { return out_.span(); }
  __device__ void next() { out_.next(); }
  template <class Norm, class Scale>
  __device__ void write_out(const Norm& norm, std::int64_t row, const Scale& scale) const {
    norm.each_source(span(), [&](int v, const auto& of) {
      const Numbers<T> numbers = of.numbers(p_);
      uint4 results[kAdd ? 2 : 1];
      if constexpr (kAdd) results[1] = pack<T>(numbers);
      results[0] = norm.result(row, of, numbers, scale, v);
      out_.store(v, results);
    });
  }

 private:
  __device__ AlignedSpan span_of(const ThreadGroup& thread_group, std::int64_t row) const {
    const AlignedSpan span =
        AlignedSpan::of(static_cast<const T*>(p_.out) + row * p_.out_row_stride, p_.vectors,
                        static_cast<int>(p_.cols), kVectorsPerItem * thread_group.size);
    return kCentring != Centring::kNever && !kAdd ? span.kept() : span;  // else registers spill
  }
  __device__ void place(int array, void* data, std::int64_t stride, std::int64_t row,
                        std::int64_t step) {
    out_.place(array, static_cast<T*>(data) + row * stride, step * stride);
  }

  const Params& p_;
  BulkResult<T, kVectorsPerItem, kAdd ? 2 : 1> out_;
};

// Sums over a block, row after row. Two sums keep their shared-memory addresses in registers
// (WarpSums); for one sum that costs more than it saves (16384 x 4097 with a residual on H200: 138
// -> 159 us).
template <class ThreadGroup, class Value>
struct BulkSums {
  const ThreadGroup& thread_group;
  __device__ BulkSums(const ThreadGroup& thread_group) : thread_group(thread_group) {}
  __device__ Value of(const Value& mine, int turn) const {
    const Value values[1] = {mine};
    return thread_group.reduce_part(values, turn, Sum());
  }
};
template <class ThreadGroup, class Accumulate>
struct BulkSums<ThreadGroup, Pair<Accumulate>> {
  const ThreadGroup& thread_group;
  WarpSums<Pair<Accumulate>, 1, 1, ThreadGroup::kVectorsPerItem <= 2> of_warps;
  __device__ BulkSums(const ThreadGroup& thread_group)
      : thread_group(thread_group), of_warps(0, thread_group.lane / kWarpLanes) {
    of_warps.clear();
  }
  __device__ Pair<Accumulate> of(const Pair<Accumulate>& mine, int turn) const {
    Pair<Accumulate> sums[1] = {mine};
    of_warps.sum(sums, turn, [&] { thread_group.sync(); });
    return sums[0];
  }
};

// The norm of every gridDim.x-th row: sums by the row's own vectors, results by the 16-byte units
// of the output's aligned span.
template <class T, class ThreadGroup, FusedInput kFusedInput, Centring kCentring>
class BulkNorm {
  using Accumulate = accumulate_t<T>;
  using Params = RmsNormParams<Accumulate>;
  using Row = NormRow<T, Access::kUnaligned, kFusedInput>;
  using Vector = SourceVector<T, kFusedInput>;
  using Scale = RowScale<Accumulate>;
  static constexpr int kVectorsPerItem = ThreadGroup::kVectorsPerItem;
  static constexpr int kArrays = kFusedInput == FusedInput::kNone ? 1 : 2;
  static constexpr bool kCentred = kCentring != Centring::kNever;
  using Sums = std::conditional_t<kCentred, Pair<Accumulate>, Accumulate>;
  using Pipeline = BulkPipeline<T, ThreadGroup, kArrays, 0, (kCentred ? 2 : 1) * kVectorsPerItem,
                                tuning::bulk_stages(kVectorsPerItem, kArrays)>;

 public:
  // For the rows thread_group.row, thread_group.row + gridDim.x ...
  __device__ BulkNorm(const Params& p, const ThreadGroup& thread_group)
      : p_(p),
        thread_group_(thread_group),
        row_(thread_group.row),
        step_(gridDim.x),
        output_(p, thread_group, row_, step_),
        pipeline_(thread_group, sources(), p.rows, row_, step_, rounds(), p.vectors, cols()),
        columns_(p, 0),
        sums_(thread_group) {
    uint4 none[1];
    columns_.clear_bias(none);
#pragma unroll
    for (int v = 0; v < kVectorsPerItem; ++v) {
      const auto load = [&](const AffineArray<Accumulate>& columns) {
        return output_.span().load(static_cast<const T*>(columns.data), unit(v));
      };
      pipeline_.column(v) = load(p.weight);
      if constexpr (kCentred) {
        pipeline_.column(kVectorsPerItem + v) = p.bias.data != nullptr ? load(p.bias) : none[0];
      }
    }
  }

  __device__ void run() {
    pipeline_.start();
#pragma unroll 1
    for (int round = 0; row_ < p_.rows; row_ += step_, ++round) {
      pipeline_.receive();
      one_row(round);
      pipeline_.release();
      output_.next();
    }
  }

  // body(v, vector) for each 16-byte unit of a span. With one array two units share a shift branch.
  template <class Body>
  __device__ void each_source(const AlignedSpan& span, Body body) const {
    constexpr int kUnrolled = kArrays == 1 ? 2 : 1;
#pragma unroll
    for (int first = 0; first < kVectorsPerItem; first += kUnrolled) {
      uint4 parts[kArrays][kUnrolled];
#pragma unroll
      for (int array = 0; array < kArrays; ++array)
        pipeline_.units(array, span, first, parts[array]);
#pragma unroll
      for (int v = 0; v < kUnrolled; ++v) body(first + v, vector(parts, v));
    }
  }
  // Unit v of the result, normalised.
  __device__ uint4 result(std::int64_t row, const Vector& of, const Numbers<T>& numbers,
                          const Scale& scale, int v) const {
    uint4 bias;
    if constexpr (kCentred) bias = pipeline_.column(kVectorsPerItem + v);
    const Numbers<T> y =
        columns_.template normalised<true>(numbers, scale, pipeline_.column(v), bias, unit(v));
    return Row(p_, row).result(y, of);
  }

 private:
  __device__ int cols() const { return static_cast<int>(p_.cols); }
  __device__ int unit(int v) const { return v * thread_group_.size + thread_group_.lane; }
  __device__ int rounds() const {
    return row_ < p_.rows ? static_cast<int>((p_.rows - row_ + step_ - 1) / step_) : 0;
  }
  __device__ auto sources() const {
    typename Pipeline::Sources sources;
    sources.arrays[0] = {static_cast<const T*>(p_.x), p_.x_row_stride};
    if constexpr (kArrays == 2) {
      sources.arrays[1] = {static_cast<const T*>(p_.fused_input), p_.fused_input_row_stride};
    }
    return sources;
  }

  __device__ void one_row(int round) {
    Scale scale;
    bool in_range = true;
    const Accumulate squares = squares_of_row(scale, round, in_range);
    pipeline_.refill(round);
    if (!in_range || !is_trusted(p_, squares)) [[unlikely]]
      return rescale_row<T, ThreadGroup, kFusedInput, kCentring>(p_, row_);
    scale.rstd = plain_rstd(p_, squares);
    if (thread_group_.lane == 0) Row(p_, row_).template store_statistics<kCentring>(scale);
    output_.write_out(*this, row_, scale);
  }

  // Sums in the order of HeldRow, by the vectors of the row, so that the bits are the same.
  __device__ Accumulate squares_of_row(Scale& scale, int turn, bool& in_range) const {
    uint4 parts[kArrays][kVectorsPerItem];
#pragma unroll
    for (int array = 0; array < kArrays; ++array)
      pipeline_.template vectors<!kCentred>(array, 0, parts[array]);
    if constexpr (kCentred) scale.mean = shift_by_lanes<T>([&](int i) { return number(i); });
    Sums sums(0);
#pragma unroll
    for (int v = 0; v < kVectorsPerItem; ++v) {
      const Numbers<T> numbers = vector(parts, v).numbers(p_);
      Sums more;
      if constexpr (!kCentred) {
        more = sum_of_squares<T>(numbers);
      } else if (v < kVectorsPerItem - 1) {
        more = sums_of<T>(deviations<T, kCentring>(numbers, scale));
      } else {
        more = sums_about_shift<T, Access::kUnaligned, kCentring>(p_, numbers, scale, unit(v));
      }
      sums = v == 0 ? more : sums + more;
    }
    const Sums of_row = sums_.of(sums, turn);
    if constexpr (kCentred) {
      return moments_from_shifted_sums<T>(scale, of_row, p_.inverse_cols, in_range);
    } else {
      return of_row;
    }
  }
  // Element i of what is normalised; centred rows have no gate before the norm.
  __device__ Accumulate number(int i) const {
    Accumulate x = to_number(pipeline_.element(0, i));
    if constexpr (kArrays == 2) x += to_number(pipeline_.element(1, i));
    return x;
  }
  template <int kCount>
  static __device__ Vector vector(const uint4 (&parts)[kArrays][kCount], int v) {
    Vector vector;
#pragma unroll
    for (int array = 0; array < kArrays; ++array) vector.parts[array] = parts[array][v];
    return vector;
  }

  const Params& p_;
  const ThreadGroup& thread_group_;
  std::int64_t row_;
  std::int64_t step_;
  BulkStore<T, ThreadGroup, kFusedInput, kCentring> output_;
  Pipeline pipeline_;
  AffineParameters<T, Access::kUnaligned, kCentring> columns_;
  BulkSums<ThreadGroup, Sums> sums_;
};

// A persistent block works on every gridDim.x-th row. Shared memory holds the current row and those
// in flight, weights and biases, and the warps' sums. Limited by instructions; one barrier per row.
template <class T, class ThreadGroup, FusedInput kFusedInput, Centring kCentring>
__global__ void __launch_bounds__(ThreadGroup::kMaxThreads,
                                  tuning::kBulkThreadsPerSm / ThreadGroup::kMaxThreads)
    rms_norm_bulk_kernel(const __grid_constant__ RmsNormParams<accumulate_t<T>> p) {
  if constexpr (MEMBOUND_HAS_CLUSTERS) {
    const ThreadGroup thread_group(p.lanes, 1, 0);
    pdl_wait();
    BulkNorm<T, ThreadGroup, kFusedInput, kCentring>(p, thread_group).run();
    pdl_launch_dependents();
  }
}

}  // namespace membound::cuda
