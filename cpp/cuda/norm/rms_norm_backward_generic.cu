// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch/launch.hpp"
#include "cuda/norm/rms_norm_generic.cuh"
#include "cuda/row/column_sum.cuh"
#include "ops/rms_norm_generic.hpp"

namespace membound::cuda {

namespace {

constexpr int kHeldQuads = tuning::kGenericGradientQuads;

template <class A>
struct GenericGradientParams {
  RmsNormBackwardProblem problem;
  A weight_offset, inverse_cols;
  A* partials[2];  // [partial rows][heads][cols] of dweight and dbias; null: not wanted
  int partial_rows;
  int threads;  // per row
};

// Column sums over the rows of one block: a thread's first quads are in registers, the others in
// the block's partial row, which no other block touches.
template <class A>
class ColumnSum {
 public:
  __device__ ColumnSum(A* partial, const RowThreads& threads, std::int64_t cols)
      : partial_(partial), threads_(threads), cols_(cols) {
    if (partial_ == nullptr) return;
    for (std::int64_t col = threads_.column(kHeldQuads); col < cols_;
         col += std::int64_t{threads_.count} * kQuad) {
      store(col, Quad<A>{});
    }
  }
  __device__ bool wanted() const { return partial_ != nullptr; }
  // held: the number of the quad in registers, or kHeldQuads for a quad in memory.
  template <class Term>
  __device__ void add(int held, std::int64_t col, Term term) {
    if (partial_ == nullptr) return;
    Quad<A> sum;
    if (held == kHeldQuads) {
#pragma unroll
      for (int i = 0; i < kQuad; ++i) sum.at[i] = col + i < cols_ ? partial_[col + i] : A(0);
    } else {
      sum = sums_[held];
    }
#pragma unroll
    for (int i = 0; i < kQuad; ++i) sum.at[i] += term(i);
    if (held == kHeldQuads) {
      store(col, sum);
    } else {
      sums_[held] = sum;
    }
  }
  __device__ void finish() const {
    if (partial_ == nullptr) return;
#pragma unroll
    for (int i = 0; i < kHeldQuads; ++i) {
      const std::int64_t col = threads_.column(i);
      if (col < cols_) store(col, sums_[i]);
    }
  }

 private:
  __device__ void store(std::int64_t col, const Quad<A>& sum) const {
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      if (col + i < cols_) partial_[col + i] = sum.at[i];
    }
  }

  A* const partial_;
  const RowThreads& threads_;
  const std::int64_t cols_;
  Quad<A> sums_[kHeldQuads] = {};
};

// dy and x of one row. A thread's first quads are in registers, all loaded at once; the rest of a
// wide row is read again wherever it is needed.
template <class A>
class GradientRow {
 public:
  __device__ GradientRow(const RmsNormBackwardProblem& problem, std::int64_t row,
                         const RowThreads& threads)
      : threads_(threads),
        cols_(problem.cols),
        dy_(row_of(problem.dy, row)),
        x_(row_of(problem.x, row)) {
    RawQuad<A> dy[kHeldQuads], x[kHeldQuads];
#pragma unroll
    for (int i = 0; i < kHeldQuads; ++i) {
      const std::int64_t col = threads_.column(i);
      if (col >= cols_) continue;
      dy[i] = fetch<A>(dy_, col, cols_);
      x[i] = fetch<A>(x_, col, cols_);
    }
#pragma unroll
    for (int i = 0; i < kHeldQuads; ++i) {
      const std::int64_t col = threads_.column(i);
      if (col >= cols_) continue;
      held_dy_[i] = numbers_of<A>(dy[i], dy_, col, cols_);
      held_x_[i] = numbers_of<A>(x[i], x_, col, cols_);
    }
  }

  // Calls body(held, dy, x, col) for the quads of this thread, in order; held as in ColumnSum::add.
  template <class Body>
  __device__ void each(Body body) const {
#pragma unroll
    for (int i = 0; i < kHeldQuads; ++i) {
      const std::int64_t col = threads_.column(i);
      if (col < cols_) body(i, held_dy_[i], held_x_[i], col);
    }
    const std::int64_t step = std::int64_t{threads_.count} * kQuad;
#pragma unroll 1
    for (std::int64_t col = threads_.column(kHeldQuads); col < cols_; col += step) {
      const RawQuad<A> dy = fetch<A>(dy_, col, cols_), x = fetch<A>(x_, col, cols_);
      body(kHeldQuads, numbers_of<A>(dy, dy_, col, cols_), numbers_of<A>(x, x_, col, cols_), col);
    }
  }

 private:
  const RowThreads& threads_;
  const std::int64_t cols_;
  const GenericRow<const char> dy_, x_;
  Quad<A> held_dy_[kHeldQuads], held_x_[kHeldQuads];
};

template <class A>
struct Statistics {
  A mean, rstd;
};
template <class A>
__device__ inline A statistic_of(const InputRows& rows, std::int64_t row) {
  return rows.data == nullptr ? A(0) : number_at<A>(row_of(rows, row).first, rows.dtype);
}

// A quad as the gradient sees it: h, the normalised numbers; t, their incoming gradient (dy, or dy
// times the silu of a gate after the norm); g, t times the weight; z and silu, the gate and its
// silu. Elements past the row are zero.
template <class A>
struct Terms {
  Quad<A> h, t, g, z, silu;
};

template <class A>
class RowGradient {
  using Params = GenericGradientParams<A>;

 public:
  __device__ RowGradient(const Params& p, std::int64_t row, std::int64_t head)
      : problem_(p.problem),
        gated_(problem_.gate.data != nullptr),
        norm_first_(problem_.norm_before_gate),
        gate_(row_of(problem_.gate, gated_ ? row : 0)),
        factor_(problem_.weight, p.weight_offset, head, problem_.cols),
        of_{statistic_of<A>(problem_.mean, row), statistic_of<A>(problem_.rstd, row)} {}

  __device__ A rstd() const { return of_.rstd; }
  __device__ Quad<A> weighted(const Quad<A>& quad, std::int64_t col) const {
    return factor_.present() ? quad * factor_.at(col) : quad;
  }
  // Rounds what Rounding::kBeforeWeight rounds.
  __device__ Quad<A> rounded(const Quad<A>& quad) const {
    return problem_.rounding == Rounding::kBeforeWeight ? rounded_to(quad, problem_.rounded_to)
                                                        : quad;
  }

  __device__ Terms<A> terms(const Quad<A>& dy, const Quad<A>& x, std::int64_t col) const {
    Terms<A> of;
    of.t = dy;
    Quad<A> value = x;
    if (gated_) {
      of.z = read<A>(gate_, col, problem_.cols);
      of.silu = silu_of_quad(of.z);
      if (norm_first_) {
        of.t = dy * of.silu;
      } else {
        value = x * of.silu;
      }
    }
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      const A deviation = col + i < problem_.cols ? value.at[i] - of_.mean : A(0);
      of.h.at[i] = product(deviation, of_.rstd);
    }
    of.g = weighted(of.t, col);
    return of;
  }

  // Gradient of the gate z; gradient: that of what was normalised.
  __device__ Quad<A> of_gate(const Terms<A>& of, const Quad<A>& dy, const Quad<A>& x,
                             const Quad<A>& gradient, std::int64_t col) const {
    Quad<A> slope;
#pragma unroll
    for (int i = 0; i < kQuad; ++i) slope.at[i] = silu_slope(of.z.at[i], sigmoid<A>(of.z.at[i]));
    if (!norm_first_) return gradient * x * slope;
    return dy * rounded(weighted(rounded(of.h), col)) * slope;
  }
  __device__ bool gates_first() const { return gated_ && !norm_first_; }

 private:
  const RmsNormBackwardProblem& problem_;
  const bool gated_, norm_first_;
  const GenericRow<const char> gate_;
  const FactorRow<A> factor_;
  const Statistics<A> of_;
};

template <class A>
__device__ void write_rows(const GenericGradientParams<A>& p, std::int64_t row,
                           const GradientRow<A>& inputs, const RowGradient<A>& gradient,
                           const Pair<A>& means) {
  const RmsNormBackwardProblem& problem = p.problem;
  const bool has_sum = problem.dsum.data != nullptr, has_dx = problem.dx.data != nullptr;
  const bool has_dresidual = problem.dresidual.data != nullptr;
  const bool has_dgate = problem.dgate.data != nullptr;
  const auto dsum = row_of(problem.dsum, has_sum ? row : 0);
  const auto dx = row_of(problem.dx, has_dx ? row : 0);
  const auto dresidual = row_of(problem.dresidual, has_dresidual ? row : 0);
  const auto dgate = row_of(problem.dgate, has_dgate ? row : 0);
  const std::int64_t cols = problem.cols;
  inputs.each([&](int, const Quad<A>& dy, const Quad<A>& x, std::int64_t col) {
    const Terms<A> of = gradient.terms(dy, x, col);
    Quad<A> found;
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      found.at[i] = product(of.g.at[i] - means.b - product(of.h.at[i], means.a), gradient.rstd());
    }
    Quad<A> of_gate;
    if (has_dgate) of_gate = gradient.of_gate(of, dy, x, found, col);
    if (gradient.gates_first()) found = found * of.silu;
    if (has_sum) found = found + read<A>(dsum, col, cols);
    if (has_dx) write(dx, col, cols, found);
    if (has_dresidual) write(dresidual, col, cols, found);
    if (has_dgate) write(dgate, col, cols, of_gate);
  });
}

// A block takes every partial_rows-th row of one head, writes its gradients and leaves one row of
// partial sums of dweight, and of dbias. Shared memory: the sums of the warps.
template <class A>
__global__ void __launch_bounds__(tuning::kGenericThreads)
    rms_norm_backward_generic_kernel(const __grid_constant__ GenericGradientParams<A> p) {
  pdl_wait_and_launch();
  const RmsNormBackwardProblem& problem = p.problem;
  RowThreads threads{p.threads, static_cast<int>(threadIdx.x), 0};
  const std::int64_t cols = problem.cols, heads = problem.heads;
  const std::int64_t head = blockIdx.x % heads, part = blockIdx.x / heads;
  const auto partial = [&](int kind) {
    A* partials = p.partials[kind];
    return partials == nullptr ? nullptr : partials + (part * heads + head) * cols;
  };
  ColumnSum<A> of_weight(partial(0), threads, cols), of_bias(partial(1), threads, cols);
  const bool wants_rows = problem.dx.data != nullptr || problem.dresidual.data != nullptr ||
                          problem.dgate.data != nullptr;
#pragma unroll 1
  for (std::int64_t at = part; at < problem.rows / heads; at += p.partial_rows) {
    const std::int64_t row = at * heads + head;
    const GradientRow<A> inputs(problem, row, threads);
    const RowGradient<A> gradient(p, row, head);
    Pair<A> sums(A(0));
    inputs.each([&](int held, const Quad<A>& dy, const Quad<A>& x, std::int64_t col) {
      const Terms<A> of = gradient.terms(dy, x, col);
      sums.a += sum_of_quad<A>(kQuad, [&](int i) { return product(of.g.at[i], of.h.at[i]); });
      sums.b += sum_of_quad<A>(cols - col, [&](int i) { return of.g.at[i]; });
      const Quad<A> h = gradient.rounded(of.h);
      of_weight.add(held, col, [&](int i) { return product(of.t.at[i], h.at[i]); });
      of_bias.add(held, col, [&](int i) { return of.t.at[i]; });
    });
    if (!wants_rows) continue;
    Pair<A> means = threads.reduce(sums, Sum());
    means.a = product(means.a, p.inverse_cols);
    means.b = problem.mean.data != nullptr ? product(means.b, p.inverse_cols) : A(0);
    write_rows(p, row, inputs, gradient, means);
  }
  of_weight.finish();
  of_bias.finish();
}

template <class A>
void launch_sums(const GenericGradientParams<A>& p, int device, StreamView stream) {
  const RmsNormBackwardProblem& problem = p.problem;
  const auto sums_of = [](const OutputColumns& to, A* partials) {
    return ColumnSums<A>{to.data, to.stride, to.dtype, partials, to.head_stride};
  };
  const ColumnSums<A> weight = sums_of(problem.dweight, p.partials[0]);
  const ColumnSums<A> bias = sums_of(problem.dbias, p.partials[1]);
  const bool both = weight.data != nullptr && bias.data != nullptr;
  launch_column_sums(PartialSumsParams<A>{{weight.data != nullptr ? weight : bias, bias},
                                          p.partial_rows,
                                          problem.cols * problem.heads,
                                          problem.cols,
                                          0,
                                          problem.accumulate_sums},
                     both, device, stream);
}

template <class A>
void launch_generic(const RmsNormBackwardProblem& problem, StreamView stream) {
  const bool weight = problem.dweight.data != nullptr, bias = problem.dbias.data != nullptr;
  const auto config =
      tuning::generic_backward_config(problem.rows, problem.cols, problem.heads, weight || bias);
  GenericGradientParams<A> p{};
  p.problem = problem;
  p.weight_offset = static_cast<A>(problem.weight_offset);
  p.inverse_cols = A(1) / static_cast<A>(problem.cols);
  p.partial_rows = config.partial_rows;
  p.threads = config.threads;
  const std::int64_t of_kind = config.partial_rows * problem.heads * problem.cols;
  A* const workspace = static_cast<A*>(problem.workspace);
  if (weight) p.partials[0] = workspace;
  if (bias) p.partials[1] = workspace + (weight ? of_kind : 0);
  const int device = current_device();
  launch<rms_norm_backward_generic_kernel<A>>(
      {.blocks = config.partial_rows * problem.heads, .threads = config.threads}, stream, device,
      p);
  if (weight || bias) launch_sums(p, device, stream);
}

}  // namespace

void rms_norm_backward_generic(const RmsNormBackwardProblem& problem, StreamView stream) {
  problem.accumulate == DType::kFloat64 ? launch_generic<double>(problem, stream)
                                        : launch_generic<float>(problem, stream);
}

}  // namespace membound::cuda
