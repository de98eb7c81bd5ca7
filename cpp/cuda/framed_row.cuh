// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Rows that start anywhere and are evenly spaced, worked on by persistent blocks, so that all rows
// of a team are as far behind a 16-byte boundary. What is summed over a row goes by the chunks of
// the row, whose bits do not depend on where it is. The rest goes by its frame, the 16-byte blocks
// of memory that the result touches: it leaves whole without passing shared memory, and what a
// thread keeps of columns stays where it is.
#include <cstdint>

#include "cuda/bulk_copy.cuh"
#include "cuda/tuning/framed_row.hpp"
#include "cuda/vec.cuh"

namespace membound::cuda {

// Where the elements of a frame's units are in the row. A row may touch one block more than it has
// chunks. Where the threads have no room for it, unit 0 has the end of the row, too: there is place
// for it before the start.
struct Frame {
  int shift;   // elements of the row's start behind a boundary
  int chunks;  // of the row
  int cols;
  bool wraps;

  template <class T>
  __device__ static Frame of(const T* row, int chunks, int cols, int units) {
    const int shift = shift_of(row) / static_cast<int>(sizeof(T));
    return {shift, chunks, cols, units == chunks && shift + cols > chunks * kPack<T>};
  }
  // Of a unit's first element; negative in unit 0.
  template <class T>
  __device__ int first(int unit) const {
    return unit * kPack<T> - shift;
  }
  // `cols` and more: there is none.
  template <class T>
  __device__ int column(int unit, int i) const {
    const int at = first<T>(unit) + i;
    if (at >= 0) return at;
    return wraps ? at + chunks * kPack<T> : cols;
  }
  template <class T>
  __device__ uint4 load(const T* row, int unit) const {
    ChunkOf<T> loaded;
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      if (column<T>(unit, i) < cols) loaded.elements[i] = row[column<T>(unit, i)];
    }
    return loaded.chunk;
  }
};

// The first `bytes` bytes of one chunk, the rest of another.
__device__ inline uint4 merged(const uint4& first, const uint4& rest, int bytes) {
  const uint4 mask = first_bytes({~0u, ~0u, ~0u, ~0u}, bytes);
  return {(first.x & mask.x) | (rest.x & ~mask.x), (first.y & mask.y) | (rest.y & ~mask.y),
          (first.z & mask.z) | (rest.z & ~mask.z), (first.w & mask.w) | (rest.w & ~mask.w)};
}

// The units of one thread, `lanes` apart, of a result whose rows it writes one after the other.
template <class T, int kVecs>
class FramedResult {
  static constexpr unsigned kWhole = (1u << kPack<T>)-1;

 public:
  __device__ FramedResult(const Frame& frame, T* row, std::int64_t step, int lane, int lanes)
      : frame_(frame), apart_(lanes * kPack<T>), step_(step) {
    at_ = row + frame.first<T>(lane);
#pragma unroll
    for (int v = 0; v < kVecs; ++v) {
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        const int column = frame.first<T>(lane + v * lanes) + i;
        valid_ |= unsigned{column >= 0 && column < frame.cols} << (v * kPack<T> + i);
      }
    }
    has_end_ = frame.wraps && lane == 0;
    asm volatile("" : "+r"(valid_));  // else found anew for each use
  }
  __device__ void next() { at_ += step_; }
  __device__ void store(int v, const uint4& chunk) const {
    const unsigned valid = valid_ >> v * kPack<T> & kWhole;
    if (valid == kWhole) {
      *reinterpret_cast<uint4*>(at_ + v * apart_) = chunk;
    } else if (valid != 0) {
      ChunkOf<T> stored;
      stored.chunk = chunk;
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        if (valid >> i & 1) at_[v * apart_ + i] = stored.elements[i];
      }
      if (v == 0 && has_end_) store_end(stored);
    }
  }

 private:
  __device__ void store_end(const ChunkOf<T>& stored) const {
    T* const end = at_ + frame_.chunks * kPack<T>;
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      if (frame_.shift - i > frame_.chunks * kPack<T> - frame_.cols) end[i] = stored.elements[i];
    }
  }

  Frame frame_;
  bool has_end_;
  unsigned valid_ = 0;  // a bit for each element of each unit
  int apart_;           // elements between units
  std::int64_t step_;   // and rows
  T* at_;               // of unit 0 of this thread
};

// One array of such rows.
struct FramedSource {
  const void* data;
  std::int64_t stride;  // between rows, in elements
};

// The rows of kArrays arrays on their way to shared memory, as the blocks that they touch, by one
// thread of the team. A part is a row of one array: a place that is never read for what it holds, a
// block for each chunk that the team has room for, and two behind them. source(i) is array i.
// kColumns: chunks of columns that each thread keeps there for itself.
template <class T, class Team, int kArrays, int kColumns>
class FramedRing {
  static constexpr int kVecs = Team::kVecs;
  static constexpr int kSlots = tuning::framed_ring(kVecs);
  static constexpr int kSize = static_cast<int>(sizeof(T));

 public:
  template <class Source>
  __device__ FramedRing(const Team& team, std::int64_t rows, std::int64_t row, std::int64_t step,
                        int chunks, int cols, Source source)
      : team_(team), rows_(rows), row_(row), step_(step), chunks_(chunks), cols_(cols) {
    mine_ = parts() + team.lane;
#pragma unroll
    for (int array = 0; array < kArrays; ++array) {
      shifts_[array] =
          shift_of(static_cast<const T*>(source(array).data) + row * source(array).stride);
      asm volatile("" : "+r"(shifts_[array]));  // else found anew for each use
      clear(array);
    }
#if MEMBOUND_HAS_CLUSTERS
    if (team.lane == 0) {
      for (int slot = 0; slot < kSlots; ++slot) {
        start_arrivals(arrived(slot));
        settle_arrivals();
      }
    }
#endif
    __syncthreads();
  }

  // The first rows; the next is fetched once all threads are done with the one before the last.
  template <class Source>
  __device__ void start(Source source) {
    if (team_.lane != 0) return;
    for (int round = 0; round < kSlots - 1; ++round) fetch(round, round, source);
  }
  __device__ void receive() {
#if MEMBOUND_HAS_CLUSTERS
    wait_for_arrivals(arrived(slot_), phase_);
#endif
  }
  // After a barrier of the team behind receive(): fetches what comes in kSlots - 1 rounds.
  template <class Source>
  __device__ void refill(int round, Source source) {
    if (team_.lane == 0) fetch(round + kSlots - 1, slot_ == 0 ? kSlots - 1 : slot_ - 1, source);
  }
  __device__ void release() {
    if (++slot_ == kSlots) {
      slot_ = 0;
      phase_ ^= 1;
      mine_ -= (kSlots - 1) * slot_places();
    } else {
      mine_ += slot_places();
    }
  }

  static __device__ uint4& column(int i) {
    return end_masks()[2 + i * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)];
  }
  // Chunks `first` to first + kCount - 1 of the thread, with zeros behind the row: its last chunk
  // is in the last place of a thread.
  template <int kCount>
  __device__ void chunks(int array, int first, uint4 (&chunks)[kCount]) const {
    read(mine_ + array * places() + first * team_.size, shifts_[array], chunks);
    if (first + kCount < kVecs) return;
    uint4& last = chunks[kCount - 1];
    const int index = (kVecs - 1) * team_.size + team_.lane;
    if (index >= chunks_ - 1) {
      const uint4 mask = end_masks()[index >= chunks_];
      last = {last.x & mask.x, last.y & mask.y, last.z & mask.z, last.w & mask.w};
    }
  }
  // One that every thread reads, element by element: fewer registers and instructions.
  __device__ uint4 chunk_alike(int array, int index) const {
    const auto* row =
        reinterpret_cast<const char*>(mine_ + array * places() - team_.lane) + shifts_[array];
    const T* from = reinterpret_cast<const T*>(row) + index * kPack<T>;
    ChunkOf<T> loaded;
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) loaded.elements[i] = from[i];
    return loaded.chunk;
  }
  // Unit v of the frame.
  __device__ uint4 unit(int array, const Frame& frame, int v) const {
    const int offset = shifts_[array] - frame.shift * kSize, shift = offset & (kChunkBytes - 1);
    const uint4* from = mine_ + array * places() - (offset < 0);
    uint4 unit[1];
    if (offset == 0) {
      unit[0] = from[v * team_.size];
    } else {
      read(from + v * team_.size, shift, unit);
    }
    if (v == 0 && frame.wraps && team_.lane == 0) {
      const uint4 end = bytes_from(from[frame.chunks], from[frame.chunks + 1], shift);
      unit[0] = merged(end, unit[0], frame.shift * kSize);
    }
    return unit[0];
  }

 private:
  __device__ int places() const { return kVecs * team_.size + 3; }
  __device__ int groups() const { return static_cast<int>(blockDim.x) / team_.size; }
  __device__ int group() const { return team_.first_thread() / team_.size; }
  __device__ int slot_places() const { return groups() * kArrays * places(); }
  // Dynamic shared memory: the masks of the row's last chunk and of those behind it, columns, slots
  // of a part for each array of each group, and their barriers.
  static __device__ uint4* end_masks() {
    extern __shared__ uint4 ring[];
    return ring;
  }
  static __device__ uint4* slots() {
    return end_masks() + 2 + kColumns * static_cast<int>(blockDim.x);
  }
  __device__ uint4* parts() const { return slots() + group() * kArrays * places(); }
  __device__ std::uint64_t* arrived(int slot) const {
    auto* first = reinterpret_cast<std::uint64_t*>(slots() + kSlots * slot_places());
    return first + slot * groups() + group();
  }

  __device__ int blocks(int array) const {
    return (shifts_[array] + cols_ * kSize + kChunkBytes - 1) / kChunkBytes;
  }
  // Places behind the row hold zeros from here on.
  __device__ void clear(int array) const {
    const uint4 zeros{0u, 0u, 0u, 0u};
    if (threadIdx.x == 0) {
      const int left = (cols_ - (chunks_ - 1) * kPack<T>)*kSize;
      end_masks()[0] = first_bytes({~0u, ~0u, ~0u, ~0u}, left);
      end_masks()[1] = zeros;
    }
#pragma unroll
    for (int v = 0; v <= kVecs; ++v) {
      const int place = v * team_.size + team_.lane;
      if (place < blocks(array) || place > kVecs * team_.size) continue;
      for (int slot = 0; slot < kSlots; ++slot) {
        mine_[slot * slot_places() + array * places() + v * team_.size] = zeros;
      }
    }
  }

  template <int kCount>
  __device__ void read(const uint4* from, int shift, uint4 (&chunks)[kCount]) const {
    uint4 low[kCount], high[kCount];
#pragma unroll
    for (int v = 0; v < kCount; ++v) {
      low[v] = from[v * team_.size];
      high[v] = from[v * team_.size + 1];
    }
    with_shift<Team::kUniformShift>(shift, [&](auto shifted) {
#pragma unroll
      for (int v = 0; v < kCount; ++v) chunks[v] = shifted(low[v], high[v]);
    });
  }

  template <class Source>
  __device__ void fetch(int round, int slot, Source source) const {
    const std::int64_t row = row_ + round * step_;
    if (row >= rows_) return;
#if MEMBOUND_HAS_CLUSTERS
    // Only within the row where beside it the array may end.
    const bool outermost = row == 0 || row == rows_ - 1;
    uint4* const to = parts() + slot * slot_places();
    int bytes = 0;
#pragma unroll
    for (int array = 0; array < kArrays; ++array) {
      if (outermost) copy_ends(array, to + array * places(), source(array), row);
      bytes += span(array, outermost).bytes;
    }
    if (outermost) wrote_before_copies();
    expect_bytes(arrived(slot), bytes);
#pragma unroll
    for (int array = 0; array < kArrays; ++array) {
      const Span of = span(array, outermost);
      if (of.bytes == 0) continue;
      const auto* at = static_cast<const T*>(source(array).data) + row * source(array).stride;
      const char* blocks = reinterpret_cast<const char*>(at) - shifts_[array];
      copy_bulk(to + array * places() + of.first, blocks + of.first * kChunkBytes, of.bytes,
                arrived(slot));
    }
#endif
  }
  // Blocks of a row that are copied at once: all, or those that are only its own.
  struct Span {
    int first, bytes;
  };
  __device__ Span span(int array, bool own) const {
    if (!own) return {0, blocks(array) * kChunkBytes};
    const int first = shifts_[array] != 0, end = (shifts_[array] + cols_ * kSize) / kChunkBytes;
    return {first, end > first ? (end - first) * kChunkBytes : 0};
  }
  __device__ void copy_ends(int array, uint4* to, const FramedSource& source,
                            std::int64_t row) const {
    const Span own = span(array, true);
    const auto* from = static_cast<const T*>(source.data) + row * source.stride;
    T* const elements = reinterpret_cast<T*>(to) + shifts_[array] / kSize;
    const int head = own.first * kPack<T> - (own.first ? shifts_[array] / kSize : 0);
    const int tail = head + own.bytes / kSize;
#pragma unroll 1
    for (int i = 0; i < cols_; ++i) {
      if (i == head) i = tail;
      if (i < cols_) elements[i] = from[i];
    }
  }

  const Team& team_;
  std::int64_t rows_;
  std::int64_t row_;   // the first
  std::int64_t step_;  // between rows
  int chunks_;
  int cols_;
  int slot_ = 0;
  int phase_ = 0;
  uint4* mine_;  // this thread's first place in the slot of the row
  int shifts_[kArrays];
};

}  // namespace membound::cuda
