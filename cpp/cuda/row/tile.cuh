// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tiles of a row: which vectors a thread works on, how the row is reduced and how its results are
// written. The norms, forward and backward, use these tiles.
#include <cstdint>

#include "cuda/row/reader.cuh"
#include "cuda/row/thread_group.cuh"

namespace membound::cuda {

// A row that one thread group reads once and keeps in registers or staged, kVectors vectors per
// thread.
template <class ThreadGroup, Access kAccess>
class RegisterTile {
  static constexpr int kVectorsPerItem = ThreadGroup::kVectorsPerItem;
  static constexpr int kItemsPerThread = ThreadGroup::kItemsPerThread;

 public:
  static constexpr int kVectors = ThreadGroup::kVectors;

  // Thread groups past the last row read row 0 and write nothing: shuffles need every lane. Groups
  // that are whole blocks always have a row.
  __device__ RegisterTile(const ThreadGroup& thread_group, std::int64_t row, std::int64_t rows)
      : RegisterTile(thread_group, row, !ThreadGroup::kSharesBlock || row < rows) {}
  __device__ RegisterTile(const ThreadGroup& thread_group, std::int64_t row, bool active)
      : thread_group_(thread_group), active_(active), row_(active ? row : 0) {}

  __device__ bool active() const { return active_; }
  __device__ std::int64_t row() const { return row_; }
  __device__ bool first_thread() const {
    return thread_group_.lane == 0 && thread_group_.rank == 0 && active_;
  }
  // The index of this thread's i-th vector. Item k of a lane is virtual thread k * size + lane, and
  // its vectors are kItemsPerThread * size apart.
  __device__ int index(int i) const { return first_vector() + place(i); }
  // The same, counted from the start of the block's part of the row.
  __device__ int place(int i) const {
    if constexpr (kItemsPerThread == 1) return i * thread_group_.size + thread_group_.lane;
    constexpr int kFewer = kVectorsPerItem > 1 ? kVectorsPerItem - 1 : 1;
    const int item = kWhole == kItemsPerThread || i < first_of(kWhole)
                         ? i / kVectorsPerItem
                         : kWhole + (i - first_of(kWhole)) / kFewer;
    const int column = (i - first_of(item)) * kItemsPerThread + item;
    return column * thread_group_.size + thread_group_.lane;
  }
  // Vectors of a part.
  __device__ int part() const { return kVectors * thread_group_.size; }
  // Vector slots in shared memory of all thread groups of the block, and the first of this one.
  __device__ int places() const { return kVectors * static_cast<int>(blockDim.x); }
  __device__ int first_slot() const { return kVectors * thread_group_.first_thread(); }

  // Combines of_vector(i), a Value, over the block's part of the row; every thread gets the result.
  // kUnroll: vectors unrolled together; 1 where code is cold and should be short.
  template <class Value, int kUnroll = kVectors, class OfVector, class Combine>
  __device__ Value reduce_part(int round, OfVector of_vector, Combine combine) const {
    Value values[kItemsPerThread];
#pragma unroll
    for (int item = 0; item < kItemsPerThread; ++item) {
      values[item] = of_vector(first_of(item));
#pragma unroll kUnroll
      for (int i = first_of(item) + 1; i < first_of(item + 1); ++i) {
        values[item] = combine(values[item], of_vector(i));
      }
    }
    return thread_group_.reduce_part(values, round, combine);
  }
  // The same over the whole row. exchange: the round of the exchange between blocks.
  template <class Value, int kUnroll = kVectors, class OfVector, class Combine>
  __device__ Value reduce(int round, int exchange, OfVector of_vector, Combine combine) const {
    const Value part = reduce_part<Value, kUnroll>(round, of_vector, combine);
    if constexpr (!ThreadGroup::kClusters) {
      return part;
    } else {
      thread_group_.send(exchange, part);
      return combine_slots_by_lanes<kMaxGroups>(thread_group_.collect(exchange), combine);
    }
  }

  // Stores make(i) for each vector i of this thread. kUnrolled: vectors whose code and weights are
  // in flight together.
  template <int kUnrolled = kVectors, class T, class Make>
  __device__ void write_out(const RowWriter<T, kAccess>& to, Make make) const {
#pragma unroll 1
    for (int first = 0; first < kVectors; first += kUnrolled) {
#pragma unroll
      for (int j = 0; j < kUnrolled; ++j) {
        const int i = first + j;
        if (kVectors % kUnrolled != 0 && i >= kVectors) break;
        const uint4 vector = make(i);
        if (active_) to.store(index(i), vector);
      }
      asm volatile("" ::: "memory");  // keeps weights of later vectors out of registers
    }
  }

 private:
  __device__ int first_vector() const { return thread_group_.rank * part(); }
  // Items with kVectorsPerItem vectors; the items after them have one less.
  static constexpr int kWhole = kVectors - kItemsPerThread * (kVectorsPerItem - 1);
  static constexpr __device__ int first_of(int item) {
    return item * kVectorsPerItem - (item > kWhole ? item - kWhole : 0);
  }

  const ThreadGroup& thread_group_;
  bool active_;
  std::int64_t row_;
};

// A row that is read twice. The blocks of a cluster (or one block) process its groups one after the
// other; a group consists of segments of kVectorsPerItem vectors per thread. The tree is that of
// ClusterThreadGroup, whose groups are one segment, and of BlockThreadGroup, whose row is one.
// kVectorsPerItem 0: set at launch.
template <class Value, int kVectorsPerItem, int kMaxWarps, int kRounds, Access kAccess>
class StreamedTile {
  using Exchange = ClusterExchange<Value, kRounds>;

 public:
  static constexpr int kVectors = kVectorsPerItem;  // per thread and segment
  static constexpr int kUnroll =
      kAccess == Access::kAligned ? kVectorsPerItem : 1;  // not unrolled, which halves the code
  using Shared = typename Exchange::Shared;

  __device__ StreamedTile(Shared& shared, int blocks_per_row, int groups, int segments_per_group,
                          int vectors_per_item = kVectorsPerItem)
      : exchange_{shared, blocks_per_row, groups},
        segments_(segments_per_group),
        vectors_per_item_(vectors_per_item),
        first_group_(cluster_rank() * (groups / blocks_per_row)),
        last_group_(first_group_ + groups / blocks_per_row) {}

  __device__ void start() const { exchange_.cluster_arrive(); }
  __device__ bool first_thread() const { return first_group_ == 0 && threadIdx.x == 0; }

  // Combines of_vector(index) over the vectors of one group. kUnrolled: vectors unrolled together.
  template <int kUnrolled = kUnroll, class OfVector, class Combine>
  __device__ auto reduce_group(int group, OfVector of_vector, Combine combine) {
    using Part = decltype(of_vector(0));
    typename WideOf<Part>::type sum = 0;
    for (int segment = 0; segment < segments_; ++segment) {
      Part values[1] = {of_vector(index(group, segment, 0))};
#pragma unroll(kUnrolled)
      for (int v = 1; v < vectors_per_item(); ++v) {
        values[0] = combine(values[0], of_vector(index(group, segment, v)));
      }
      const typename WideOf<Part>::type more(reduce_block<kMaxWarps>(values, round_++, combine));
      sum = segment == 0 ? more : combine(sum, more);
    }
    return static_cast<Part>(sum);
  }
  // Combines of_vector(index) over the whole row. exchange: as in RegisterTile.
  template <int kUnrolled = kUnroll, class OfVector, class Combine>
  __device__ Value reduce(int exchange, OfVector of_vector, Combine combine) {
    each_group([&](int group) {
      send(exchange, group, reduce_group<kUnrolled>(group, of_vector, combine));
    });
    return combine_slots<kMaxGroups>(collect(exchange), combine);
  }
  __device__ void send(int exchange, int group, Value part) const {
    if (threadIdx.x >= kWarpLanes) return;
    if (exchange == 0 && group == first_group_) exchange_.cluster_wait();
    exchange_.send(exchange, group, part);
  }
  __device__ const Value* collect(int exchange) const { return exchange_.collect(exchange); }

  template <class Body>
  __device__ void each_group(Body body) {
    for (int group = first_group_; group < last_group_; ++group) body(group);
  }

  // Calls body(group, segment) for every segment of this block.
  template <class Body>
  __device__ void each_segment(Body body) const {
    for (int group = first_group_; group < last_group_; ++group) {
      for (int segment = 0; segment < segments_; ++segment) body(group, segment);
    }
  }

  // Calls body(index) for every vector of this block.
  template <class Body>
  __device__ void each_vector(Body body) const {
    each_segment([&](int group, int segment) {
#pragma unroll 1
      for (int v = 0; v < vectors_per_item(); ++v) body(index(group, segment, v));
    });
  }

  // Stores one segment; make(v, index) gives vector v.
  template <class T, class Make>
  __device__ void write(const RowWriter<T, kAccess>& to, int group, int segment, Make make) const {
#pragma unroll(kUnroll)
    for (int v = 0; v < vectors_per_item(); ++v) {
      const int at = index(group, segment, v);
      to.store(at, make(v, at));
    }
  }

  // The index of this thread's vector v of a segment.
  __device__ int index(int group, int segment, int v) const {
    return ((group * segments_ + segment) * vectors_per_item() + v) * static_cast<int>(blockDim.x) +
           static_cast<int>(threadIdx.x);
  }

 private:
  __device__ int vectors_per_item() const {
    return kVectorsPerItem > 0 ? kVectorsPerItem : vectors_per_item_;
  }

  Exchange exchange_;
  int round_ = 0;  // of reduce_block()
  int segments_;
  int vectors_per_item_;
  int first_group_;
  int last_group_;
};

}  // namespace membound::cuda
