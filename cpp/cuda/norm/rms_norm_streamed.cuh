// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Rows of a norm that are read again for each pass.
#include "cuda/norm/rms_norm_kernels.cuh"
#include "cuda/norm/rms_norm_shift.cuh"

namespace membound::cuda {

// As HeldRow::squares_at_once.
template <class T, Access kAccess, Centring kCentring, class Tile, class Row>
__device__ inline accumulate_t<T> streamed_squares_at_once(const RmsNormParams<accumulate_t<T>>& p,
                                                           Tile& tile, const Row& row,
                                                           RowScale<accumulate_t<T>>& scale,
                                                           int exchange, bool& sound) {
  using Accumulate = accumulate_t<T>;
  sound = true;
  if (!is_centred<kCentring>(p)) {
    return tile.reduce(exchange, [&](int at) { return sum_of_squares<T>(row.load(at)); }, Sum());
  }
  scale.mean = pivot_of<T>(p, row);
  tile.each_group([&](int group) {
    const Pair<Accumulate> sums = tile.reduce_group(
        group,
        [&](int at) { return sums_about_pivot<T, kAccess, kCentring>(p, row.load(at), scale, at); },
        Sum());
    tile.send(exchange, group, sums.a);
    tile.send(exchange + 1, group, sums.b);
  });
  const Accumulate a = combine_slots<kMaxGroups>(tile.collect(exchange), Sum());
  const Accumulate b = combine_slots<kMaxGroups>(tile.collect(exchange + 1), Sum());
  return leave_pivot<T>(scale, {a, b}, p.inverse_cols, sound);
}

// As HeldRow::squares_of, group by group: the second and third read of a group come from L2.
// numbers(index): of a chunk.
template <class T, Access kAccess, Centring kCentring, class Tile, class OfChunk>
__device__ inline accumulate_t<T> streamed_squares(const RmsNormParams<accumulate_t<T>>& p,
                                                   Tile& tile, OfChunk numbers,
                                                   RowScale<accumulate_t<T>>& scale, int exchange) {
  using Accumulate = accumulate_t<T>;
  RowScale<Accumulate> so_far = scale;
  Accumulate squares;
  const auto over_row = [&](int at, auto of) {
    return of_deviations<T, kAccess, kCentring>(p, numbers(at), so_far, at, of);
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
    squares = take_moments<T>(so_far, sum_of_group, count, inverse, [&](auto of) {
      return tile.template reduce_group<1>(group, [&](int at) { return over_row(at, of); }, Sum());
    });
    tile.send(exchange, group, so_far.mean);
    tile.send(exchange + 1, group, squares);
    if constexpr (kCorrectsMean<T>) tile.send(exchange + 2, group, so_far.correction);
  });
  if (p.groups == 1) {  // as a row that one block holds
    scale = so_far;
    return squares;
  }
  const Accumulate* means = tile.collect(exchange);
  const Accumulate* parts = tile.collect(exchange + 1);
  const Accumulate* rests = kCorrectsMean<T> ? tile.collect(exchange + 2) : nullptr;
  return merge_groups<T>(p, means, parts, rests, scale);
}

// A row too wide to hold, or a GPU without clusters: one row per cluster (or block), read once for
// its sum and again for its result. Shared memory: the sums of the warps and groups, and the
// results of shifted rows. Limited by memory, the second read by L2 where the rows in flight fit
// it.
template <class T, int kVecs, int kMaxWarps, Access kAccess, Beside kBeside, Centring kCentring,
          class Sink>
__global__ void __launch_bounds__(kMaxWarps* kWarpLanes) rms_norm_streamed_kernel(
    const __grid_constant__ typename Sink::template Params<accumulate_t<T>> p) {
  using Accumulate = accumulate_t<T>;
  using Rounds = RoundsOf<kCentring>;
  using Tile = StreamedTile<Accumulate, kVecs, kMaxWarps, Rounds::kCount + Sink::kRounds, kAccess>;
  __shared__ typename Tile::Shared shared;
  Tile tile(shared, p.blocks_per_row, p.groups, p.segments_per_group, p.vecs);
  tile.start();
  using Row = NormRow<T, kAccess, kBeside>;
  constexpr bool kAdd = kBeside == Beside::kResidual;
  constexpr bool kAddLater = kAdd && kAccess != Access::kAny;
  const Row row(p, cluster_index());
  if (p.overlap_launch) begin_overlapped();

  RowScale<Accumulate> scale;
  bool sound;
  const Accumulate plain =
      streamed_squares_at_once<T, kAccess, kCentring>(p, tile, row, scale, 0, sound);
  scale.rstd = plain_rstd(p, plain);
  if (!sound || !is_trusted(p, plain)) {
    const auto numbers = [&](int at) {
      return cold_chunk<T, kAccess, kBeside>(p, cluster_index(), at).numbers(p);
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
  const Columns<T, kAccess, kCentring> columns(p, head);
  const auto result = [&](const typename Row::Chunk& chunk, int at) {
    if constexpr (kAccess == Access::kAny && kVecs > 0) {  // many copies side by side
      return cold_result<T, kAccess, kBeside, kCentring>(p, cluster_index(), head, scale, at);
    } else {
      return row.result(columns.template normalised<false>(
                            chunk.numbers(p), scale, columns.load(at), columns.load_bias(at), at),
                        chunk);
    }
  };
  const auto store = Sink::template stream<T>(
      p, tile, row, [&](int at) { return result(row.load_chunk(at), at); });
  tile.each_segment([&](int group, int segment) {
    Numbers<T> sums[kAddLater ? kVecs : 1];
    store(group, segment, [&](int v, int at) {
      const typename Row::Chunk chunk = row.load_chunk(at);
      if constexpr (kAddLater) sums[v] = chunk.numbers(p);
      const uint4 y = result(chunk, at);
      // Not before: it may be read again, and this may be in place.
      if constexpr (kAdd && !kAddLater) row.residual_out().store(at, pack<T>(chunk.numbers(p)));
      return y;
    });
    if constexpr (kAddLater) {
      tile.write(row.residual_out(), group, segment, [&](int v, int) { return pack<T>(sums[v]); });
    }
  });
}

}  // namespace membound::cuda
