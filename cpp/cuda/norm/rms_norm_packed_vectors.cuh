// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The packed tiles of a block of rms_norm_packed.cuh, and the overflow-safe path of its rows.
#include "cuda/norm/rms_norm_kernels.cuh"
#include "cuda/row/packed_tile.cuh"

namespace membound::cuda {

template <class Accumulate>
struct RmsNormPackedParams : RmsNormParams<Accumulate> {
  int tile_rows;
  int tile_vectors;  // vectors of shared memory per array
};

// The packed tiles of a block, one per array. Results overwrite x and the residual there.
template <class T, FusedInput kFusedInput>
class PackedTiles {
  using Params = RmsNormPackedParams<accumulate_t<T>>;

 public:
  static constexpr int kSources = kFusedInput == FusedInput::kNone ? 1 : 2;
  static constexpr int kResults = kFusedInput == FusedInput::kResidual ? 2 : 1;

  __device__ explicit PackedTiles(const Params& p)
      : p_(p), first_(static_cast<std::int64_t>(blockIdx.x) * p.tile_rows) {}

  __device__ std::int64_t first_row() const { return first_; }
  __device__ int rows() const {
    const std::int64_t left = p_.rows - first_;
    return left < p_.tile_rows ? static_cast<int>(left) : p_.tile_rows;
  }
  __device__ PackedTile<T> source(int i) const { return piece(i, i == 0 ? p_.x : p_.fused_input); }
  __device__ PackedTile<T> result(int i) const {
    return piece(i, i == 0 ? p_.out : p_.residual_out);
  }

 private:
  __device__ PackedTile<T> piece(int array, const void* data) const {
    return {static_cast<const T*>(data) + first_ * p_.cols, rows() * static_cast<int>(p_.cols),
            array * p_.tile_vectors};
  }

  const Params& p_;
  std::int64_t first_;
};

// The epilogue of the overflow-safe path: stores the result to the tile in shared memory.
template <FusedInput kFusedInput>
struct StoreInTile {
  template <class Accumulate>
  using Params = RmsNormPackedParams<Accumulate>;
  static constexpr int kRounds = 0;
  static constexpr bool kQuantises = false;

  template <int kUnrolled, class T, class Tile, class Row, class Make>
  static __device__ void write_out(const Params<accumulate_t<T>>& p, const Tile& tile, const Row&,
                                   bool, Make make) {
    const PackedTiles<T, kFusedInput> pieces(p);
    const PackedTile<T> out = pieces.result(0);
    const auto row = static_cast<int>(tile.row() - pieces.first_row());
    const auto cols = static_cast<int>(p.cols);
#pragma unroll 1
    for (int i = 0; i < Tile::kVectors; ++i) {
      VectorOf<T> result;
      result.vector = make.template operator()<false>(i);
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) {
        const int column = tile.index(i) * kPack<T> + j;
        if (tile.active() && column < cols) *out.element(row * cols + column) = result.elements[j];
      }
    }
  }
};

// The overflow-safe path of a row. Rows of the same warp that need no redo come along with `plain`.
template <class T, FusedInput kFusedInput, Centring kCentring>
__device__ __noinline__ void rescale_packed(const RmsNormPackedParams<accumulate_t<T>>& p,
                                            std::int64_t row, bool plain) {
  WarpThreadGroup thread_group(p.lanes, 1, 0);
  thread_group.row = row;
  HeldRow<T, WarpThreadGroup, Access::kStrided, kFusedInput, kCentring, StoreInTile<kFusedInput>>(
      p, thread_group)
      .run_scaled(plain);
}

}  // namespace membound::cuda
