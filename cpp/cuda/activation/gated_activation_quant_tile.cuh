// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tiles of aligned rows of gated_activation_quant, whose results stay in registers until the scale
// is known.
#include "cuda/activation/gated_activation_quant_kernel.cuh"
#include "cuda/row/cluster.cuh"

namespace membound::cuda {

// The units of one thread, `lanes` apart: loads all, computes them, then finds their scale and
// stores.
template <class T>
class QuantTile {
  using A = accumulate_t<T>;
  using U = QuantUnit<T, Access::kAligned>;
  using Params = GatedActivationQuantParams<A>;
  using Exchange = ClusterExchange<A, 1>;
  static constexpr int kUnits = tuning::kQuantTileUnits;

 public:
  __device__ explicit QuantTile(const Params& p)
      : p_(p), position_(p), first_(position_.first + position_.lane) {
    if (has_cluster()) exchange().cluster_arrive();
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const int unit = first_ + i * position_.lanes;
      has_[i] = i < p.config.per_thread && unit < position_.end;
    }
  }

  __device__ void run() {
    const typename U::Row gate_row(p_.gate, p_.gate.offset(p_.gate_rows, position_.row), first_, 0);
    const auto& up = p_.up.data != nullptr ? p_.up : p_.gate;
    const typename U::Row up_row(
        up, p_.up.data != nullptr ? up.offset(p_.up_rows, position_.row) : 0, first_, 0);
    pdl_wait_then_launch();
    uint4 gates[kUnits] = {}, ups[kUnits] = {};
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (!has_[i]) continue;
      gates[i] = gate_row.load(i * position_.lanes, p_.dtype, 0);
      if (p_.up.data != nullptr) ups[i] = up_row.load(i * position_.lanes, p_.dtype, 0);
    }
    const A row_scale = scale_of_row<A>(p_.row_scale, p_.row_scale_rows, position_.row);
    dispatch_activation(p_.numbers.kind, [&]<Activation kKind>() {
      const auto function = [&](auto& out, const auto& gate, const auto& with) {
        activate<kKind, A>(out, gate, with, p_.numbers.alpha);
      };
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        y_[i] = {};
        if (has_[i]) y_[i] = activated<U>(p_, gates[i], ups[i], row_scale, function);
      }
    });
    store();
  }

 private:
  __device__ void store() {
    A inverse = 1;
    if (p_.static_scale != nullptr) {
      inverse = A(1) / static_cast<A>(*p_.static_scale);
    } else if (p_.group_lanes == 0) {
      inverse = inverse_of_row();
    }
    const std::uint64_t out = reinterpret_cast<std::uint64_t>(p_.out.data) +
                              static_cast<std::uint64_t>(p_.out.offset(p_.out_rows, position_.row));
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (i > 0 && i >= p_.config.per_thread) break;
      const int unit = first_ + i * position_.lanes;
      const bool stores = has_[i] && position_.in_range;
      if (p_.group_lanes != 0) {
        inverse = inverse_of_group(p_, U::largest(y_[i]), position_.row, unit, stores);
      }
      if (stores) {
        store_aligned_codes<U::kWidth>(out + static_cast<std::uint64_t>(unit) * U::kWidth,
                                       codes_of(p_.out_dtype, y_[i].at, inverse));
      }
    }
  }
  __device__ A inverse_of_row() const {
    A largest = U::largest(y_[0]);
#pragma unroll
    for (int i = 1; i < kUnits; ++i) largest = larger_or_nan(largest, U::largest(y_[i]));
    largest = position_.largest_of_row(largest);
    if (has_cluster()) {
      const Exchange parts = exchange();
      if (threadIdx.x < kWarpLanes) {
        parts.cluster_wait();
        parts.send(0, cluster_rank(), largest);
      }
      largest = reduce_warp(parts.collect(0)[threadIdx.x % kMaxGroups], LargestOrNan());
    }
    const float scale = dynamic_scale(largest, p_.out_dtype, p_.scale_upper_bound);
    if (first_ == 0 && position_.in_range) *p_.scale_at(position_.row, 0) = scale;
    return A(1) / static_cast<A>(scale);
  }

  // True if a row that shares one scale is split over several blocks.
  __device__ bool has_cluster() const { return p_.cluster > 1; }
  __device__ Exchange exchange() const {
    __shared__ typename Exchange::Shared shared;
    return {shared, p_.cluster, p_.cluster};
  }

  const Params& p_;
  const QuantPosition<int> position_;
  const int first_;
  bool has_[kUnits];
  typename U::Values y_[kUnits];
};

// One block has a tile of a row, whole rows if each has one dynamic scale, or a part of such a row
// in a cluster. A thread loads all of its units before it computes one. Shared memory: the largest
// magnitudes of warps and blocks. Memory-bound, nearly compute-bound for 16-bit storage, as
// arithmetic is in float32.
template <class T>
__global__ void __launch_bounds__(tuning::kQuantTileThreads, 1) gated_activation_quant_tile_kernel(
    const __grid_constant__ GatedActivationQuantParams<accumulate_t<T>> p) {
  pdl_launch_unless_few();
  QuantTile<T>(p).run();
}

}  // namespace membound::cuda
