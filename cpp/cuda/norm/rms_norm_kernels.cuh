// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/norm/rms_norm_shift.cuh"
#include "cuda/norm/rms_norm_source.cuh"

namespace membound::cuda {

// Where the result of the norm goes: to out.
struct StoreResult {
  template <class Accumulate>
  using Params = RmsNormParams<Accumulate>;
  static constexpr int kRounds = 0;  // of the exchange between blocks, beside those of the norm
  static constexpr bool kAfterSum = false;  // whether residual_out is written first
  static constexpr bool kStridedVectorsPerItem =
      true;  // whether a segment may have any number of vectors
  static constexpr bool kQuantises = false;

  // Chunk i of the held row is make<plain>(i). kSide: as for HeldTile::put.
  template <int kSide, class T, class Tile, class Row, class Make>
  static __device__ void put(const Params<accumulate_t<T>>&, const Tile& tile, const Row& row,
                             bool plain, Make make) {
    const auto put_as = [&]<bool kPlain>() {
      tile.template put<kSide>(row.out(),
                               [&](int i) { return make.template operator()<kPlain>(i); });
    };
    plain ? put_as.template operator()<true>() : put_as.template operator()<false>();
    tile.flush(row.out());
  }
  // What writes a segment of a streamed row, whose vector v at index `at` is make(v, at).
  template <class T, class Tile, class Row, class Result>
  static __device__ auto stream(const Params<accumulate_t<T>>&, Tile& tile, const Row& row,
                                Result) {
    return [&tile, &row](int group, int segment, auto make) {
      tile.write(row.out(), group, segment, make);
    };
  }
};

template <class T, class ThreadGroup, Access kAccess, FusedInput kFusedInput, Centring kCentring,
          class Epilogue>
__device__ __noinline__ void rescale(const typename Epilogue::template Params<accumulate_t<T>>& p,
                                     bool plain, int first_block = 0);

// The row of one thread group, from its only read to its only write.
template <class T, class ThreadGroup, Access kAccess, FusedInput kFusedInput, Centring kCentring,
          class Epilogue>
class HeldRow {
  using Accumulate = accumulate_t<T>;
  using Params = typename Epilogue::template Params<Accumulate>;
  using Scale = RowScale<Accumulate>;
  using Tile = HeldTile<ThreadGroup, kAccess>;
  using Rounds = RoundsOf<kCentring>;
  static constexpr int kVectors = Tile::kVectors;
  static constexpr bool kAdd = kFusedInput == FusedInput::kResidual;
  // Heads are narrow; others of theirs take the kernels of unaligned rows.
  static constexpr bool kHeads = kAccess != Access::kAligned || ThreadGroup::kSplitRows;
  using Row = NormRow<T, kAccess, kFusedInput>;
  static constexpr bool kStagesRow =
      kStaged<T, ThreadGroup, kAccess, kFusedInput, kCentring, Epilogue::kQuantises>;
  using Held =
      std::conditional_t<kStagesRow, StagedVectors<T, ThreadGroup, kAccess, kFusedInput, kCentring>,
                         RegisterVectors<T, ThreadGroup, kAccess, kFusedInput>>;
  // Chunks whose code is side by side, and whose weights are asked for at once: of staged ones as
  // few as keep them to the registers of min_blocks.
  static constexpr int kUnroll = kStagesRow ? 1 : kVectors;
  // More results than registers should hold wait for their scale there, too.
  static constexpr bool kStagesResults = kStagesRow && Epilogue::kQuantises && kVectors > 6;
  static constexpr bool kMayCentre = kCentring != Centring::kNever;
  // Aligned rows that are centred ask for those of the next vector while they work on one, where a
  // thread has many (H200, LayerNorm: 8192 x 16384 129.2 to 127.3 us, float32 270 to 261, 512 x
  // 32768 25.6 to 24.7; two vectors of two virtual threads 1024 x 4096 7.2 to 7.5, 16384 x
  // 1024 19.3 to 20.4).
  static constexpr bool kAhead = kStagesRow && ThreadGroup::kVectorsPerItem > 2 &&
                                 kAccess == Access::kAligned&& kCentring == Centring::kAlways;
  static constexpr int kWeights = kAhead        ? 2
                                  : !kStagesRow ? (kVectors % 4 == 0 ? 4 : kVectors)
                                  : ThreadGroup::kMaxThreads == 512 ? (kMayCentre ? 1 : 2)
                                                                    : (kMayCentre ? 2 : 4);

 public:
  __device__ HeldRow(const Params& p, const ThreadGroup& thread_group)
      : p_(p),
        thread_group_(thread_group),
        tile_(thread_group, thread_group.row, p.rows),
        row_(p, tile_.row()),
        columns_(p, head()) {}

  __device__ void run() {
    const auto index = [&](int i) { return tile_.index(i); };
    Held held(row_, tile_);
    held.fetch(p_, thread_group_.lane);
    // Early weights hide their latency behind the reduction (H200, 1024 x 4096: 6.06 to 5.60 us; 1
    // x 4096: 2.16 to 1.51; 4096 x 32768: 148 to 138).
    uint4 weights[kWeights], biases[kWeights];
    const auto load_weights = [&] {
      if constexpr (kAhead) {
        columns_.clear_bias(biases);
        columns_.load_at(weights[0], biases[0], index(0));
      } else {
        columns_.load(weights, index);
      }
      asm volatile("" ::: "memory");  // else the compiler sinks the loads below the reduction
    };
    // Shifted rows have two blocks of each vector in registers at first.
    constexpr bool kBeforeVectors = kStagesRow || kAccess != Access::kUnaligned;
    if constexpr (kBeforeVectors) load_weights();
    // What the shift is made of is asked for while the row is on its way, or, by threads that hold
    // its blocks, after it. Behind start() the compiler of PTX sinks it below the wait.
    typename Row::Vector first[kShiftVectors<T>];
    if constexpr (kStagesRow) {
      if (is_centred<kCentring>(p_)) {
#pragma unroll
        for (int i = 0; i < kShiftVectors<T>; ++i) first[i] = row_.load_vector_alike(i);
      }
    }
    thread_group_.start();
    held.receive();
    Accumulate variance_shift = 0;
    if constexpr (ThreadGroup::kSharesWarp && kNarrow<kAccess>) {
      if (is_centred<kCentring>(p_)) {
        variance_shift = shift_from_lanes<T>(p_, thread_group_.size,
                                             [&](int i) { return held.at(i).numbers(p_); });
      }
    } else if constexpr (!kStagesRow) {
      variance_shift = row_variance_shift();
    } else if (is_centred<kCentring>(p_)) {
      variance_shift = shift_from<T>(p_, [&](int i) { return first[i].numbers(p_); });
    }
    if constexpr (!kBeforeVectors) load_weights();
    // Biases are as many registers more, which staged rows do not have, nor float32's (16384 x
    // 4096: 131 to 136 us).
    constexpr bool kEarlyBiases =
        !kStagesRow && kCentring == Centring::kAlways && (kVectors <= 2 || sizeof(T) == 2);
    if constexpr (kEarlyBiases) {
      columns_.clear_bias(biases);
      columns_.load_bias(biases, index);
      asm volatile("" ::: "memory");
    }
    const auto numbers = [&](int i) { return held.at(i).numbers(p_); };
    Scale scale;
    bool in_range = true;
    const Accumulate squares =
        squares_at_once<kUnroll>(scale, variance_shift, 0, 0, numbers, in_range);
    const bool trusted = in_range && is_trusted(p_, squares);
    if (thread_group_.any(!trusted)) [[unlikely]]
      return rescale<T, ThreadGroup, kAccess, kFusedInput, kCentring, Epilogue>(p_, trusted);

    scale.rstd = plain_rstd(p_, squares);
    if (tile_.first_thread()) row_.template store_statistics<kCentring>(scale);
    held.rematerialise();
    if constexpr (!kEarlyBiases && !kAhead) columns_.clear_bias(biases);
    if constexpr (kAdd && Epilogue::kAfterSum) store_sum(numbers);
    const auto result = [&]<bool kPlain>(int i) {
      const int j = i % kWeights;
      if constexpr (kAhead) {
        const int next = (j + 1) % kWeights;
        const int at = i + 1 < kVectors ? index(i + 1) : p_.vectors;
        columns_.template load_at<kPlain>(weights[next], biases[next], at);
        asm volatile("" ::: "memory");
      } else if (j == 0) {
        const auto more = [&](int k) { return tile_.index(i + k); };
        if (i > 0) columns_.template load<kPlain>(weights, more);
        if constexpr (!kEarlyBiases) columns_.template load_bias<kPlain>(biases, more);
      }
      const typename Row::Vector vector = held.at(i);
      return row_.result(columns_.template normalised<kPlain>(vector.numbers(p_), scale, weights[j],
                                                              biases[j], index(i)),
                         vector);
    };
    const bool plain = kAccess != Access::kStrided && p_.plain;
    if constexpr (kStagesResults) {
      Epilogue::template store_staged_row<kWeights, T>(p_, tile_, held, plain, result);
    } else {
      Epilogue::template put<kWeights, T>(p_, tile_, row_, plain, result);
    }
    if constexpr (kAdd && !Epilogue::kAfterSum) store_sum(numbers);
  }

  // The redo of a row whose plain sums left the trusted range. It reads the row again, so that the
  // common path keeps its registers. Rows of the same warp come along with `plain`.
  __device__ void run_scaled(bool plain) {
    const auto numbers = [&](int i) {
      return cold_vector<T, kAccess, kFusedInput>(p_, tile_.row(), tile_.index(i)).numbers(p_);
    };
    const Accumulate largest = tile_.template reduce<Accumulate, 1>(
        0, Rounds::kScaledLargest, [&](int i) { return largest_magnitude<T>(numbers(i)); },
        Largest());
    const int exponent = plain ? 0 : row_exponent(p_, largest);
    Scale scale{.scale = power_of_two(exponent, Accumulate())};
    const Accumulate squares = squares_of<1>(scale, 1, Rounds::kScaledMoments, numbers);
    settle<Accumulate, kCentring>(p_, scale, squares, exponent);
    if constexpr (ThreadGroup::kSharesWarp && kCentring != Centring::kNever) {
      Scale again;
      bool in_range;
      const Accumulate plain_squares =
          squares_at_once<1>(again, row_variance_shift(), 0, 0, numbers, in_range);
      if (plain) {
        scale = again;
        scale.rstd = plain_rstd(p_, plain_squares);
      }
    }
    if (tile_.first_thread()) row_.template store_statistics<kCentring>(scale);
    uint4 sums[kAdd ? kVectors : 1];  // before out may overwrite what they are made of
    if constexpr (kAdd) {
#pragma unroll 1
      for (int i = 0; i < kVectors; ++i) sums[i] = pack<T>(numbers(i));
    }
    Epilogue::template put<1, T>(p_, tile_, row_, false, [&]<bool>(int i) {
      return cold_result<T, kAccess, kFusedInput, kCentring>(p_, tile_.row(), head(), scale,
                                                             tile_.index(i));
    });
    if constexpr (kAdd) {
      tile_.template put<1, true>(row_.residual_out(), [&](int i) { return sums[i]; });
      tile_.flush(row_.residual_out());
    }
  }

 private:
  __device__ Accumulate row_variance_shift() const {
    return is_centred<kCentring>(p_) ? variance_shift_of<T>(p_, row_) : Accumulate(0);
  }
  __device__ std::int64_t head() const { return kHeads ? p_.heads.of(tile_.row()) : 0; }
  template <class OfVector>
  __device__ void store_sum(OfVector numbers) const {
    tile_.template put<kWeights, true>(row_.residual_out(),
                                       [&](int i) { return pack<T>(numbers(i)); });
    tile_.flush(row_.residual_out());
  }

  // The sum of squares of the row, whose i-th vector is numbers(i), from one pass over it; sets its
  // mean. sound: see is_far_from_shift.
  template <int kUnroll, class OfVector>
  __device__ Accumulate squares_at_once(Scale& scale, Accumulate variance_shift, int round,
                                        int exchange, OfVector numbers, bool& in_range) const {
    in_range = true;
    if (!is_centred<kCentring>(p_)) {
      return tile_.template reduce<Accumulate, kUnroll>(
          round, exchange, [&](int i) { return sum_of_squares<T>(numbers(i)); }, Sum());
    }
    scale.mean = variance_shift;
    Pair<Accumulate> sums = tile_.template reduce_part<Pair<Accumulate>, kUnroll>(
        round,
        [&](int i) {
          return sums_about_shift<T, kAccess, kCentring>(p_, numbers(i), scale, tile_.index(i));
        },
        Sum());
    if constexpr (ThreadGroup::kClusters) {
      thread_group_.send(exchange, sums.a);
      thread_group_.send(exchange + 1, sums.b);
      const Accumulate* totals = thread_group_.collect(exchange);
      const Accumulate* squares = thread_group_.collect(exchange + 1);
      sums.a = combine_slots_by_lanes<kMaxGroups>(totals, Sum());
      sums.b = combine_slots_by_lanes<kMaxGroups>(squares, Sum());
    }
    return is_far_from_shift<T>(scale, sums, p_.inverse_cols, in_range);
  }

  // The sum of squares of the scaled row, in two passes; sets its mean first.
  template <int kUnroll, class OfVector>
  __device__ Accumulate squares_of(Scale& scale, int round, int exchange, OfVector numbers) const {
    const auto over_row = [&](int i, auto of) {
      return of_deviations<T, kAccess, kCentring>(p_, numbers(i), scale, tile_.index(i), of);
    };
    const auto square = [&](int i) {
      return over_row(i, [](const Numbers<T>& x) { return sum_of_squares<T>(x); });
    };
    if (!is_centred<kCentring>(p_)) {
      return tile_.template reduce<Accumulate, kUnroll>(round, exchange, square, Sum());
    }
    Accumulate count = static_cast<Accumulate>(p_.cols), inverse = p_.inverse_cols;
    if constexpr (ThreadGroup::kClusters) {
      count = group_count(p_, thread_group_.rank);
      inverse = count > 0 ? 1 / count : Accumulate(0);
    }
    const Accumulate sum_of_part = tile_.template reduce_part<Accumulate, kUnroll>(
        round, [&](int i) { return sum<T>(deviations<T, kCentring>(numbers(i), scale)); }, Sum());
    const Accumulate squares = take_moments<T>(scale, sum_of_part, count, inverse, [&](auto of) {
      return tile_.template reduce_part<decltype(of(Numbers<T>())), kUnroll>(
          round + 1, [&](int i) { return over_row(i, of); }, Sum());
    });
    if constexpr (!ThreadGroup::kClusters) {
      return squares;
    } else {
      thread_group_.send(exchange, scale.mean);
      thread_group_.send(exchange + 1, squares);
      if constexpr (kCorrectsMean<T>) thread_group_.send(exchange + 2, scale.correction);
      const Accumulate* means = thread_group_.collect(exchange);
      const Accumulate* parts = thread_group_.collect(exchange + 1);
      const Accumulate* rests = kCorrectsMean<T> ? thread_group_.collect(exchange + 2) : nullptr;
      return merge_groups<T>(p_, means, parts, rests, scale);
    }
  }

  const Params& p_;
  const ThreadGroup& thread_group_;
  Tile tile_;
  Row row_;
  AffineParameters<T, kAccess, kCentring> columns_;
};

// Out of line, so that the common path stays short and keeps its registers.
template <class T, class ThreadGroup, Access kAccess, FusedInput kFusedInput, Centring kCentring,
          class Epilogue>
__device__ __noinline__ void rescale(const typename Epilogue::template Params<accumulate_t<T>>& p,
                                     bool plain, int first_block) {
  const ThreadGroup thread_group(p.lanes, p.blocks_per_row, first_block);
  HeldRow<T, ThreadGroup, kAccess, kFusedInput, kCentring, Epilogue>(p, thread_group)
      .run_scaled(plain);
}

// One row per thread group, read once. A block does threads / lanes rows (WarpThreadGroup), one row
// (BlockThreadGroup) or a part of one (ClusterThreadGroup). Shared memory: the sums of the warps,
// staged rows, and the results of unaligned rows. Limited by memory: few threads with several
// independent 16-byte loads each, many blocks per SM, so that some load while others store. Only
// rows with nothing beside them are held to the registers that this takes.
template <class T, class ThreadGroup, Access kAccess, FusedInput kFusedInput, Centring kCentring,
          class Epilogue>
__global__ void __launch_bounds__(ThreadGroup::kMaxThreads,
                                  min_blocks<T, ThreadGroup, kAccess, kFusedInput, kCentring>())
    rms_norm_row_kernel(
        const __grid_constant__ typename Epilogue::template Params<accumulate_t<T>> p) {
  if constexpr (runs_here<ThreadGroup>()) {
    const ThreadGroup thread_group(p.lanes, p.blocks_per_row, 0);
    HeldRow<T, ThreadGroup, kAccess, kFusedInput, kCentring, Epilogue> row(p, thread_group);
    if (p.overlap_launch) pdl_wait_and_launch();
    row.run();
  }
}

}  // namespace membound::cuda
