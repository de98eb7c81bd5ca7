// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which chunks of a row a thread works on, how the row is reduced and how its results are written:
// the same for every op that reads a row once or twice.
#include <cstdint>

#include "cuda/row/reader.cuh"
#include "cuda/row/thread_group.cuh"

namespace membound::cuda {

// A row held by one team, kChunks chunks in each thread.
template <class Team, Access kAccess>
class HeldTile {
  static constexpr int kVecs = Team::kVecs;
  static constexpr int kFold = Team::kFold;

 public:
  static constexpr int kChunks = Team::kChunks;

  // Teams whose row is past the last read row 0 and write nothing: shuffles need every lane. Whole
  // blocks all have a row.
  __device__ HeldTile(const Team& team, std::int64_t row, std::int64_t rows)
      : HeldTile(team, row, !Team::kSharesBlock || row < rows) {}
  __device__ HeldTile(const Team& team, std::int64_t row, bool active)
      : team_(team), active_(active), row_(active ? row : 0) {}

  __device__ bool active() const { return active_; }
  __device__ std::int64_t row() const { return row_; }
  __device__ bool first_thread() const { return team_.lane == 0 && team_.rank == 0 && active_; }
  // Of the i-th chunk of this thread. Virtual thread fold * size + lane holds the chunks that are a
  // virtual block apart.
  __device__ int index(int i) const { return first_chunk() + place(i); }
  // The same in the block's part of the row.
  __device__ int place(int i) const {
    if constexpr (kFold == 1) return i * team_.size + team_.lane;
    constexpr int kFewer = kVecs > 1 ? kVecs - 1 : 1;
    const int fold = kWhole == kFold || i < first_of(kWhole)
                         ? i / kVecs
                         : kWhole + (i - first_of(kWhole)) / kFewer;
    const int column = (i - first_of(fold)) * kFold + fold;
    return column * team_.size + team_.lane;
  }
  // Chunks of a part.
  __device__ int part() const { return kChunks * team_.size; }
  // Places of a block's teams in shared memory, and the first of this one.
  __device__ int places() const { return kChunks * static_cast<int>(blockDim.x); }
  __device__ int first_place() const { return kChunks * team_.first_thread(); }

  // Combines of_chunk(i), a Value, over the chunks of the block's part of the row; the same in
  // every thread. kUnroll: chunks whose code is side by side; 1 where code is cold and should be
  // short.
  template <class Value, int kUnroll = kChunks, class OfChunk, class Combine>
  __device__ Value reduce_part(int round, OfChunk of_chunk, Combine combine) const {
    Value values[kFold];
#pragma unroll
    for (int fold = 0; fold < kFold; ++fold) {
      values[fold] = of_chunk(first_of(fold));
#pragma unroll kUnroll
      for (int i = first_of(fold) + 1; i < first_of(fold + 1); ++i) {
        values[fold] = combine(values[fold], of_chunk(i));
      }
    }
    return team_.reduce_part(values, round, combine);
  }
  // The same over the whole row. exchange: the round of the exchange between blocks.
  template <class Value, int kUnroll = kChunks, class OfChunk, class Combine>
  __device__ Value reduce(int round, int exchange, OfChunk of_chunk, Combine combine) const {
    const Value part = reduce_part<Value, kUnroll>(round, of_chunk, combine);
    if constexpr (!Team::kClusters) {
      return part;
    } else {
      team_.send(exchange, part);
      return combine_slots_by_lanes<kMaxGroups>(team_.collect(exchange), combine);
    }
  }

  // Results are put chunk by chunk, make(i) for the i-th of this thread, and flushed once. Shifted
  // rows go through shared memory, where the lanes that write a block find both chunks that share
  // it; kAgain: for a second array. kSide: chunks whose code, and whose weights in registers, are
  // side by side.
  template <int kSide = kChunks, bool kAgain = false, class T, class Make>
  __device__ void put(const RowWriter<T, kAccess>& to, Make make) const {
    uint4* mine = kAccess == Access::kShifted ? staged() : nullptr;
    if constexpr (kAccess == Access::kShifted && kAgain) team_.sync();
#pragma unroll 1
    for (int first = 0; first < kChunks; first += kSide) {
#pragma unroll
      for (int j = 0; j < kSide; ++j) {
        const int i = first + j;
        if (kChunks % kSide != 0 && i >= kChunks) break;
        const uint4 chunk = make(i);
        if constexpr (kAccess == Access::kShifted) {
          mine[place(i)] = chunk;
        } else {
          if (active_) to.store(index(i), chunk);
        }
      }
      asm volatile("" ::: "memory");  // no weights of more chunks in registers
    }
  }
  template <class T>
  __device__ void flush(const RowWriter<T, kAccess>& to) const {
    if constexpr (kAccess == Access::kShifted) {
      team_.sync();
      if (!active_) return;
      to.template store_staged<Team::kUniformShift, kChunks>(staged(), first_chunk(), team_.size,
                                                             team_.lane);
    }
  }

 private:
  __device__ int first_chunk() const { return team_.rank * part(); }
  // Virtual threads whose chunks are kVecs; those behind them have one less.
  static constexpr int kWhole = kChunks - kFold * (kVecs - 1);
  static constexpr __device__ int first_of(int fold) {
    return fold * kVecs - (fold > kWhole ? fold - kWhole : 0);
  }
  // Where a row is parked, its place: it has been read by then.
  __device__ uint4* staged() const {
    if constexpr (Team::kParks) {
      extern __shared__ uint4 parked[];
      return parked;
    } else {
      __shared__ uint4 chunks[Team::kMaxThreads * kChunks];
      return chunks + team_.first_thread() * kChunks;
    }
  }

  const Team& team_;
  bool active_;
  std::int64_t row_;
};

// A row that is read twice. The blocks of a cluster (or one block) take its groups in turn; a group
// is segments of kVecs chunks per thread. Same tree as ClusterTeam, whose groups are one segment,
// and as BlockTeam, whose row is one. kVecs 0: as many as the launch says.
template <class Value, int kVecs, int kMaxWarps, int kRounds, Access kAccess>
class StreamedTile {
  using Exchange = ClusterExchange<Value, kRounds>;

 public:
  static constexpr int kChunks = kVecs;  // of a segment in each thread
  static constexpr int kUnroll = kAccess == Access::kAligned ? kVecs : 1;  // half the code
  using Shared = typename Exchange::Shared;

  __device__ StreamedTile(Shared& shared, int blocks_per_row, int groups, int segments_per_group,
                          int vecs = kVecs)
      : exchange_{shared, blocks_per_row, groups},
        segments_(segments_per_group),
        vecs_(vecs),
        first_group_(cluster_rank() * (groups / blocks_per_row)),
        last_group_(first_group_ + groups / blocks_per_row) {}

  __device__ void start() const { exchange_.announce(); }
  __device__ bool first_thread() const { return first_group_ == 0 && threadIdx.x == 0; }

  // Combines of_chunk(index) over the chunks of one group. kSide: chunks whose code is side by
  // side.
  template <int kSide = kUnroll, class OfChunk, class Combine>
  __device__ auto reduce_group(int group, OfChunk of_chunk, Combine combine) {
    using Part = decltype(of_chunk(0));
    typename WideOf<Part>::type sum = 0;
    for (int segment = 0; segment < segments_; ++segment) {
      Part values[1] = {of_chunk(index(group, segment, 0))};
#pragma unroll(kSide)
      for (int v = 1; v < vecs(); ++v) {
        values[0] = combine(values[0], of_chunk(index(group, segment, v)));
      }
      const typename WideOf<Part>::type more(reduce_block<kMaxWarps>(values, round_++, combine));
      sum = segment == 0 ? more : combine(sum, more);
    }
    return static_cast<Part>(sum);
  }
  // Combines of_chunk(index) over all chunks of the row. exchange: as in HeldTile.
  template <int kSide = kUnroll, class OfChunk, class Combine>
  __device__ Value reduce(int exchange, OfChunk of_chunk, Combine combine) {
    each_group(
        [&](int group) { send(exchange, group, reduce_group<kSide>(group, of_chunk, combine)); });
    return combine_slots<kMaxGroups>(collect(exchange), combine);
  }
  __device__ void send(int exchange, int group, Value part) const {
    if (threadIdx.x >= kWarpLanes) return;
    if (exchange == 0 && group == first_group_) exchange_.wait_for_peers();
    exchange_.send(exchange, group, part);
  }
  __device__ const Value* collect(int exchange) const { return exchange_.collect(exchange); }

  template <class Body>
  __device__ void each_group(Body body) {
    for (int group = first_group_; group < last_group_; ++group) body(group);
  }

  // body(group, segment): for every segment of this block.
  template <class Body>
  __device__ void each_segment(Body body) const {
    for (int group = first_group_; group < last_group_; ++group) {
      for (int segment = 0; segment < segments_; ++segment) body(group, segment);
    }
  }

  // body(index): for every chunk of this block.
  template <class Body>
  __device__ void each_chunk(Body body) const {
    each_segment([&](int group, int segment) {
#pragma unroll 1
      for (int v = 0; v < vecs(); ++v) body(index(group, segment, v));
    });
  }

  // As put and flush of HeldTile, for one segment; make gets v and the index of the chunk.
  template <class T, class Make>
  __device__ void write(const RowWriter<T, kAccess>& to, int group, int segment, Make make) const {
    if constexpr (kAccess == Access::kShifted) {
      const int lanes = static_cast<int>(blockDim.x);
      const int lane = static_cast<int>(threadIdx.x);
      __syncthreads();
#pragma unroll
      for (int v = 0; v < kVecs; ++v)
        staged()[v * lanes + lane] = make(v, index(group, segment, v));
      __syncthreads();
      to.template store_staged<true, kVecs>(staged(), index(group, segment, 0) - lane, lanes, lane);
    } else {
#pragma unroll(kUnroll)
      for (int v = 0; v < vecs(); ++v) {
        const int at = index(group, segment, v);
        to.store(at, make(v, at));
      }
    }
  }

  // Of chunk v of a segment of this thread.
  __device__ int index(int group, int segment, int v) const {
    return ((group * segments_ + segment) * vecs() + v) * static_cast<int>(blockDim.x) +
           static_cast<int>(threadIdx.x);
  }

 private:
  __device__ int vecs() const { return kVecs > 0 ? kVecs : vecs_; }
  static __device__ uint4* staged() {
    __shared__ uint4 chunks[kMaxWarps * kWarpLanes * kVecs];
    return chunks;
  }

  Exchange exchange_;
  int round_ = 0;  // of the block
  int segments_;
  int vecs_;
  int first_group_;
  int last_group_;
};

}  // namespace membound::cuda
