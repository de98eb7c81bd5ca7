// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Parts of unaligned rows, staged in shared memory as the aligned 16-byte blocks that they touch,
// so that they take registers only while they are processed. Reductions use the vectors of the row,
// so their bits do not depend on alignment; results are computed per block that they are stored to.
#include "cuda/launch/async_copy.cuh"
#include "cuda/launch/bulk_copy.cuh"
#include "cuda/row/part.cuh"
#include "cuda/row/realign.cuh"

namespace membound::cuda {

// Where a part's result is stored: aligned 16-byte units, and the elements around them.
template <class T>
struct PartUnits {
  T* to;  // start of the part
  int head, count, tail, elements;

  __device__ PartUnits(T* part, int elements) : to(part), elements(elements) {
    const int behind = shift_of(part) & ~(static_cast<int>(sizeof(T)) - 1);
    head = min(elements, (kVectorBytes - behind) % kVectorBytes / static_cast<int>(sizeof(T)));
    count = (elements - head) / kPack<T>;
    tail = head + count * kPack<T>;
  }
  __device__ void store(int unit, const uint4& vector) const {
    if (unit < count) reinterpret_cast<uint4*>(to + head)[unit] = vector;
  }
  // Whether the thread has the unit of element i.
  __device__ bool has(const PartPosition& place, int i) const {
    const int unit = (i - head) / kPack<T>;
    if (i < head || unit >= count) return false;
    return (place.lanes > kWarpLanes ? unit % place.lanes : unit & (place.lanes - 1)) == place.lane;
  }
  // Calls body(i) for each element outside the units, divided among the lanes.
  template <class Body>
  __device__ void each_edge(const PartPosition& place, Body body) const {
#pragma unroll 1
    for (int i = place.lane; i < head + elements - tail; i += place.lanes) {
      body(i < head ? i : tail - head + i);
    }
  }
};

// The threads to give to __launch_bounds__ for two blocks of `registers` registers per thread.
// Blocks are smaller, and as many are resident as registers allow (H200, softmax of float32 4096 x
// 50257: 449 us with 56 registers, 467 with 48).
constexpr int bulk_threads(int registers) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  return tuning::kSoftmaxThreads;  // an SM has no room for more
#else
  return (64 << 10) / 2 / registers / 64 * 64;
#endif
}

// Applies map to each number.
template <class T, class Map>
__device__ inline Numbers<T> mapped(Numbers<T> numbers, Map map) {
#pragma unroll
  for (int j = 0; j < kPack<T>; ++j) numbers.at[j] = map(numbers.at[j]);
  return numbers;
}

// The first `count` elements of a vector, followed by absent_bits() or 0.
template <class T>
__device__ inline uint4 with_absent(const uint4& vector, int count, std::uint32_t absent) {
  constexpr int kPerWord = 4 / static_cast<int>(sizeof(T));
  std::uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (count <= i * kPerWord) words[i] = absent;
    if (kPerWord == 2 && count == 2 * i + 1) {
      words[i] = (words[i] & 0xffffu) | (absent & 0xffff0000u);
    }
  }
  return {words[0], words[1], words[2], words[3]};
}

// Vectors of shared memory for each row and array: a part may touch one block more than it has
// vectors, and the vector past the last unit is read.
__host__ __device__ constexpr int bulk_vectors(int vectors, int lanes) {
  return vectors * lanes + 2;
}
// Shared memory of a block; 0 if the GPU has too little, next to the static shared memory of the
// kernels.
inline std::size_t bulk_bytes(const tuning::SoftmaxConfig& config, int arrays, int device) {
  constexpr std::size_t kStaticSharedBytes = 3072;
  const std::size_t places =
      config.rows_per_block() * bulk_vectors(config.vectors, config.lanes) * arrays;
  return kVectorBytes * places + kStaticSharedBytes <= max_shared_bytes(device)
             ? kVectorBytes * places
             : 0;
}

// A part of one array, staged in bulk_vectors() vectors per row. From 9.0 on the first lane of a
// row fetches it with one bulk copy: with copies of 16 bytes by every thread, L2 saw 2.5 times as
// many requests.
template <class T, int kVectors>
class BulkPart {
  static constexpr int kSize = static_cast<int>(sizeof(T));

 public:
  // Called once, before anything else. arrays: how many will be fetched.
  __device__ static void start(const PartPosition& place, int arrays) {
#if MEMBOUND_HAS_CLUSTERS
    const bool wide = place.lanes > kWarpLanes;
    if (threadIdx.x % (wide ? blockDim.x : kWarpLanes) == 0) {
      init_mbarrier(mbar(place), wide ? arrays : arrays * kWarpLanes >> log2_of(place.lanes));
      fence_mbarrier_init();
    }
    sync(place);
#endif
  }
  // staged: shared memory of the block for this array. The first `cols` elements of the row are
  // fetched.
  __device__ BulkPart(const T* row, const PartPosition& place, std::int64_t cols, uint4* staged)
      : place_(place), first_(place.part * kVectors * place.lanes) {
    shift_ = shift_of(row) & ~(kSize - 1);
    elements_ = elements(cols);
    const int of_block = static_cast<int>(threadIdx.x) >> log2_of(place.lanes);
    blocks_ =
        place.lanes > kWarpLanes ? staged : staged + of_block * bulk_vectors(kVectors, place.lanes);
  }

  // Where the shared memory of the next array begins.
  __device__ uint4* next_array(uint4* staged) const {
    const int rows =
        place_.lanes > kWarpLanes ? 1 : static_cast<int>(blockDim.x) >> log2_of(place_.lanes);
    return staged + rows * bulk_vectors(kVectors, place_.lanes);
  }
  // end: of the array. Nothing past it is read.
  __device__ void fetch(const T* row, const char* end) const {
    const char* const from = reinterpret_cast<const char*>(row) - shift_ +
                             static_cast<std::int64_t>(first_) * kVectorBytes;
    const int bytes = elements_ == 0 ? 0 : shift_ + elements_ * kSize;
    const int count = (bytes + kVectorBytes - 1) / kVectorBytes;
    const bool ends = count > 0 && end - from < count * kVectorBytes;
#if MEMBOUND_HAS_CLUSTERS
    if (place_.lane != 0) return;
    const int whole = ends ? count - 1 : count;
    if (ends) copy_sync(blocks_ + whole, block(from, whole), bytes - whole * kVectorBytes);
    expect_bytes(mbar(place_), whole * kVectorBytes);
    if (whole > 0) copy_bulk(blocks_, from, whole * kVectorBytes, mbar(place_));
#else
#pragma unroll
    for (int i = 0; i <= kVectors; ++i) {
      const int at = place(i);
      if (at >= count) break;
      if (ends && at == count - 1) {
        copy_sync(blocks_ + at, block(from, at), bytes - at * kVectorBytes);
      } else {
        copy_async(blocks_ + at, block(from, at), kVectorBytes);
      }
    }
    commit_copies();
#endif
  }
  // Waits until the fetched blocks are visible to all threads of the row.
  __device__ static void receive(const PartPosition& place) {
#if MEMBOUND_HAS_CLUSTERS
    wait_mbarrier(mbar(place), 0);
#else
    wait_for_copies<0>();
    sync(place);
#endif
  }

  // The index in the part of the thread's i-th vector or unit.
  __device__ int place(int i) const { return i * place_.lanes + place_.lane; }
  __device__ int elements() const { return elements_; }
  // Elements of the part if rows have `cols` elements.
  __device__ int elements(std::int64_t cols) const {
    const std::int64_t left = cols - std::int64_t{first_} * kPack<T>;
    const int most = kVectors * place_.lanes * kPack<T>;
    return static_cast<int>(left < 0 ? 0 : left < most ? left : most);
  }
  __device__ T element(int i) const {
    return *reinterpret_cast<const T*>(reinterpret_cast<const char*>(blocks_) + shift_ + i * kSize);
  }
  // Whether the thread has the vector of a column, which is not negative.
  __device__ bool has(int column) const {
    const int vector = column / static_cast<unsigned>(kPack<T>) - first_;
    bool found = false;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) found = found || vector == place(i);
    return found;
  }
  // in_part(): the index in the part of a column. of_row(): the start of the part in a row.
  __device__ int in_part(int column) const { return column - first_ * kPack<T>; }
  __device__ T* of_row(T* row) const { return row + std::int64_t{first_} * kPack<T>; }

  // Vectors `first` to first + kCount - 1 of the thread; absent_bits() or 0 pads them past the row.
  template <int kCount>
  __device__ void vectors(uint4 (&raw)[kCount], std::uint32_t absent, int first = 0) const {
    load(blocks_ + place(first), shift_, raw);
    if ((place(first + kCount - 1) + 1) * kPack<T> <= elements_) return;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      raw[i] = with_absent<T>(raw[i], elements_ - place(first + i) * kPack<T>, absent);
    }
  }
  // Overwrites the staged blocks with vectors of the row, after a barrier of the row.
  __device__ void replace(const uint4 (&raw)[kVectors]) {
    if (place_.lanes <= kWarpLanes) __syncwarp();
#pragma unroll
    for (int i = 0; i < kVectors; ++i) blocks_[place(i)] = raw[i];
    shift_ = 0;
    sync(place_);
  }
  // The thread's units of a result; unspecified past the last unit.
  template <int kCount>
  __device__ void units(uint4 (&raw)[kCount], const PartUnits<T>& of, int first = 0) const {
    const int at = shift_ + of.head * kSize;
    load(blocks_ + at / kVectorBytes + place(first), at % kVectorBytes, raw);
  }

 private:
  // Loads vectors that are `lanes` apart.
  template <int kCount>
  __device__ void load(const uint4* from, int shift, uint4 (&raw)[kCount]) const {
    const int apart = place_.lanes;
    if (shift == 0) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) raw[i] = from[i * apart];
      return;
    }
    const auto both = [&](auto realign) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) raw[i] = realign(from[i * apart], from[i * apart + 1]);
    };
    place_.lanes > kWarpLanes ? with_shift<true>(shift, both) : with_shift<false>(shift, both);
  }
  static __device__ const uint4* block(const char* from, int index) {
    return reinterpret_cast<const uint4*>(from) + index;
  }
  static __device__ void sync(const PartPosition& place) {
    if (place.lanes > kWarpLanes) {
      __syncthreads();
    } else {
      __syncwarp();
    }
  }
#if MEMBOUND_HAS_CLUSTERS
  // One mbarrier for the block, or for each warp where a warp has several rows.
  static __device__ std::uint64_t* mbar(const PartPosition& place) {
    __shared__ std::uint64_t all[tuning::kSoftmaxWarpThreads / kWarpLanes];
    return &all[place.lanes > kWarpLanes ? 0 : threadIdx.x / kWarpLanes];
  }
#endif

  const PartPosition& place_;
  uint4* blocks_;
  int first_;     // first vector of the part, in the row
  int elements_;  // of the part
  int shift_;     // bytes from the first block to the part's start
};

}  // namespace membound::cuda
