// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Norms of many narrow, unaligned rows without options and without gaps between them, through the
// packed tiles of cuda/row/packed_tile.cuh.
#include "cuda/norm/rms_norm_kernels.cuh"
#include "cuda/row/packed_tile.cuh"
#include "cuda/row/pair.cuh"

namespace membound::cuda {

// The packed tiles of a block of rms_norm_packed.cuh, and the overflow-safe path of its rows.

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

// The rows of a block, two per thread group.
template <class T, FusedInput kFusedInput, Centring kCentring, bool kThreeQuartersFull>
class PackedRows {
  using Accumulate = accumulate_t<T>;
  using Params = RmsNormPackedParams<Accumulate>;
  using RowsOfThreadGroup = RowPair<T, kFusedInput, kCentring, kThreeQuartersFull>;
  using Vectors = typename RowsOfThreadGroup::Vectors;
  using Scale = typename RowsOfThreadGroup::Scale;
  using Tiles = PackedTiles<T, kFusedInput>;
  static constexpr int kRows = RowsOfThreadGroup::kRows;
  static constexpr int kSecond = RowsOfThreadGroup::kSecond;
  static constexpr int kPlaces = RowsOfThreadGroup::kPlaces;
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr bool kCentred = RowsOfThreadGroup::kCentred;

 public:
  __device__ explicit PackedRows(const Params& p) : p_(p), pair_(p) {
    const int second = pair_.second();
    last_ = min(max(cols() - second * kPack<T>, 0), kPack<T>);
    const int row_bytes = (pair_.in_block(1) - pair_.in_block(0)) * cols() * kSize;
    byte_offsets_[0] = 0;
    byte_offsets_[1] = row_bytes;
    // Lanes without a second vector read their first again.
    const int to_second = last_ > 0 ? (second - pair_.lane()) * kVectorBytes : 0;
    byte_offsets_[kRows] =
        to_second + (kThreeQuartersFull && pair_.upper() && last_ > 0 ? row_bytes : 0);
    if constexpr (!kThreeQuartersFull) byte_offsets_[kRows + 1] = to_second + row_bytes;
  }

  __device__ void run() const {
#if MEMBOUND_HAS_CLUSTERS
    __shared__ std::uint64_t mbar;
    const Tiles pieces(p_);
    if (threadIdx.x == 0) fetch(pieces, &mbar);
    if (threadIdx.x < p_.lanes) load_columns();
    fill_masks();
    __syncthreads();
    wait_mbarrier(&mbar, 0);
    both_rows(pieces);
    fence_async_proxy();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < Tiles::kResults; ++i) pieces.result(i).send();
    if (threadIdx.x == 0) wait_bulk_reads();
#endif
  }

 private:
  __device__ int cols() const { return static_cast<int>(p_.cols); }
  __device__ PackedVectors<T> vectors(const PackedTile<T>& piece) const {
    return piece.vectors(cols(), (pair_.in_block(0) * cols() + pair_.lane() * kPack<T>)*kSize);
  }
  // Masks for the elements of a vector that are in the row, indexed by their number. Centred rows
  // mask the numbers, others the stored elements.
  using Mask = std::conditional_t<kCentred, Accumulate, T>;
  struct Masks {
    std::uint32_t words[kPack<T> * sizeof(Mask) / 4];
  };
  static __device__ Masks* masks() {
    __shared__ alignas(kVectorBytes) Masks masks[kPack<T> + 1];
    return masks;
  }
  // How many elements of the second vector are in the row.
  struct Tail {
    int elements;
    __device__ void cut(Numbers<T>& x) const {
      const Masks& mask = masks()[elements];
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        x.at[i] = __uint_as_float(__float_as_uint(x.at[i]) & mask.words[i]);
      }
    }
    __device__ void cut(Accumulate&, Accumulate&) const {}
  };
  static __device__ void fill_masks() {
    const auto count = static_cast<int>(threadIdx.x);
    if (count > kPack<T>) return;
    const int bytes = count * static_cast<int>(sizeof(Mask));
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(Masks)) / kVectorBytes; ++i) {
      reinterpret_cast<uint4*>(&masks()[count])[i] =
          first_bytes({~0u, ~0u, ~0u, ~0u}, bytes - i * kVectorBytes);
    }
  }
  // Vectors of the weight, followed by those of the bias.
  static constexpr int kColumns = WarpThreadGroup::kVectorsPerItem * kWarpLanes;
  static __device__ uint4* columns() {
    __shared__ uint4 columns[(kCentred ? 2 : 1) * kColumns];
    return columns;
  }
  __device__ void load_columns() const {
    const AffineParameters<T, Access::kUnaligned, kCentring> of(p_, 0);
    const auto index = [&](int i) { return i * p_.lanes + pair_.lane(); };
    uint4 weights[WarpThreadGroup::kVectorsPerItem], biases[WarpThreadGroup::kVectorsPerItem];
    of.template load<true>(weights, index);
    of.clear_bias(biases);
    of.template load_bias<true>(biases, index);
#pragma unroll
    for (int i = 0; i < WarpThreadGroup::kVectorsPerItem; ++i) {
      columns()[index(i)] = weights[i];
      if constexpr (kCentred) columns()[kColumns + index(i)] = biases[i];
    }
  }
#if MEMBOUND_HAS_CLUSTERS
  static __device__ void fetch(const Tiles& pieces, std::uint64_t* mbar) {
    init_mbarrier(mbar, Tiles::kSources);
    fence_mbarrier_init();
#pragma unroll
    for (int i = 0; i < Tiles::kSources; ++i) {
      pieces.source(i).fetch(mbar, blockIdx.x == 0, blockIdx.x == gridDim.x - 1);
    }
  }
#endif

  __device__ void both_rows(const Tiles& pieces) const {
    Vectors held;
    load(pieces, held);
    Scale scales[kRows + 1];
    const unsigned again = pair_.compute_scales(held, scales, Tail{last_});
    __syncthreads();  // all sources are read; results overwrite them
    if constexpr (kFusedInput == FusedInput::kResidual) {
      const auto sum = [&](int place) { return pack<T>(held[place].numbers(p_)); };
      const PackedVectors<T> to = vectors(pieces.result(1));
      write_out<0, kRows>(to, kPack<T>, sum);
      write_out<kRows, kSecond>(to, last_, sum);
    }
    if (again != 0) [[unlikely]] {
      return pair_.run_safe_path(again, [&](int i, bool plain) {
        rescale_packed<T, kFusedInput, kCentring>(p_, pair_.row(i), plain);
      });
    }
#pragma unroll
    for (int place = 0; place < kPlaces; ++place) compiler_barrier(held[place].parts);
    const PackedVectors<T> to = vectors(pieces.result(0));
    put_result<0, kRows>(to, pair_.lane(), kPack<T>, held, scales);
    put_result<kRows, kSecond>(to, pair_.second(), last_, held,
                               scales + (kThreeQuartersFull ? kRows : 0));
  }

  // Rows that are not centred are zero-padded here; centred ones are cut as deviations (Tail).
  __device__ void load(const Tiles& pieces, Vectors& held) const {
#pragma unroll
    for (int array = 0; array < Tiles::kSources; ++array) {
      uint4 loaded[kPlaces];
      vectors(pieces.source(array)).load(byte_offsets_, loaded);
#pragma unroll
      for (int place = 0; place < kPlaces; ++place) {
        uint4& vector = loaded[place];
        if (!kCentred && place >= kRows) {
          const uint4 mask = reinterpret_cast<const uint4&>(masks()[last_]);
          vector = {vector.x & mask.x, vector.y & mask.y, vector.z & mask.z, vector.w & mask.w};
        }
        held[place].parts[array] = vector;
      }
    }
  }
  // Stores make(place) for kCount places, `count` elements of each being in the row.
  template <int kFirst, int kCount, class Make>
  __device__ void write_out(const PackedVectors<T>& to, int count, Make make) const {
    int behind[kCount];
    uint4 results[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      behind[i] = byte_offsets_[kFirst + i];
      results[i] = make(kFirst + i);
    }
    to.store(behind, results, count);
  }
  // Stores the results of kCount places, which share a vector index; scales: one per place.
  template <int kFirst, int kCount>
  __device__ void put_result(const PackedVectors<T>& to, int index, int count, const Vectors& held,
                             const Scale* scales) const {
    const AffineParameters<T, Access::kUnaligned, kCentring> of(p_, 0);
    const uint4 weight = columns()[index];
    uint4 bias;
    if constexpr (kCentred) bias = columns()[kColumns + index];
    write_out<kFirst, kCount>(to, count, [&](int place) {
      Numbers<T> y = of.template normalised<true>(held[place].numbers(p_), scales[place - kFirst],
                                                  weight, bias, 0);
      return pack<T>(y);
    });
  }

  const Params& p_;
  const RowsOfThreadGroup pair_;
  int last_;                   // elements of the row in the second vector
  int byte_offsets_[kPlaces];  // byte offsets from the first place
};

// A block works on two rows per thread group. Shared memory holds the packed tiles, which the
// results overwrite, the weight and the bias. Limited by memory bandwidth; LayerNorm by
// instructions. With a fused input the kernel spills at 64 registers, and six blocks per SM are
// faster than eight (396312 x 127 bfloat16 with a residual on H200: 118 -> 98 us).
template <class T, FusedInput kFusedInput, Centring kCentring, bool kThreeQuartersFull>
__global__ void __launch_bounds__(tuning::kWarpFormThreads,
                                  kFusedInput == FusedInput::kNone ? 8 : 6)
    rms_norm_packed_kernel(const __grid_constant__ RmsNormPackedParams<accumulate_t<T>> p) {
  if constexpr (MEMBOUND_HAS_CLUSTERS) {
    const PackedRows<T, kFusedInput, kCentring, kThreeQuartersFull> rows(p);
    if (p.overlap_launch) pdl_wait_and_launch();
    rows.run();
  }
}

}  // namespace membound::cuda
