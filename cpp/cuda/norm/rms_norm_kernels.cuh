// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/norm/rms_norm_shift.cuh"
#include "cuda/norm/rms_norm_source.cuh"

namespace membound::cuda {

// The epilogue of the plain norm: it stores the result to out. An epilogue also says how many
// exchange rounds it needs and whether residual_out is written before it.
struct StoreResult {
  template <class Accumulate>
  using Params = RmsNormParams<Accumulate>;
  static constexpr int kRounds = 0;  // rounds of the exchange between blocks, on top of the norm's
  static constexpr bool kAfterSum = false;  // whether residual_out is written before the result
  static constexpr bool kAnySegmentLength = true;  // any number of vectors per segment
  static constexpr bool kQuantises = false;

  // Vector i of the held row is make<plain>(i). kUnrolled: as for RegisterTile::write_out.
  template <int kUnrolled, class T, class Tile, class Row, class Make>
  static __device__ void write_out(const Params<accumulate_t<T>>&, const Tile& tile, const Row& row,
                                   bool plain, Make make) {
    const auto put_as = [&]<bool kPlain>() {
      tile.template write_out<kUnrolled>(
          row.out(), [&](int i) { return make.template operator()<kPlain>(i); });
    };
    plain ? put_as.template operator()<true>() : put_as.template operator()<false>();
  }
  // Returns a function that writes a segment of a streamed row, whose vector v is make(v, at), `at`
  // being its index in the row.
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

// One row of a thread group, read once and written once: run() normalises it from one-pass sums and
// falls back to run_scaled() where those may have overflowed, underflowed or cancelled.
template <class T, class ThreadGroup, Access kAccess, FusedInput kFusedInput, Centring kCentring,
          class Epilogue>
class HeldRow {
  using Accumulate = accumulate_t<T>;
  using Params = typename Epilogue::template Params<Accumulate>;
  using Scale = RowScale<Accumulate>;
  using Tile = RegisterTile<ThreadGroup, kAccess>;
  using Rounds = RoundsOf<kCentring>;
  static constexpr int kVectors = Tile::kVectors;
  static constexpr bool kAdd = kFusedInput == FusedInput::kResidual;
  // Aligned kernels know heads only where rows share a warp; wider rows with heads take the kernels
  // of unaligned rows.
  static constexpr bool kHeads = kAccess != Access::kAligned || ThreadGroup::kSplitRows;
  using Row = NormRow<T, kAccess, kFusedInput>;
  static constexpr bool kStagesRow =
      kStaged<T, ThreadGroup, kAccess, kFusedInput, kCentring, Epilogue::kQuantises>;
  using Held = std::conditional_t<kStagesRow, StagedVectors<T, ThreadGroup, kFusedInput, kCentring>,
                                  RegisterVectors<T, ThreadGroup, kAccess, kFusedInput>>;
  // Vectors that are unrolled together; kWeights: whose weights are loaded together. Both are small
  // for staged rows, to stay within the registers that min_blocks allows.
  static constexpr int kUnroll = kStagesRow ? 1 : kVectors;
  // Results that do not fit registers are staged in shared memory until their scale is known.
  static constexpr bool kStagesResults = kStagesRow && Epilogue::kQuantises && kVectors > 6;
  static constexpr bool kMayCentre = kCentring != Centring::kNever;
  // Long centred rows load the weight and bias of the next vector while they work on this one. Rows
  // of few vectors per thread are slower that way.
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
    held.fetch(p_);
    // Loads of the weights are issued before the reduction, which hides their latency (1 x 4096 on
    // H200: 2.16 -> 1.51 us).
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
    load_weights();
    // Staged rows load the elements of the variance shift while their copies are in flight; after
    // start() ptxas would sink these loads below the wait.
    typename Row::Vector first[kShiftVectors<T>];
    if constexpr (kStagesRow) {
      if (is_centred<kCentring>(p_)) {
#pragma unroll
        for (int i = 0; i < kShiftVectors<T>; ++i) first[i] = row_.load_vector(i);
      }
    }
    thread_group_.start();
    held.receive();
    Accumulate variance_shift = 0;
    if constexpr (ThreadGroup::kSharesWarp && kAccess == Access::kUnaligned) {
      if (is_centred<kCentring>(p_)) {
        variance_shift = shift_from_lanes<T>(p_, thread_group_.size,
                                             [&](int i) { return held.at(i).numbers(p_); });
      }
    } else if constexpr (!kStagesRow) {
      variance_shift = row_variance_shift();
    } else if (is_centred<kCentring>(p_)) {
      variance_shift = shift_from<T>(p_, [&](int i) { return first[i].numbers(p_); });
    }
    // Early biases double the registers for parameters, which neither staged rows nor float32 have
    // to spare (float32 16384 x 4096 with them: 131 -> 136 us).
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
      Epilogue::template write_out<kWeights, T>(p_, tile_, row_, plain, result);
    }
    if constexpr (kAdd && !Epilogue::kAfterSum) store_sum(numbers);
  }

  // The overflow-safe path. It reads the row again, so that the common path need not keep it; rows
  // of the same warp that need no redo come along with `plain`.
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
    uint4 sums[kAdd ? kVectors : 1];  // before out may overwrite its inputs
    if constexpr (kAdd) {
#pragma unroll 1
      for (int i = 0; i < kVectors; ++i) sums[i] = pack<T>(numbers(i));
    }
    Epilogue::template write_out<1, T>(p_, tile_, row_, false, [&]<bool>(int i) {
      return cold_result<T, kAccess, kFusedInput, kCentring>(p_, tile_.row(), head(), scale,
                                                             tile_.index(i));
    });
    if constexpr (kAdd) {
      tile_.template write_out<1>(row_.residual_out(), [&](int i) { return sums[i]; });
    }
  }

 private:
  __device__ Accumulate row_variance_shift() const {
    return is_centred<kCentring>(p_) ? variance_shift_of<T>(p_, row_) : Accumulate(0);
  }
  __device__ std::int64_t head() const { return kHeads ? p_.heads.of(tile_.row()) : 0; }
  template <class OfVector>
  __device__ void store_sum(OfVector numbers) const {
    tile_.template write_out<kWeights>(row_.residual_out(),
                                       [&](int i) { return pack<T>(numbers(i)); });
  }

  // The sum of squares of the row, whose i-th vector is numbers(i), from one pass over it; sets the
  // mean. in_range: see moments_from_shifted_sums.
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
    return moments_from_shifted_sums<T>(scale, sums, p_.inverse_cols, in_range);
  }

  // The sum of squares of the scaled row, in two passes; sets the mean first.
  template <int kUnroll, class OfVector>
  __device__ Accumulate squares_of(Scale& scale, int round, int exchange, OfVector numbers) const {
    const auto over_row = [&](int i, auto of) {
      return apply_to_deviations<T, kAccess, kCentring>(p_, numbers(i), scale, tile_.index(i), of);
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
    const Accumulate squares =
        two_pass_moments<T>(scale, sum_of_part, count, inverse, [&](auto of) {
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

// The overflow-safe path, out of line so that the common path stays short and keeps its registers.
template <class T, class ThreadGroup, Access kAccess, FusedInput kFusedInput, Centring kCentring,
          class Epilogue>
__device__ __noinline__ void rescale(const typename Epilogue::template Params<accumulate_t<T>>& p,
                                     bool plain, int first_block) {
  const ThreadGroup thread_group(p.lanes, p.blocks_per_row, first_block);
  HeldRow<T, ThreadGroup, kAccess, kFusedInput, kCentring, Epilogue>(p, thread_group)
      .run_scaled(plain);
}

// A block works on several rows (LaneThreadGroup, CoarsenedWarpThreadGroup), one row
// (BlockThreadGroup) or a part of one (ClusterThreadGroup), and reads each once. Shared memory
// holds the warps' sums and staged rows. Limited by memory bandwidth: few threads with several
// independent 16-byte loads each and many blocks per SM, so that some load while others store.
// min_blocks caps registers for that; with a fused input only SmallBlockThreadGroup is capped.
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
