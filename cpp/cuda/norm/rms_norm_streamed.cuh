// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Norms of rows that are read from memory again for each pass.
#include "cuda/norm/rms_norm_kernels.cuh"
#include "cuda/norm/rms_norm_shift.cuh"

namespace membound::cuda {

// As HeldRow::squares_at_once.
template <class T, Access kAccess, Centring kCentring, class Tile, class Row>
__device__ inline accumulate_t<T> streamed_squares_at_once(const RmsNormParams<accumulate_t<T>>& p,
                                                           Tile& tile, const Row& row,
                                                           RowScale<accumulate_t<T>>& scale,
                                                           int exchange, bool& in_range) {
  using Accumulate = accumulate_t<T>;
  in_range = true;
  if (!is_centred<kCentring>(p)) {
    return tile.reduce(exchange, [&](int at) { return sum_of_squares<T>(row.load(at)); }, Sum());
  }
  scale.mean = variance_shift_of<T>(p, row);
  tile.each_group([&](int group) {
    const Pair<Accumulate> sums = tile.reduce_group(
        group,
        [&](int at) { return sums_about_shift<T, kAccess, kCentring>(p, row.load(at), scale, at); },
        Sum());
    tile.send(exchange, group, sums.a);
    tile.send(exchange + 1, group, sums.b);
  });
  const Accumulate a = combine_slots<kMaxGroups>(tile.collect(exchange), Sum());
  const Accumulate b = combine_slots<kMaxGroups>(tile.collect(exchange + 1), Sum());
  return moments_from_shifted_sums<T>(scale, {a, b}, p.inverse_cols, in_range);
}

// As HeldRow::squares_of, group by group, so that the second and third read of a group hit L2.
// numbers(index): the numbers of a vector.
template <class T, Access kAccess, Centring kCentring, class Tile, class OfVector>
__device__ inline accumulate_t<T> streamed_squares(const RmsNormParams<accumulate_t<T>>& p,
                                                   Tile& tile, OfVector numbers,
                                                   RowScale<accumulate_t<T>>& scale, int exchange) {
  using Accumulate = accumulate_t<T>;
  RowScale<Accumulate> so_far = scale;
  Accumulate squares;
  const auto over_row = [&](int at, auto of) {
    return apply_to_deviations<T, kAccess, kCentring>(p, numbers(at), so_far, at, of);
  };
  const auto square = [&](int at) {
    return over_row(at, [](const Numbers<T>& x) { return sum_of_squares<T>(x); });
  };
  if (!is_centred<kCentring>(p)) return tile.template reduce<1>(exchange, square, Sum());
  tile.each_group([&](int group) {
    const Accumulate count = group_count(p, group);
    const Accumulate inverse = count > 0 ? 1 / count : Accumulate(0);
    so_far = scale;
    const Accumulate sum_of_group = tile.template reduce_group<1>(
        group, [&](int at) { return sum<T>(deviations<T, kCentring>(numbers(at), so_far)); },
        Sum());
    squares = two_pass_moments<T>(so_far, sum_of_group, count, inverse, [&](auto of) {
      return tile.template reduce_group<1>(group, [&](int at) { return over_row(at, of); }, Sum());
    });
    tile.send(exchange, group, so_far.mean);
    tile.send(exchange + 1, group, squares);
    if constexpr (kCorrectsMean<T>) tile.send(exchange + 2, group, so_far.correction);
  });
  if (p.groups == 1) {  // the same bits as a row that one block holds
    scale = so_far;
    return squares;
  }
  const Accumulate* means = tile.collect(exchange);
  const Accumulate* parts = tile.collect(exchange + 1);
  const Accumulate* rests = kCorrectsMean<T> ? tile.collect(exchange + 2) : nullptr;
  return merge_groups<T>(p, means, parts, rests, scale);
}

// A cluster (or block) works on one row that is too wide to hold, or that a GPU without clusters
// cannot share: it reads the row once for the sum and again for the result. Shared memory holds the
// sums of warps and groups. Limited by memory bandwidth; the second read by L2 bandwidth where the
// rows in flight fit L2.
template <class T, int kVectorsPerItem, int kMaxWarps, Access kAccess, FusedInput kFusedInput,
          Centring kCentring, class Epilogue>
__global__ void __launch_bounds__(kMaxWarps* kWarpLanes) rms_norm_streamed_kernel(
    const __grid_constant__ typename Epilogue::template Params<accumulate_t<T>> p) {
  using Accumulate = accumulate_t<T>;
  using Rounds = RoundsOf<kCentring>;
  using Tile = StreamedTile<Accumulate, kVectorsPerItem, kMaxWarps,
                            Rounds::kCount + Epilogue::kRounds, kAccess>;
  __shared__ typename Tile::Shared shared;
  Tile tile(shared, p.blocks_per_row, p.groups, p.segments_per_group, p.vectors_per_item);
  tile.start();
  using Row = NormRow<T, kAccess, kFusedInput>;
  constexpr bool kAdd = kFusedInput == FusedInput::kResidual;
  constexpr bool kAddLater = kAdd && kAccess != Access::kStrided;
  const Row row(p, cluster_index());
  if (p.overlap_launch) pdl_wait_and_launch();

  RowScale<Accumulate> scale;
  bool in_range;
  const Accumulate plain =
      streamed_squares_at_once<T, kAccess, kCentring>(p, tile, row, scale, 0, in_range);
  scale.rstd = plain_rstd(p, plain);
  if (!in_range || !is_trusted(p, plain)) {
    const auto numbers = [&](int at) {
      return cold_vector<T, kAccess, kFusedInput>(p, cluster_index(), at).numbers(p);
    };
    const Accumulate largest = tile.template reduce<1>(
        Rounds::kScaledLargest, [&](int at) { return largest_magnitude<T>(numbers(at)); },
        Largest());
    const int exponent = row_exponent(p, largest);
    scale = {.scale = power_of_two(exponent, Accumulate())};
    const Accumulate squares =
        streamed_squares<T, kAccess, kCentring>(p, tile, numbers, scale, Rounds::kScaledMoments);
    settle<Accumulate, kCentring>(p, scale, squares, exponent);
  }
  if (tile.first_thread()) row.template store_statistics<kCentring>(scale);
  const std::int64_t head = kAccess == Access::kAligned ? 0 : p.heads.of(cluster_index());
  const AffineParameters<T, kAccess, kCentring> columns(p, head);
  const auto result = [&](const typename Row::Vector& vector, int at) {
    // Out of line: unrolled, it would be inlined many times.
    if constexpr (kAccess == Access::kStrided && kVectorsPerItem > 0) {
      return cold_result<T, kAccess, kFusedInput, kCentring>(p, cluster_index(), head, scale, at);
    } else {
      return row.result(columns.template normalised<false>(
                            vector.numbers(p), scale, columns.load(at), columns.load_bias(at), at),
                        vector);
    }
  };
  const auto store = Epilogue::template stream<T>(
      p, tile, row, [&](int at) { return result(row.load_vector(at), at); });
  tile.each_segment([&](int group, int segment) {
    Numbers<T> sums[kAddLater ? kVectorsPerItem : 1];
    store(group, segment, [&](int v, int at) {
      const typename Row::Vector vector = row.load_vector(at);
      if constexpr (kAddLater) sums[v] = vector.numbers(p);
      const uint4 y = result(vector, at);
      // After the result: residual_out may alias an input that result() reads again.
      if constexpr (kAdd && !kAddLater) row.residual_out().store(at, pack<T>(vector.numbers(p)));
      return y;
    });
    if constexpr (kAddLater) {
      tile.write(row.residual_out(), group, segment, [&](int v, int) { return pack<T>(sums[v]); });
    }
  });
}

}  // namespace membound::cuda
