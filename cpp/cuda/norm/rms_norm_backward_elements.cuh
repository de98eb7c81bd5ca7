// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// dweight and dbias of few unaligned rows, element by element: the counterpart of ColumnVectors
// (rms_norm_backward_affine_sums.cuh), in the same tree.
#include "cuda/norm/rms_norm_backward_affine_sums.cuh"

namespace membound::cuda {

// Dynamic shared memory of these blocks: offsets and statistics of one row per thread.
template <class Accumulate>
constexpr std::size_t column_elements_bytes(int threads) {
  return threads * (kVectorBytes + sizeof(RowStatistics<Accumulate>));
}
// Blocks that share a segment: a warp has less to do for each row, and short rows have few segments
// (bfloat16 128 x 1001, one block and four: 5.7 -> 3.6 us).
template <class T>
__host__ __device__ constexpr int blocks_of_segment(int threads) {
  return threads <= 128 ? kPack<T> / 2 : threads <= 256 ? 2 : 1;
}

// A part of a segment. Of a warp's slots x columns a thread has kItems elements, kWarpLanes apart,
// and loads them one by one: vectors of unaligned rows took two 16-byte loads each and 1,300
// instructions for four rows, a latency that few rows do not hide (128 x 1000 off by one element:
// 8.2 -> 3.8 us).
template <class T, Centring kCentring, bool kSplit, int kSegment, int kParts>
class ColumnElements : ColumnBlock<T, kSegment, kSplit> {
  using Block = ColumnBlock<T, kSegment, kSplit>;
  using Block::p_, Block::rows_, Block::step, Block::first_column;
  using typename Block::Accumulate, typename Block::Params;
  using Statistics = RowStatistics<Accumulate>;
  static constexpr int kWidth = kSegment * kPack<T> / kParts;
  static constexpr int kSlots = kWarpLanes / kSegment;
  static constexpr int kItems = kPack<T> / kParts;
  static constexpr int kColumns = kWidth < kWarpLanes ? 1 : kWidth / kWarpLanes;  // of a thread
  static constexpr int kBatches = kParts > 1 ? kSegment : 2;  // rows of a slot in flight
  struct Sums {
    Accumulate weight[kItems] = {}, bias[kItems] = {};
  };

 public:
  __device__ explicit ColumnElements(const Params& p)
      : Block(p, kSegment, kParts), lane_(static_cast<int>(threadIdx.x) % kWarpLanes) {
    const std::int64_t last = p.cols - 1;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      // Columns past the row read its last one; their sums are dropped.
      const std::int64_t column = first_column() + (i * kWarpLanes + lane_) % kWidth;
      dy_[i] = static_cast<const T*>(p.dy) + (column < last ? column : last);
      x_[i] = static_cast<const T*>(p.x) + (column < last ? column : last);
    }
  }

  __device__ void run() const {
    if (!this->has_rows()) return;
    Sums sums;
    add_rows(sums);
    this->template store<kCentring>(sums.weight, sums.bias, [this](auto& of, Accumulate* to) {
#pragma unroll
      for (int apart = kSlots / 2 * kWidth; apart >= kWidth; apart /= 2) {
        if (apart < kWarpLanes) {
          of[0] += shuffle_xor(of[0], apart);
        } else {
#pragma unroll
          for (int i = 0; i < apart / kWarpLanes; ++i) of[i] += of[i + apart / kWarpLanes];
        }
      }
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        if (i * kWarpLanes + lane_ < kWidth) to[i * kWarpLanes + lane_] = of[i];
      }
    });
  }

 private:
  // Where a row starts, in elements from the start of the arrays.
  struct alignas(kVectorBytes) Place {
    std::int64_t dy = 0;
    std::int64_t x = 0;
  };

  // Row offsets that the lanes of a warp look up for each other: of its next kWarpLanes rows, by
  // slot.
  __device__ static Place& place(int thread) {
    extern __shared__ uint4 columns[];
    return reinterpret_cast<Place*>(columns)[thread];
  }
  __device__ static Statistics& statistics(int thread) {
    return reinterpret_cast<Statistics*>(&place(static_cast<int>(blockDim.x)))[thread];
  }
  __device__ void find(Place& place, Statistics& statistics, std::int64_t first) const {
    const std::int64_t row = first + lane_ / kSlots * step() + lane_ % kSlots;
    statistics = {};  // zeros past the last row, which change no sum
    if (row >= p_.rows) return;
    const IndexedRowPointers<T, Access::kUnaligned, kSplit> of(p_, rows_.at(row));
    place = {of.dy() - static_cast<const T*>(p_.dy), of.x() - static_cast<const T*>(p_.x)};
    statistics.rstd = *of.rstd();
    if (is_centred<kCentring>(p_)) statistics.mean = *of.mean();
  }
  __device__ void add_rows(Sums& sums) const {
    const int thread = static_cast<int>(threadIdx.x);
    const int first = thread / kWarpLanes * kSlots, together = kSegment * step();
    Place next_place;
    Statistics next_statistics;
    find(next_place, next_statistics, first);
#pragma unroll 1
    for (std::int64_t at = first; at < p_.rows; at += together) {
      __syncwarp();
      place(thread) = next_place;
      statistics(thread) = next_statistics;
      __syncwarp();
      find(next_place, next_statistics, at + together);
      const std::int64_t left = p_.rows - at;
#pragma unroll 1
      for (int batch = 0; batch < kSegment; batch += kBatches) {
        add(sums, thread - lane_ + batch * kSlots,
            static_cast<int>(left < together ? left : together) - batch * step());
      }
    }
  }
  // Adds the rows of kBatches batches from `first` on; left: rows from there to the last.
  __device__ void add(Sums& sums, int first, int left) const {
    T dy[kBatches][kItems], x[kBatches][kItems];
#pragma unroll
    for (int batch = 0; batch < kBatches; ++batch) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        dy[batch][i] = x[batch][i] = from_number<T>(Accumulate(0));  // which changes no sum
        if (batch * step() + slot(i) >= left) continue;
        const Place of = place(first + batch * kSlots + slot(i));
        dy[batch][i] = dy_[i % kColumns][of.dy];
        x[batch][i] = x_[i % kColumns][of.x];
      }
    }
#pragma unroll
    for (int batch = 0; batch < kBatches; ++batch) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const Statistics of = statistics(first + batch * kSlots + slot(i));
        const Accumulate number = to_number(dy[batch][i]);
        Accumulate h = to_number(x[batch][i]);
        if constexpr (kCentring != Centring::kNever) h -= of.mean;
        h *= of.rstd;
        if (kCentring != Centring::kAlways && p_.round_before_weight)
          h = to_number(from_number<T>(h));
        sums.weight[i] = fma(number, h, sums.weight[i]);
        if constexpr (kCentring != Centring::kNever) sums.bias[i] += number;
      }
    }
  }
  // Slot of element i.
  __device__ int slot(int i) const { return (i * kWarpLanes + lane_) / kWidth; }

  int lane_;
  const T* dy_[kColumns];
  const T* x_[kColumns];
};

}  // namespace membound::cuda
