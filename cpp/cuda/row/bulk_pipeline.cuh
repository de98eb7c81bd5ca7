// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Bulk pipeline for unaligned, evenly spaced rows. Blocks are persistent and step over rows that
// have the same offset from a 16-byte boundary; one thread per thread group prefetches them with
// bulk copies. Sums over a row use the vectors of the row, so their bits do not depend on
// alignment. Forward norms compute results per block of the aligned span, which is stored whole.
// Gradients, whose arithmetic costs more than moving the result, realign it at the end
// (realigned_store.cuh).
#include <cstdint>

#include "cuda/launch/async_copy.cuh"
#include "cuda/launch/bulk_copy.cuh"
#include "cuda/row/aligned_span.cuh"
#include "cuda/row/bulk_config.hpp"
#include "cuda/row/reader.cuh"
#include "cuda/row/realign.cuh"
#include "cuda/row/reduce.cuh"

namespace membound::cuda {

// Evenly spaced rows or numbers, `stride` elements apart.
template <class U>
struct BulkSource {
  const U* data;
  std::int64_t stride;
};

// Prefetches rows of kArrays arrays, and kNumbers float32 numbers per row, to shared memory; one
// thread of the thread group issues the copies, and an mbarrier per stage tracks them. kColumns:
// vectors of affine parameters that each thread keeps in shared memory. kSlots: stages, each for
// one row.
template <class T, class ThreadGroup, int kArrays, int kNumbers, int kColumns, int kSlots>
class BulkPipeline {
  static constexpr int kVectorsPerItem = ThreadGroup::kVectorsPerItem;
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr int kMaxGroups = 8;  // per block: each is larger than a warp
  // Whether fetch_ends() fetches the first rows: only in gradients, which may have few. Forward
  // norms would lose registers (H200, 17480 x 1001 with a residual: 40.8 -> 45.1 us).
  static constexpr bool kEndsFirst = kNumbers > 0;

 public:
  struct Sources {
    BulkSource<T> arrays[kArrays];
    BulkSource<float> numbers[kNumbers > 0 ? kNumbers : 1];
  };

  // Processes `rounds` of the `rows` rows: `row` and those that follow it, `step` apart.
  __device__ BulkPipeline(const ThreadGroup& thread_group, const Sources& sources,
                          std::int64_t rows, std::int64_t row, std::int64_t step, int rounds,
                          int vectors, int cols)
      : thread_group_(thread_group), vectors_(vectors), cols_(cols) {
#pragma unroll
    for (int array = 0; array < kArrays; ++array) {
      const BulkSource<T>& source = sources.arrays[array];
      shifts_[array] = kept(shift_of(source.data + row * source.stride));
      clear(array);
    }
    if (fetches()) prepare(sources, rows, row, step, rounds);
    __syncthreads();
  }

  // Fetches the first rows. Later ones follow as all threads finish the row before (refill()).
  __device__ void start() const {
    if (kEndsFirst ? thread_group_.lane >= thread_group_.size - kWarpLanes : fetches()) {
#pragma unroll 1
      for (int round = 0; round < kSlots - 1; ++round) {
        if constexpr (kEndsFirst) fetch_ends(round);
        if (fetches()) fetch<!kEndsFirst>(round, round);
      }
    }
    // For racecheck, which does not know that one lane's arrival covers the writes of its warp.
    if constexpr (kEndsFirst) __syncthreads();
  }
  __device__ void receive() {
#if MEMBOUND_HAS_CLUSTERS
    wait_mbarrier(mbar(slot()), turn_ >= kSlots);
#endif
  }
  // Called after receive() and a thread group barrier: fetches the row of kSlots - 1 rounds later.
  __device__ void refill(int round) const {
    if (fetches()) fetch(round + kSlots - 1, slot() == 0 ? kSlots - 1 : slot() - 1);
  }
  __device__ void release() {
    if (++turn_ == 2 * kSlots) turn_ = 0;
  }

  static __device__ uint4& column(int i) {
    return end_masks()[2 + i * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)];
  }
  __device__ float number(int i) const { return slot_at(slot())->numbers[i]; }
  // Vectors `first` to first + kCount - 1 of the thread. kZeros: zeros past the end of the row,
  // whose last vector is in the last vector slot of a thread.
  template <bool kZeros = true, int kCount>
  __device__ void vectors(int array, int first, uint4 (&vectors)[kCount]) const {
    read(part(slot(), array) + first * thread_group_.size + thread_group_.lane, shifts_[array],
         vectors);
    if (!kZeros || first + kCount < kVectorsPerItem) return;
    uint4& last = vectors[kCount - 1];
    const int index = (kVectorsPerItem - 1) * thread_group_.size + thread_group_.lane;
    if (index >= vectors_ - 1) {
      const uint4 mask = end_masks()[index >= vectors_];
      last = {last.x & mask.x, last.y & mask.y, last.z & mask.z, last.w & mask.w};
    }
  }
  __device__ T element(int array, int i) const { return elements(slot(), array)[i]; }

  // Units `first` to first + kCount - 1 of the aligned span.
  template <int kCount>
  __device__ void units(int array, const AlignedSpan& span, int first,
                        uint4 (&units)[kCount]) const {
    const int offset = shifts_[array] - span.shift * kSize, shift = offset & (kVectorBytes - 1);
    const uint4* from = part(slot(), array) + thread_group_.lane - (offset < 0);
    if (offset == 0) {
#pragma unroll
      for (int v = 0; v < kCount; ++v) units[v] = from[(first + v) * thread_group_.size];
    } else {
      read(from + first * thread_group_.size, shift, units);
    }
    if (first == 0 && span.wraps && thread_group_.lane == 0) {
      const uint4 end = bytes_from(from[span.vectors], from[span.vectors + 1], shift);
      units[0] = merged(end, units[0], span.shift * kSize);
    }
  }

 private:
  // The head of a stage; a part for each array follows. A part has a vector of padding, which may
  // be read but is not used, one for each vector slot of the thread group, and two past them.
  struct alignas(kVectorBytes) Slot {
    float numbers[2];
  };
  // Fetch state of an array, for the thread that fetches: the address of the next row, and the
  // bytes to the row after it.
  struct alignas(kVectorBytes) FetchCursor {
    const char* at;
    std::int64_t step;
  };
  // The number of rounds, and those of the first and the last row of all, or -1. The array may end
  // next to these two rows.
  struct alignas(kVectorBytes) Rounds {
    int count, first, last;
  };
  static_assert(sizeof(Slot) == kVectorBytes && sizeof(FetchCursor) == kVectorBytes &&
                sizeof(Rounds) == kVectorBytes);

  __device__ int slot() const { return turn_ < kSlots ? turn_ : turn_ - kSlots; }
  // The first lane of the last warp, which has the fewest vectors.
  __device__ bool fetches() const { return thread_group_.lane == thread_group_.size - kWarpLanes; }
  __device__ int places() const { return kVectorsPerItem * thread_group_.size + 3; }
  __device__ int stage_vectors() const { return 1 + kArrays * places(); }
  // Dynamic shared memory: masks for the row's last vector and for those past it, affine
  // parameters, and for each group its stages, cursors and rounds.
  static __device__ uint4* end_masks() {
    extern __shared__ uint4 stages[];
    return stages;
  }
  __device__ uint4* of_group() const {
    const int group = thread_group_.first_thread() / thread_group_.size;
    return end_masks() + 2 + kColumns * static_cast<int>(blockDim.x) +
           group * (kSlots * stage_vectors() + kArrays + kNumbers + 1);
  }
  __device__ Slot* slot_at(int slot) const {
    return reinterpret_cast<Slot*>(of_group() + slot * stage_vectors());
  }
  __device__ uint4* part(int slot, int array) const {
    return of_group() + slot * stage_vectors() + 2 + array * places();
  }
  // Static, because sums reuse the ring at the end, and memory of an mbarrier must not be
  // overwritten by plain stores.
  __device__ std::uint64_t* mbar(int slot) const {
    __shared__ std::uint64_t all[kMaxGroups][kSlots];
    return &all[thread_group_.first_thread() / thread_group_.size][slot];
  }
  // Address of the row's first element in its part.
  __device__ T* elements(int slot, int array) const {
    return reinterpret_cast<T*>(part(slot, array)) + shifts_[array] / kSize;
  }
  __device__ FetchCursor& walk(int i) const {
    return reinterpret_cast<FetchCursor*>(of_group() + kSlots * stage_vectors())[i + opaque_zero()];
  }
  __device__ Rounds& rounds() const { return reinterpret_cast<Rounds&>(walk(kArrays + kNumbers)); }

  __device__ int blocks(int array) const {
    return (shifts_[array] + cols_ * kSize + kVectorBytes - 1) / kVectorBytes;
  }
  // Zeroes the vector slots past the row. They stay zero.
  __device__ void clear(int array) const {
    const uint4 zeros{0u, 0u, 0u, 0u};
    if (threadIdx.x == 0) {
      const int left = (cols_ - (vectors_ - 1) * kPack<T>)*kSize;
      end_masks()[0] = first_bytes({~0u, ~0u, ~0u, ~0u}, left);
      end_masks()[1] = zeros;
    }
#pragma unroll
    for (int v = 0; v <= kVectorsPerItem; ++v) {
      const int place = v * thread_group_.size + thread_group_.lane;
      if (place < blocks(array) || place > kVectorsPerItem * thread_group_.size) continue;
      for (int slot = 0; slot < kSlots; ++slot) part(slot, array)[place] = zeros;
    }
  }

  template <int kCount>
  __device__ void read(const uint4* from, int shift, uint4 (&vectors)[kCount]) const {
    uint4 low[kCount], high[kCount];
#pragma unroll
    for (int v = 0; v < kCount; ++v) {
      low[v] = from[v * thread_group_.size];
      high[v] = from[v * thread_group_.size + 1];
    }
    with_shift<true>(shift, [&](auto realign) {
#pragma unroll
      for (int v = 0; v < kCount; ++v) vectors[v] = realign(low[v], high[v]);
    });
  }

  __device__ void prepare(const Sources& sources, std::int64_t rows, std::int64_t row,
                          std::int64_t step, int rounds) const {
#if MEMBOUND_HAS_CLUSTERS
    for (int at = 0; at < kSlots; ++at) init_mbarrier(mbar(at), kNumbers > 0 ? 2 : 1);
    fence_mbarrier_init();
#pragma unroll
    for (int array = 0; array < kArrays; ++array) {
      walk(array) = fetch_cursor(sources.arrays[array], row, step);
    }
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) {
      walk(kArrays + i) = fetch_cursor(sources.numbers[i], row, step);
    }
    this->rounds() = {rounds, row == 0 ? 0 : -1,
                      row + (rounds - 1) * step == rows - 1 ? rounds - 1 : -1};
#endif
  }
  template <class U>
  static __device__ FetchCursor fetch_cursor(const BulkSource<U>& source, std::int64_t row,
                                             std::int64_t step) {
    return {reinterpret_cast<const char*>(source.data + row * source.stride),
            step * source.stride * static_cast<std::int64_t>(sizeof(U))};
  }
  __device__ const char* take(int i) const {
    const char* const at = walk(i).at;
    walk(i).at = at + walk(i).step;
    return at;
  }

  // kEnds: for the first and the last row, also copies the elements outside their whole blocks.
  template <bool kEnds = true>
  __device__ void fetch(int round, int to) const {
    const Rounds rounds = this->rounds();
    if (round >= rounds.count) return;
#if MEMBOUND_HAS_CLUSTERS
    to += opaque_zero();
    if constexpr (kNumbers > 0) {
#pragma unroll
      for (int i = 0; i < kNumbers; ++i) copy_number(&slot_at(to)->numbers[i], take(kArrays + i));
      arrive_after_copies(mbar(to));
    }
    if (round == rounds.first || round == rounds.last) [[unlikely]] {
      return fetch_boundary_row<kEnds>(to);
    }
    int bytes = 0;
#pragma unroll
    for (int array = 0; array < kArrays; ++array) bytes += blocks(array) * kVectorBytes;
    expect_bytes(mbar(to), bytes);
#pragma unroll
    for (int array = 0; array < kArrays; ++array) {
      copy_bulk(part(to, array), take(array) - shifts_[array], blocks(array) * kVectorBytes,
                mbar(to));
    }
#endif
  }
#if MEMBOUND_HAS_CLUSTERS
  // The blocks that lie entirely within a row: the elements before them, and their count.
  struct WholeBlocks {
    int head, count;
    __device__ WholeBlocks(int shift, int cols)
        : head(shift != 0 ? kPack<T> - shift / kSize : 0),
          count(max(0, (shift + cols * kSize) / kVectorBytes - (shift != 0))) {}
  };
  // Fetches the first or last row: whole blocks by bulk copy, the ends element by element.
  template <bool kEnds>
  __device__ void fetch_boundary_row(int to) const {
    const int cols = cols_ + opaque_zero();
#pragma unroll
    for (int array = 0; array < kArrays; ++array) {
      const int shift = shifts_[array], first = shift != 0;
      const WholeBlocks whole(shift, cols);
      const char* const row = take(array);
      if constexpr (kEnds) {
        const int tail = whole.head + whole.count * kPack<T>;
#pragma unroll 1
        for (int i = 0; i < cols; ++i) {
          if (i == whole.head) i = tail;
          if (i < cols) elements(to, array)[i] = reinterpret_cast<const T*>(row)[i];
        }
        fence_async_proxy();
      }
      if (whole.count == 0) continue;
      expect_more_bytes(mbar(to), whole.count * kVectorBytes);
      copy_bulk(part(to, array) + first, row - shift + first * kVectorBytes,
                whole.count * kVectorBytes, mbar(to));
    }
    expect_bytes(mbar(to), 0);
  }
#endif
  // Fetches a row's ends, under two blocks per array, with one warp: all loads are in flight at
  // once, which shortens the start of short runs (H100, gradient of 160 x 1001: 7.5 -> 6.3 us).
  __device__ void fetch_ends(int round) const {
#if MEMBOUND_HAS_CLUSTERS
    const Rounds rounds = this->rounds();
    if (round >= rounds.count || (round != rounds.first && round != rounds.last)) return;
    __syncwarp();  // the cursors have moved past the previous rows
    const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
    T ends[kArrays];
    int at[kArrays];
#pragma unroll
    for (int array = 0; array < kArrays; ++array) {
      const WholeBlocks whole(shifts_[array], cols_);
      const int head = min(whole.head, cols_);
      at[array] = lane < head ? lane : whole.head + whole.count * kPack<T> + lane - head;
      if (at[array] < cols_) ends[array] = reinterpret_cast<const T*>(walk(array).at)[at[array]];
    }
#pragma unroll
    for (int array = 0; array < kArrays; ++array) {
      if (at[array] < cols_) elements(round, array)[at[array]] = ends[array];
    }
    fence_async_proxy();
    __syncwarp();
#endif
  }

  const ThreadGroup& thread_group_;
  int vectors_;
  int cols_;
  int turn_ = 0;  // modulo 2 * kSlots: the stage, and the parity of its mbarrier
  int shifts_[kArrays];
};

}  // namespace membound::cuda
