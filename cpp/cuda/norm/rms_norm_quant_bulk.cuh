// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Quantised norms of many unaligned rows through the bulk pipeline, with one or per-row scales.
#include "cuda/norm/rms_norm_bulk.cuh"
#include "cuda/norm/rms_norm_quant_epilogue.cuh"

namespace membound::cuda {

// The epilogue: stores the quantised row, in units of as many bytes as a vector has elements, and
// residual_out, which has an aligned span of its own.
template <class T, class ThreadGroup, FusedInput kFusedInput>
class BulkQuantised {
  using Accumulate = accumulate_t<T>;
  using Params = RmsNormQuantParams<Accumulate>;
  static constexpr int kVectorsPerItem = ThreadGroup::kVectorsPerItem;
  static constexpr bool kAdd = kFusedInput == FusedInput::kResidual;
  using Units = SpanUnits<T, kVectorsPerItem>;

 public:
  using Epilogue = QuantiseResult<Access::kStrided>;
  static constexpr int kBarriers = 1;  // for the largest magnitude

  // For every gridDim.x-th row.
  __device__ BulkQuantised(const Params& p, const ThreadGroup& thread_group, std::int64_t row,
                           std::int64_t step)
      : p_(p),
        thread_group_(thread_group),
        at_(reinterpret_cast<std::uint64_t>(p.quantised) +
            static_cast<std::uint64_t>(row * p.quantised_row_stride)),
        units_(
            AlignedSpan::of_shift<T>(static_cast<int>(at_ % kPack<T>), p.vectors,
                                     static_cast<int>(p.cols), kVectorsPerItem * thread_group.size),
            thread_group.lane, thread_group.size),
        residual_out_(AlignedSpan::of(residual_row(row), p.vectors, static_cast<int>(p.cols),
                                      kVectorsPerItem * thread_group.size),
                      thread_group.lane, thread_group.size) {
    at_ += static_cast<std::uint64_t>(static_cast<std::int64_t>(units_.first()));
    residual_out_.place(0, residual_row(row), step * p.residual_out_row_stride);
  }
  __device__ const AlignedSpan& span() const { return units_.span(); }
  __device__ void next() {
    at_ += static_cast<std::uint64_t>(std::int64_t{gridDim.x} * p_.quantised_row_stride);
    if constexpr (kAdd) residual_out_.next();
  }
  template <class Norm, class Scale>
  __device__ void write_out(const Norm& norm, std::int64_t row, const Scale& scale,
                            int turn) const {
    if constexpr (kAdd) {
      norm.each_source(residual_out_.span(), [&](int v, const auto& of) {
        const uint4 sums[1] = {pack<T>(of.numbers(p_))};
        residual_out_.store(v, sums);
      });
    }
    uint4 y[kVectorsPerItem];
    norm.each_source(span(), [&](int v, const auto& of) {
      y[v] = norm.result(row, of, of.numbers(p_), scale, v);
    });
    const auto inverse = Accumulate(1) / static_cast<Accumulate>(scale_of(y, row, turn));
    switch (p_.quantised_dtype) {
      case DType::kInt8: return store<DType::kInt8>(y, inverse);
      case DType::kFloat8E4M3: return store<DType::kFloat8E4M3>(y, inverse);
      default: return store<DType::kFloat8E5M2>(y, inverse);
    }
  }

 private:
  __device__ T* residual_row(std::int64_t row) const {
    return static_cast<T*>(p_.residual_out) + row * p_.residual_out_row_stride;
  }
  __device__ float scale_of(const uint4 (&y)[kVectorsPerItem], std::int64_t row, int turn) const {
    Accumulate largest[1] = {0};
    if (p_.static_scale == nullptr) {
#pragma unroll
      for (int v = 0; v < kVectorsPerItem; ++v)
        largest[0] = larger_or_nan(largest[0], largest_of(v, y[v]));
    }
    // Also with a static scale: without this barrier between rows the kernel for scales per row
    // takes 5 % longer (16384 x 4097 on H200: 103 -> 109 us).
    largest[0] = thread_group_.reduce_part(largest, turn, LargestOrNan());
    if (p_.static_scale != nullptr) return *p_.static_scale;
    const float scale = dynamic_scale(largest[0], p_.quantised_dtype, p_.scale_upper_bound);
    if (thread_group_.lane == 0) p_.scale[row * p_.scale_row_stride] = scale;
    return scale;
  }
  __device__ Accumulate largest_of(int v, const uint4& y) const {
    if (units_.whole(v)) return largest_or_nan<T>(y);
    const Numbers<T> numbers = unpack<T>(y);
    Accumulate largest = 0;
    units_.each(v, [&](int, int i) { largest = larger_or_nan(largest, fabs(numbers.at[i])); });
    return largest;
  }
  template <DType kDType>
  __device__ void store(const uint4 (&y)[kVectorsPerItem], Accumulate inverse) const {
#pragma unroll
    for (int v = 0; v < kVectorsPerItem; ++v) {
      const uint2 codes = codes_of<kDType>(unpack<T>(y[v]).at, inverse);
      if (units_.whole(v)) {
        store_aligned_codes<kPack<T>>(at_ + static_cast<std::uint64_t>(v * units_.apart()), codes);
      } else if (units_.any(v)) {
        units_.each(v, [&](int to, int i) {
          const std::uint32_t word = i < 4 ? codes.x : codes.y;
          asm volatile("st.global.b8 [%0], %1;" ::"l"(at_ + static_cast<std::uint64_t>(to)),
                       "r"(word >> 8 * (i % 4))
                       : "memory");
        });
      }
    }
  }

  const Params& p_;
  const ThreadGroup& thread_group_;
  std::uint64_t at_;  // unit 0 of this thread
  Units units_;
  BulkResult<T, kVectorsPerItem, 1> residual_out_;
};

// As rms_norm_bulk_kernel, with a second barrier per row.
template <class T, class ThreadGroup, FusedInput kFusedInput>
__global__ void __launch_bounds__(ThreadGroup::kMaxThreads,
                                  tuning::kBulkThreadsPerSm / ThreadGroup::kMaxThreads)
    rms_norm_quant_bulk_kernel(const __grid_constant__ RmsNormQuantParams<accumulate_t<T>> p) {
  if constexpr (MEMBOUND_HAS_CLUSTERS) {
    const ThreadGroup thread_group(p.lanes, 1, 0);
    pdl_wait();
    BulkNorm<T, ThreadGroup, kFusedInput, Centring::kNever,
             BulkQuantised<T, ThreadGroup, kFusedInput>>(p, thread_group)
        .run();
    pdl_launch_dependents();
  }
}

}  // namespace membound::cuda
