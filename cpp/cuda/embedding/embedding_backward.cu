// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/dispatch.hpp"
#include "cuda/embedding/embedding_backward_kernels.cuh"
#include "cuda/launch/launch.hpp"

namespace membound::cuda {

namespace {

using Problem = EmbeddingBackwardProblem;

// float64 is processed by elements, half a vector each.
template <class T>
bool all_take_vectors(const Problem& p) {
  if (sizeof(T) == 8) return false;
  const bool wide = p.out_dtype == DType::kFloat32;
  return (p.out_dtype == kDTypeOf<T> || wide) && p.dim % kPack<T> == 0 && p.dy_col_stride == 1 &&
         p.col_stride == 1 && is_vector_aligned(p.dy) && is_vector_aligned(p.rows) &&
         p.row_stride % (wide ? 4 : kPack<T>) == 0 && p.dy_rows.rank <= 1 &&
         p.dy_rows.strides[0] % kPack<T> == 0;
}

std::int64_t bytes_of(std::int64_t elements, DType dtype) {
  return elements * static_cast<std::int64_t>(dtype_size(dtype));
}

// Rows that are zeroed by extra blocks of the other kernels; they must be contiguous whole vectors.
tuning::ZeroRows zero_rows(const Problem& p) {
  const std::int64_t row_bytes = bytes_of(p.dim, p.out_dtype);
  const bool fits = !p.sparse() && !p.accumulate && p.col_stride == 1 && p.row_stride == p.dim &&
                    is_vector_aligned(p.rows) && row_bytes % kVectorBytes == 0;
  if (!fits) return {};
  return tuning::zero_rows(p.tokens, p.vocab, row_bytes, bytes_of(p.tokens * p.dim, p.dtype));
}
ZeroVectors zero_vectors(const Problem& p, std::int64_t first, std::int64_t last) {
  const std::int64_t row = bytes_of(p.dim, p.out_dtype) / kVectorBytes;
  return {p.rows, first * row, last * row};
}

// Sorts the tokens by row. zeroed: rows that extra blocks zero meanwhile.
void group_tokens(TokenGroupsParams p, std::int64_t zeroed, StreamView stream, int device) {
  const tuning::SortConfig& config = p.groups.config;
  const int passes = config.passes + (p.problem.sparse() ? 1 : 0);
  for (p.pass = 0; p.pass < passes; ++p.pass) {
    p.zeros = zero_vectors(p.problem, zeroed * p.pass / passes, zeroed * (p.pass + 1) / passes);
    if (config.tiles > 1) {
      launch<token_counts_kernel>({config.tiles, tuning::kSortThreads}, stream, device, p);
    }
    launch<token_scatter_kernel>({config.tiles + p.zeros.blocks(), tuning::kSortThreads}, stream,
                                 device, p);
  }
  if (p.problem.tokens == 0) return;  // the workspace is empty, too
  launch<row_starts_kernel>({p.problem.vocab / kStartThreads + 1, kStartThreads}, stream, device,
                            p);
}

// units: of a row, in the form's unit.
template <class Form>
void launch_sums(EmbeddingBackwardParams p, std::int64_t units, StreamView stream, int device) {
  p.rows_per_block = p.pieces ? 1 : tuning::sequential_rows(p.slots, units, Form::kUnits);
  if (!p.pieces) p.zeros = {};
  p.config = tuning::tile_config((p.slots + p.rows_per_block - 1) / p.rows_per_block, units,
                                 Form::kUnits, tuning::kGateThreads);
  launch<embedding_gradient_kernel<Form>>(
      {p.config.blocks + p.zeros.blocks(), tuning::kGateThreads}, stream, device, p);
}

template <class Form>
void sum_rows(EmbeddingBackwardParams p, StreamView stream, int device) {
  using A = typename Form::A;
  const Problem& problem = p.problem;
  if (problem.tokens > kGradientBlock) {
    const std::int64_t windows = (problem.tokens + kGradientBlock - 1) / kGradientBlock;
    p.slots = 2 * windows;
    p.pieces = true;
    launch_sums<Form>(p, p.sum_stride / Form::kWidth, stream, device);
    const std::int64_t tiles = (p.sum_stride / kPack<A> + 31) / 32;
    launch<embedding_totals_kernel<A>>({(windows + 31) / 32 * tiles, kTotalThreads}, stream, device,
                                       p);
    p.pieces = false;
  }
  p.slots = problem.sparse() || problem.accumulate ? problem.tokens : problem.vocab;
  if (p.slots > 0) launch_sums<Form>(p, p.units, stream, device);
}

}  // namespace

void embedding_backward(const Problem& problem, StreamView stream) {
  dispatch_floating(problem.dtype, "embedding_backward", [&]<class T>() {
    using A = accumulate_t<T>;
    const tuning::GradientWorkspace layout =
        tuning::gradient_workspace(problem.tokens, problem.dim, problem.vocab, sizeof(A));
    const auto at = [&](std::int64_t offset) {
      return reinterpret_cast<std::uint32_t*>(static_cast<char*>(problem.workspace) + offset);
    };
    const int device = current_device();
    EmbeddingBackwardParams p{};
    p.problem = problem;
    p.groups = {{at(layout.rows[0]), at(layout.rows[1])},
                {at(layout.tokens[0]), at(layout.tokens[1])},
                at(layout.first),
                at(layout.counts),
                tuning::sort_config(problem.tokens, problem.vocab)};
    p.sums = at(layout.sums);
    p.sum_stride = layout.sum_stride;
    const tuning::ZeroRows zero = zero_rows(problem);
    p.zeroed = zero.during_sort + zero.during_pieces;
    p.zeros = zero_vectors(problem, zero.during_sort, p.zeroed);
    if (problem.tokens > 0 || problem.sparse()) {
      group_tokens({problem, p.groups, 0, {}}, zero.during_sort, stream, device);
    }
    if (all_take_vectors<T>(problem)) {
      if constexpr (sizeof(T) < 8) {
        p.units = problem.dim / kPack<T>;
        sum_rows<VectorForm<T>>(p, stream, device);
      }
    } else {
      p.units = problem.dim;
      sum_rows<ElementForm<A>>(p, stream, device);
    }
  });
}

}  // namespace membound::cuda
