// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Persistent kernel of gated_activation_quant, for rows with one scale each of which several fit in
// shared memory.
#include "cuda/activation/gated_activation_quant_row.cuh"
#include "cuda/row/cluster.cuh"

namespace membound::cuda {

#if MEMBOUND_HAS_CLUSTERS
// Processes the rows of a block one after another. kUnits: units per thread.
template <class T, Access kAccess, int kUnits>
class QuantRows {
  using A = accumulate_t<T>;
  using Row = QuantRow<T, kAccess>;
  using U = QuantUnit<T, Access::kAligned>;
  using Params = GatedActivationQuantParams<A>;
  static constexpr int kMaxWarps = kWarpLanes;  // per block: one lane each in the final reduction

 public:
  __device__ explicit QuantRows(const Params& p) : p_(p), thread_(static_cast<int>(threadIdx.x)) {}

  __device__ void run() {
    if (fetches()) {
      for (int slot = 0; slot < p_.slots; ++slot) init_mbarrier(mbar(slot));
      fence_mbarrier_init();
    }
    for (int i = thread_; i < 2 * kMaxWarps; i += static_cast<int>(blockDim.x)) of_warps(0)[i] = 0;
    __syncthreads();
    pdl_wait_and_launch();
    if (fetches()) {
      for (int slot = 0; slot < p_.slots; ++slot) {
        fetch(slot, blockIdx.x + std::int64_t{slot} * gridDim.x);
      }
    }
    const std::int64_t prefetch_distance = std::int64_t{p_.slots} * gridDim.x;
    int slot = 0, phase = 0, round = 0;
#pragma unroll 1
    for (std::int64_t row = blockIdx.x; row < p_.rows; row += gridDim.x, ++round) {
      typename U::Values y[kUnits];
      wait_mbarrier(mbar(slot), phase);
      const Row of(p_, row, offsets(slot));
      compute(y, of, slot, scale_of_row<A>(p_.row_scale, p_.row_scale_rows, row));
      const A largest = largest_of_block(y, round);
      if (fetches()) fetch(slot, row + prefetch_distance);
      float scale;
      if (kAccess != Access::kAligned && p_.static_scale != nullptr) {
        scale = *p_.static_scale;
      } else {
        scale = dynamic_scale(largest, p_.out_dtype, p_.scale_upper_bound);
        if (thread_ == 0) *p_.scale_at(row, 0) = scale;
      }
      store(y, of, A(1) / static_cast<A>(scale));
      if (++slot == p_.slots) {
        slot = 0;
        phase ^= 1;
      }
    }
  }

 private:
  // The fetching thread is in the last warp, which has the fewest units.
  __device__ bool fetches() const { return thread_ == static_cast<int>(blockDim.x) - kWarpLanes; }
  __device__ void fetch(int slot, std::int64_t row) const {
    if (row < p_.rows) Row::fetch(p_, row, staged(slot), offsets(slot), mbar(slot));
  }
  __device__ void compute(typename U::Values (&y)[kUnits], const Row& row, int slot,
                          A row_scale) const {
    const int apart = static_cast<int>(blockDim.x);
    uint4 gates[kUnits] = {}, ups[kUnits] = {};
    row.load(staged(slot), thread_, apart, gates, ups);
    dispatch_activation(p_.numbers.kind, [&]<Activation kKind>() {
      const auto function = [&](auto& out, const auto& gate, const auto& up) {
        activate<kKind, A>(out, gate, up, p_.numbers.alpha);
      };
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        y[i] = {};
        if (!row.has(thread_ + i * apart)) continue;
        y[i] = activated<U>(p_, gates[i], ups[i], row_scale, function);
        row.clear_padding(thread_ + i * apart, y[i]);
      }
    });
  }
  // Its barrier also means that all threads have read the row, so that its slot may be refilled.
  __device__ A largest_of_block(const typename U::Values (&y)[kUnits], int round) const {
    A largest = 0;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) largest = larger_or_nan(largest, U::largest(y[i]));
    largest = reduce_warp(largest, LargestOrNan());
    A* const slots = of_warps(round % 2);
    if (thread_ % kWarpLanes == 0) slots[thread_ / kWarpLanes] = largest;
    __syncthreads();
    return reduce_warp(slots[thread_ % kMaxWarps], LargestOrNan());
  }
  __device__ void store(const typename U::Values (&y)[kUnits], const Row& row, A inverse) const {
    const std::uint64_t out = row.out();
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const int unit = thread_ + i * static_cast<int>(blockDim.x);
      if (row.has(unit)) row.store(out, unit, codes_of(p_.out_dtype, y[i].at, inverse));
    }
  }

  __device__ uint4* staged(int slot) const {
    extern __shared__ __align__(128) uint4 rows[];
    return rows + slot * Row::shared_vectors(p_);
  }
  static __device__ typename Row::RowOffsets& offsets(int slot) {
    __shared__ typename Row::RowOffsets all[tuning::kQuantRowSlots];
    return all[slot];
  }
  static __device__ std::uint64_t* mbar(int slot) {
    __shared__ std::uint64_t all[tuning::kQuantRowSlots];
    return &all[slot];
  }
  static __device__ A* of_warps(int parity) {
    __shared__ A all[2][kMaxWarps];
    return all[parity];
  }

  const Params& p_;
  const int thread_;
};
#endif

// A persistent block has every gridDim.x-th row, one at a time, while bulk copies prefetch gate and
// up of the next ones. Shared memory: `slots` rows of gate and up; results stay in registers until
// the scale is known. Memory-bound, nearly compute-bound for 16-bit storage.
template <class T, Access kAccess, int kUnits>
__global__ void __launch_bounds__(tuning::quant_row_threads(kUnits), 1)
    gated_activation_quant_rows_kernel(
        const __grid_constant__ GatedActivationQuantParams<accumulate_t<T>> p) {
#if MEMBOUND_HAS_CLUSTERS
  QuantRows<T, kAccess, kUnits>(p).run();
#endif
}

}  // namespace membound::cuda
