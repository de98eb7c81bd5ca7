// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch/launch.hpp"
#include "cuda/norm/rms_norm_generic.cuh"
#include "ops/rms_norm_generic.hpp"

namespace membound::cuda {

namespace {

constexpr int kHeldQuads = tuning::kGenericQuads;

template <class A>
struct GenericNormParams {
  RmsNormProblem problem;
  Heads heads;
  A weight_offset;
  A inverse_cols, eps;  // set by set_rstd, like the following members
  SafeRange<A> trusted;
  double exact_eps;
  int sqrt_eps_exponent;
  int threads;  // per row
  int rows_per_block;
};

// The numbers of one row before the norm: x, x + residual or x * silu(gate). A thread loads its
// first quads into registers, all at once; the rest of wider rows is read again in every pass.
template <class A>
class NormRow {
  using Params = GenericNormParams<A>;

 public:
  __device__ NormRow(const Params& p, std::int64_t row, const RowThreads& threads)
      : threads_(threads),
        cols_(p.problem.cols),
        gated_(p.problem.gate.data != nullptr && !p.problem.norm_before_gate),
        has_fused_(p.problem.residual.data != nullptr || gated_),
        x_(row_of(p.problem.x, row)),
        fused_(row_of(gated_ ? p.problem.gate : p.problem.residual, has_fused_ ? row : 0)) {
    RawQuad<A> x[kHeldQuads], fused[kHeldQuads];
#pragma unroll
    for (int i = 0; i < kHeldQuads; ++i) {
      const std::int64_t col = threads_.column(i);
      if (col >= cols_) continue;
      x[i] = fetch<A>(x_, col, cols_);
      if (has_fused_) fused[i] = fetch<A>(fused_, col, cols_);
    }
#pragma unroll
    for (int i = 0; i < kHeldQuads; ++i) {
      const std::int64_t col = threads_.column(i);
      if (col < cols_) held_[i] = joined(x[i], fused[i], col);
    }
  }

  // body(quad, col) for the quads of this thread, in order.
  template <class Body>
  __device__ void each(Body body) const {
#pragma unroll
    for (int i = 0; i < kHeldQuads; ++i) {
      const std::int64_t col = threads_.column(i);
      if (col < cols_) body(held_[i], col);
    }
    const std::int64_t step = std::int64_t{threads_.count} * kQuad;
#pragma unroll 1
    for (std::int64_t col = threads_.column(kHeldQuads); col < cols_; col += step) {
      RawQuad<A> fused;
      const RawQuad<A> x = fetch<A>(x_, col, cols_);
      if (has_fused_) fused = fetch<A>(fused_, col, cols_);
      body(joined(x, fused, col), col);
    }
  }

 private:
  __device__ Quad<A> joined(const RawQuad<A>& x, const RawQuad<A>& fused, std::int64_t col) const {
    const Quad<A> numbers = numbers_of<A>(x, x_, col, cols_);
    if (!has_fused_) return numbers;
    const Quad<A> more = numbers_of<A>(fused, fused_, col, cols_);
    return gated_ ? numbers * silu_of_quad(more) : numbers + more;
  }

  const RowThreads& threads_;
  const std::int64_t cols_;
  const bool gated_, has_fused_;
  const GenericRow<const char> x_, fused_;
  Quad<A> held_[kHeldQuads];
};

// Maps a row to its result: (scale * value - mean - correction) * rstd. The scale is a power of
// two, 1 unless sums of squares would overflow or underflow.
template <class A>
struct RowStatistics {
  A scale, mean, correction, rstd;

  __device__ A deviation(A value) const { return product(value, scale) - mean - correction; }
};

// The mean of the scaled row and its sum of squared deviations.
template <class A>
__device__ A squares_of(const GenericNormParams<A>& p, const NormRow<A>& row, RowThreads& threads,
                        RowStatistics<A>& of) {
  const std::int64_t cols = p.problem.cols;
  of.mean = of.correction = 0;
  if (p.problem.centred) {
    A sum = 0;
    row.each([&](const Quad<A>& quad, std::int64_t col) {
      sum += sum_of_quad<A>(cols - col, [&](int i) { return product(quad.at[i], of.scale); });
    });
    of.mean = threads.reduce(sum, Sum()) * p.inverse_cols;
  }
  Pair<A> sums(A(0));
  row.each([&](const Quad<A>& quad, std::int64_t col) {
    const auto deviation = [&](int i) { return of.deviation(quad.at[i]); };
    sums.a += sum_of_quad<A>(cols - col, deviation);
    sums.b += sum_of_quad<A>(cols - col, [&](int i) { return deviation(i) * deviation(i); });
  });
  if (!p.problem.centred) return threads.reduce(sums.b, Sum());
  const Pair<A> all = threads.reduce(sums, Sum());
  of.correction = all.a * p.inverse_cols;  // the rounding error of the mean
  return all.b - all.a * of.correction;
}

template <class A>
__device__ RowStatistics<A> statistics_of(const GenericNormParams<A>& p, const NormRow<A>& row,
                                          RowThreads& threads) {
  RowStatistics<A> of{.scale = A(1)};
#pragma unroll 1
  for (bool scaled = false;; scaled = true) {
    const A squares = squares_of(p, row, threads, of);
    if (scaled) {
      of.rstd = scaled_rstd(p, squares, exponent_of(of.scale));
      return of;
    }
    if (is_trusted(p, squares)) {
      of.rstd = plain_rstd(p, squares);
      return of;
    }
    A largest = 0;
    row.each([&](const Quad<A>& quad, std::int64_t) {
#pragma unroll
      for (int i = 0; i < kQuad; ++i) largest = Largest()(largest, fabs(quad.at[i]));
    });
    of.scale = power_of_two(row_exponent(p, threads.reduce(largest, Largest())), A());
  }
}

template <class A>
__global__ void __launch_bounds__(tuning::kGenericThreads)
    rms_norm_generic_kernel(const __grid_constant__ GenericNormParams<A> p) {
  pdl_wait_and_launch();
  const RmsNormProblem& problem = p.problem;
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t row =
      std::int64_t{blockIdx.x} * p.rows_per_block + (p.rows_per_block > 1 ? thread / p.threads : 0);
  if (row >= problem.rows) return;  // a whole warp; blocks of one row are as many as rows
  RowThreads threads{p.threads, p.rows_per_block > 1 ? thread % p.threads : thread, 0};
  const std::int64_t cols = problem.cols, head = p.heads.of(row);

  const NormRow<A> values(p, row, threads);
  const RowStatistics<A> of = statistics_of(p, values, threads);
  if (threads.rank == 0) {
    const A unscale = A(1) / of.scale;
    if (problem.rstd.data != nullptr)
      static_cast<A*>(problem.rstd.data)[problem.rstd.layout.offset(row)] = of.rstd * of.scale;
    if (problem.mean.data != nullptr) {
      static_cast<A*>(problem.mean.data)[problem.mean.layout.offset(row)] =
          (of.mean + of.correction) * unscale;
    }
  }

  const FactorRow<A> factor(problem.weight, p.weight_offset, head, cols);
  const bool has_bias = problem.bias.data != nullptr;
  const auto bias = row_of(problem.bias, has_bias ? head : 0);
  const bool gates_after = problem.gate.data != nullptr && problem.norm_before_gate;
  const auto gate = row_of(problem.gate, gates_after ? row : 0);
  const bool has_sum = problem.residual_out.data != nullptr;
  const auto sum = row_of(problem.residual_out, has_sum ? row : 0);
  const auto out = row_of(problem.out, row);
  const bool rounds = problem.rounding == Rounding::kBeforeWeight;
  values.each([&](const Quad<A>& value, std::int64_t col) {
    Quad<A> y;
#pragma unroll
    for (int i = 0; i < kQuad; ++i) y.at[i] = product(of.deviation(value.at[i]), of.rstd);
    if (rounds) y = rounded_to(y, problem.x.dtype);
    if (factor.present()) y = y * factor.at(col);
    if (gates_after) {
      if (rounds) y = rounded_to(y, problem.x.dtype);
      y = y * silu_of_quad(read<A>(gate, col, cols));
    }
    if (has_bias) y = y + read<A>(bias, col, cols);
    if (has_sum) write(sum, col, cols, value);
    write(out, col, cols, y);
  });
}

template <class A>
void launch_generic(const RmsNormProblem& problem, StreamView stream) {
  const auto config = tuning::generic_config(problem.rows, problem.cols);
  GenericNormParams<A> p{};
  p.problem = problem;
  p.heads = split_heads(problem.heads, problem.rows);
  p.weight_offset = static_cast<A>(problem.weight_offset);
  set_rstd(p, problem.cols, problem.eps, A());
  p.threads = config.threads;
  p.rows_per_block = config.rows_per_block;
  launch<rms_norm_generic_kernel<A>>(
      {.blocks = config.blocks, .threads = config.threads * config.rows_per_block}, stream,
      current_device(), p);
}

}  // namespace

void rms_norm_generic(const RmsNormProblem& problem, StreamView stream) {
  problem.accumulate == DType::kFloat64 ? launch_generic<double>(problem, stream)
                                        : launch_generic<float>(problem, stream);
}

}  // namespace membound::cuda
