// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The arrays of one row of a norm, and where its chunks are between their only read and their only
// write: in registers, or in shared memory.
#include "cuda/norm/rms_norm_row.cuh"
#include "cuda/row/staged_row.cuh"

namespace membound::cuda {

// The arrays of one row: x and what is beside it are read; out and residual_out written.
template <class T, Access kAccess, Beside kBeside>
class NormRow {
  using Params = RmsNormParams<accumulate_t<T>>;
  using Reader = RowReader<T, kAccess>;
  using Writer = RowWriter<T, kAccess>;
  static constexpr bool kHasBeside = kBeside != Beside::kNothing;

 public:
  using Chunk = SourceChunk<T, kBeside>;

  __device__ NormRow(const Params& p, std::int64_t row)
      : p_(p),
        row_(row),
        x_(at<const T>(p.x, p.x_row_stride, p.x_array), p.x_array, p.chunks, p.cols),
        beside_(kHasBeside ? Reader(at<const T>(p.beside, p.beside_row_stride, p.beside_array),
                                    p.beside_array, p.chunks, p.cols)
                           : x_) {}

  __device__ const Reader& x() const { return x_; }
  __device__ const Reader& beside() const { return beside_; }

  // The kCount chunks index(0), index(1) ... of x, and as many of what is beside it.
  template <int kCount>
  struct Raw {
    RawChunks<kAccess, kCount> x;
    RawChunks<kAccess, kHasBeside ? kCount : 1> beside;
  };
  template <int kCount, class Index>
  __device__ void fetch(Raw<kCount>& raw, Index index) const {
    x_.fetch(raw.x, index);
    if constexpr (kHasBeside) beside_.fetch(raw.beside, index);
  }
  template <bool kUniform, int kCount, class Index>
  __device__ void chunks(Raw<kCount>& raw, Chunk (&chunks)[kCount], Index index) const {
    // Not in fetch(): weights are asked for behind it (H200, 1024 x 300 in this form 3.3 us, 3.5
    // so).
    x_.fetch_end(raw.x, index);
    if constexpr (kHasBeside) beside_.fetch_end(raw.beside, index);
    uint4 parts[kCount];
    x_.template chunks<kUniform>(raw.x, parts, index);
#pragma unroll
    for (int i = 0; i < kCount; ++i) chunks[i].parts[0] = parts[i];
    if constexpr (kHasBeside) {
      beside_.template chunks<kUniform>(raw.beside, parts, index);
#pragma unroll
      for (int i = 0; i < kCount; ++i) chunks[i].parts[1] = parts[i];
    }
  }
  __device__ Chunk load_chunk(int index) const {
    Chunk chunk;
    chunk.parts[0] = x_.load(index);
    if constexpr (kHasBeside) chunk.parts[1] = beside_.load(index);
    return chunk;
  }
  __device__ Numbers<T> load(int index) const { return load_chunk(index).numbers(p_); }
  __device__ Chunk load_chunk_alike(int index) const {
    Chunk chunk;
    chunk.parts[0] = x_.load_alike(index);
    if constexpr (kHasBeside) chunk.parts[1] = beside_.load_alike(index);
    return chunk;
  }
  __device__ Numbers<T> load_alike(int index) const { return load_chunk_alike(index).numbers(p_); }
  // A chunk of the result in storage: what came of the norm, and the gate that it passes.
  __device__ uint4 result(Numbers<T> y, const Chunk& chunk) const {
    if constexpr (kBeside == Beside::kGate) pass_gate<T, kBeside>(p_, y, chunk.parts[1]);
    return pack<T>(y);
  }
  __device__ Writer out() const {
    return {at<T>(p_.out, p_.out_row_stride, p_.out_array), p_.out_array, p_.chunks, p_.cols};
  }
  __device__ Writer residual_out() const {
    return {at<T>(p_.residual_out, p_.residual_out_row_stride, p_.residual_out_array),
            p_.residual_out_array, p_.chunks, p_.cols};
  }
  // By one thread of the row.
  template <Centring kCentring>
  __device__ void store_statistics(const RowScale<accumulate_t<T>>& scale) const {
    store_statistic(p_.rstd, p_.rstd_row_stride, p_.rstd_array, scale.rstd * scale.scale);
    if constexpr (kCentring != Centring::kNever) {
      // The rest of an infinite mean is not a number.
      const accumulate_t<T> both = scale.mean + scale.correction;
      store_statistic(p_.mean, p_.mean_row_stride, p_.mean_array,
                      (isinf(scale.mean) ? scale.mean : both) / scale.scale);
    }
  }

 private:
  template <class U, class Data>
  __device__ U* at(Data* data, std::int64_t stride, const RowArray& array) const {
    return static_cast<U*>(data) + row_offset<kAccess, true>(p_.split, stride, array, row_);
  }
  __device__ void store_statistic(accumulate_t<T>* data, std::int64_t stride, const RowArray& array,
                                  accumulate_t<T> value) const {
    if (data != nullptr) *at<accumulate_t<T>>(data, stride, array) = value;
  }

  const Params& p_;
  std::int64_t row_;
  Reader x_;
  Reader beside_;
};

// A chunk of a row, and of its result, for what is seldom done. Out of line: inlined into each of
// its passes, the redo of extreme rows was a fifth of all machine code.
template <class T, Access kAccess, Beside kBeside>
__device__ __noinline__ SourceChunk<T, kBeside> cold_chunk(const RmsNormParams<accumulate_t<T>>& p,
                                                           std::int64_t row, int index) {
  return NormRow<T, kAccess, kBeside>(p, row).load_chunk(index);
}
template <class T, Access kAccess, Beside kBeside, Centring kCentring>
__device__ __noinline__ uint4 cold_result(const RmsNormParams<accumulate_t<T>>& p, std::int64_t row,
                                          std::int64_t head, RowScale<accumulate_t<T>> scale,
                                          int index) {
  const NormRow<T, kAccess, kBeside> from(p, row);
  const SourceChunk<T, kBeside> chunk = from.load_chunk(index);
  const Columns<T, kAccess, kCentring> columns(p, head);
  return from.result(
      columns.template normalised<false>(chunk.numbers(p), scale, columns.load(index),
                                         columns.load_bias(index), index),
      chunk);
}

// Where the rows of a team wait. Element by element they are read into registers. Two virtual
// threads' chunks of aligned rows fit there, too, and rows that are few enough for one wave are
// faster (H200, RMSNorm bfloat16, 1024 x 4096: 5.8 us, 6.5 parked); parked where their kernels need
// the registers otherwise (LayerNorm, 16384 x 4096: 74.7 to 70.5; quantised 62 to 54; with a gate
// 8192 x 6144: 116 to 73).
template <class T, class Team, Access kAccess, Beside kBeside, Centring kCentring, bool kQuantised>
inline constexpr bool kParked =
    Team::kParks && kAccess != Access::kAny &&
    (kAccess == Access::kShifted || Team::kVecs > 2 ||
     (sizeof(T) == 2 && (kCentring != Centring::kNever || kQuantised || kBeside == Beside::kGate)));

// Whether one copy brings all of a block's part. It takes no instructions of other threads, who
// wait for all of it (H200, float32 8192 x 16384: LayerNorm 271 us, by chunks 295, RMSNorm 254 and
// 252; bfloat16 2048 x 65536: LayerNorm 167 and 163; 8192 x 8192: 71 and 66).
template <class T, class Team, Centring kCentring>
inline constexpr bool kParkedAtOnce =
    Team::kClusters && sizeof(T) == 4 && kCentring == Centring::kAlways;

// Arrays of chunks in shared memory. Results of shifted rows are put together over x, unless it is
// read again for the sum with the residual.
template <Access kAccess, Beside kBeside>
inline constexpr int kParkedArrays = 1 + (kBeside != Beside::kNothing) +
                                     (kAccess == Access::kShifted && kBeside == Beside::kResidual);

// The chunks of a thread, in registers from fetch() on.
template <class T, class Team, Access kAccess, Beside kBeside>
class RegisterChunks {
  using Row = NormRow<T, kAccess, kBeside>;
  using Tile = HeldTile<Team, kAccess>;
  static constexpr int kChunks = Tile::kChunks;

 public:
  using Chunk = typename Row::Chunk;
  __device__ RegisterChunks(const Row& row, const Tile& tile) : row_(row), tile_(tile) {}

  __device__ void fetch(const RmsNormParams<accumulate_t<T>>&, int) { row_.fetch(raw_, index()); }
  __device__ void receive() { row_.template chunks<Team::kUniformShift>(raw_, chunks_, index()); }
  __device__ const Chunk& at(int i) const { return chunks_[i]; }
  // Between two uses: numbers need not stay in registers.
  __device__ void forget() {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) forget_numbers(chunks_[i].parts);
  }

 private:
  __device__ auto index() const {
    return [this](int i) { return tile_.index(i); };
  }
  const Row& row_;
  const Tile& tile_;
  typename Row::template Raw<kChunks> raw_;
  Chunk chunks_[kChunks];
};

// The same in dynamic shared memory, each thread its own, so that a multiprocessor has more of them
// on their way than its registers hold (H200, LayerNorm bfloat16: 1024 x 4096 8.1 to 6.8 us, 2048 x
// 65536 182 to 163).
template <class T, class Team, Access kAccess, Beside kBeside, Centring kCentring>
class ParkedChunks {
  using Row = NormRow<T, kAccess, kBeside>;
  using Tile = HeldTile<Team, kAccess>;
  using Part = ParkedPart<kParkedAtOnce<T, Team, kCentring>>;
  static constexpr int kChunks = Tile::kChunks;
  static constexpr bool kHasBeside = kBeside != Beside::kNothing;

 public:
  using Chunk = typename Row::Chunk;
  __device__ ParkedChunks(const Row& row, const Tile& tile) : row_(row), tile_(tile) {}

  __device__ void fetch(const RmsNormParams<accumulate_t<T>>& p, int lane) {
    if constexpr (kAccess == Access::kShifted) {
      const int row_bytes = static_cast<int>(p.cols) * int{sizeof(T)};
      const bool outermost = tile_.row() == 0 || tile_.row() == p.rows - 1;
      park_blocks(row_.x(), part(0), tile_, lane, row_bytes, outermost);
      if constexpr (kHasBeside)
        park_blocks(row_.beside(), part(1), tile_, lane, row_bytes, outermost);
      commit_copies();
    } else if constexpr (kHasBeside) {
      uint4* const to[] = {part(0), part(1)};
      Part::fetch(to, tile_, p.chunks, [&](int array, int index) {
        return array == 0 ? row_.x().address(index) : row_.beside().address(index);
      });
    } else {
      uint4* const to[] = {part(0)};
      Part::fetch(to, tile_, p.chunks, [&](int, int index) { return row_.x().address(index); });
    }
  }
  __device__ void receive() {
    if constexpr (kAccess != Access::kShifted) {
      Part::receive();
    } else {
      wait_for_copies<0>();
      __syncthreads();
      settle(row_.x().shift(), part(0));
      if constexpr (kHasBeside) settle(row_.beside().shift(), part(1));
    }
  }
  __device__ Chunk at(int i) const {
    Chunk chunk;
    chunk.parts[0] = part(0)[tile_.place(i)];
    if constexpr (kHasBeside) chunk.parts[1] = part(1)[tile_.place(i)];
    return chunk;
  }
  __device__ void forget() { asm volatile("" ::: "memory"); }
  // The result of an aligned chunk waits in its x's place.
  __device__ uint4& result(int i) const { return part(0)[tile_.place(i)]; }

 private:
  // What came as blocks of memory becomes chunks of the row.
  __device__ void settle(int shift, uint4* blocks) {
    uint4 chunks[kChunks];
    unpark_blocks<Team::kUniformShift>(shift, blocks, tile_, chunks);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kChunks; ++i) blocks[tile_.place(i)] = chunks[i];
  }
  __device__ uint4* part(int array) const {
    extern __shared__ uint4 parked[];
    constexpr int kBefore = kParkedArrays<kAccess, kBeside> - (kHasBeside ? 2 : 1);
    return parked + (kBefore + array) * parked_places(kAccess, tile_.places()) +
           tile_.first_place();
  }
  const Row& row_;
  const Tile& tile_;
};

}  // namespace membound::cuda
