// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/embedding_backward.hpp"

#include <limits>

#include "core/route.hpp"
#include "core/validate.hpp"
#include "cuda/embedding/embedding_backward_config.hpp"
#include "membound/device_buffer.hpp"

namespace membound {

namespace {

constexpr const char* kOp = "embedding_backward";
// Tokens and rows are counted in 32 bits.
constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();

// What the dense and the sparse form share.
struct Call {
  const ConstTensorView &dy, &ids;
  const EmbeddingBackwardOptions& options;
  std::int64_t vocab;
  const TensorView* workspace;

  std::int64_t dim() const { return dy.shape[dy.rank - 1]; }
};

void check_workspace(const TensorView& workspace, const Call& call) {
  check_same_device(workspace, call.dy, kOp, "workspace", "dy");
  const std::int64_t bytes = embedding_backward_workspace(call.dy, call.vocab);
  MEMBOUND_CHECK(workspace.dtype == DType::kUInt8 && workspace.rank == 1 &&
                     workspace.shape[0] >= bytes &&
                     (workspace.shape[0] <= 1 || workspace.strides[0] == 1) &&
                     reinterpret_cast<std::uintptr_t>(workspace.data) % 16 == 0,
                 InvalidArgument, kOp, "argument 'workspace' must be ", bytes,
                 " bytes of uint8 and more, aligned to 16, got shape ", shape_text(workspace));
}

void check(const Call& call) {
  const auto& [dy, ids, options, vocab, workspace] = call;
  check_rows(dy, kOp, "dy");
  check_floating(dy, kOp, "dy");
  MEMBOUND_CHECK(ids.rank < kMaxRank, InvalidArgument, kOp, "argument 'ids' must have at most ",
                 kMaxRank - 1, " axes, got ", ids.rank);
  check_token_integers(ids, dy, "dy", kOp, "ids");
  check_leading_shape(ids, dy, dy.rank - 1, kOp, "ids");
  MEMBOUND_CHECK(ids.size() < kMost, InvalidArgument, kOp, "argument 'ids' must have fewer than ",
                 kMost, " elements, got ", ids.size());
  MEMBOUND_CHECK(vocab >= 1 && vocab < kMost, InvalidArgument, kOp,
                 "argument 'vocab' must be from 1 to ", kMost - 1, ", got ", vocab);
  check_row_range(options.scale, dy.dtype, options.vocab_start, vocab, kOp);
  if (workspace) check_workspace(*workspace, call);
}

// An output must not overlap any input.
void check_written(const TensorView& out, const char* argument, const Call& call) {
  check_same_device(out, call.dy, kOp, argument, "dy");
  check_writable(out, kOp, argument);
  check_overlap(out, argument, call.dy, "dy", kOp, /*in_place=*/false);
  check_overlap(out, argument, call.ids, "ids", kOp, /*in_place=*/false);
}

void check_row_array(const TensorView& rows, const char* argument, std::int64_t count,
                     const Call& call) {
  check_view(rows, kOp, argument);
  check_row_dtype(rows, argument, call.dy, "dy", kOp);
  MEMBOUND_CHECK(rows.rank == 2 && rows.shape[0] == count && rows.shape[1] == call.dim(),
                 InvalidArgument, kOp, "argument '", argument, "' must have shape (", count, ", ",
                 call.dim(), "), got ", shape_text(rows));
  check_written(rows, argument, call);
}

EmbeddingBackwardProblem make_problem(const Call& call, const TensorView& rows) {
  const EmbeddingBackwardOptions& options = call.options;
  EmbeddingBackwardProblem problem{};
  problem.ids = token_integers(call.ids, kOp, "ids");
  problem.dy = call.dy.data;
  problem.rows = rows.data;
  problem.workspace = call.workspace ? call.workspace->data : nullptr;
  problem.dtype = call.dy.dtype;
  problem.out_dtype = rows.dtype;
  problem.by_frequency = options.scale_grad_by_freq;
  problem.accumulate = options.accumulate;
  problem.dy_rows = row_layout(call.dy, call.dy.rank - 1, kOp, "dy");
  problem.dy_col_stride = column_stride(call.dy);
  problem.row_stride = rows.shape[0] == 1 ? call.dim() : rows.strides[0];
  problem.col_stride = column_stride(rows);
  problem.tokens = call.ids.size();
  problem.dim = call.dim();
  problem.vocab = call.vocab;
  problem.vocab_start = options.vocab_start;
  problem.padding_idx = options.padding_idx;
  problem.scale = options.scale;
  return problem;
}

// Checks every id, on the CPU.
void check_values(const EmbeddingBackwardProblem& p, const ConstTensorView& ids) {
  check_can_validate(ids, kOp);
  for (std::int64_t token = 0; token < p.tokens; ++token) {
    const std::int64_t id = p.ids.at(p.ids.tokens.offset(token));
    MEMBOUND_CHECK(p.row_of(id) < p.vocab || id == p.padding_idx, InvalidArgument, kOp,
                   "argument 'ids' must hold numbers from ", p.vocab_start, " to ",
                   p.vocab_start + (p.vocab - 1), ", got ", id);
  }
}

void run(EmbeddingBackwardProblem problem, const Call& call, StreamView stream) {
  if (call.options.validate) check_values(problem, call.ids);
  route(
      call.dy.device, kOp, [&] { cpu::embedding_backward(problem); },
      [&] {
        DeviceBuffer allocated;
        if (problem.workspace == nullptr) {
          const auto bytes =
              static_cast<std::size_t>(embedding_backward_workspace(call.dy, call.vocab));
          allocated = DeviceBuffer(bytes, call.dy.device, stream);
          problem.workspace = allocated.data();
        }
        cuda::embedding_backward(problem, stream);
      });
}

}  // namespace

std::int64_t embedding_backward_workspace(const ConstTensorView& dy, std::int64_t vocab) {
  if (!dy.device.is_cuda() || dy.rank == 0 || dy.size() == 0) return 0;
  const std::int64_t dim = dy.shape[dy.rank - 1];
  const int number_bytes = static_cast<int>(dtype_size(accumulate_dtype(dy.dtype)));
  return cuda::tuning::gradient_workspace(dy.size() / dim, dim, vocab, number_bytes).bytes;
}

void embedding_backward(const ConstTensorView& dy, const ConstTensorView& ids,
                        const EmbeddingBackwardOptions& options, const TensorView& out,
                        const TensorView* workspace, StreamView stream) {
  check_view(out, kOp, "out");
  const std::int64_t vocab = out.rank >= 1 ? out.shape[0] : 0;
  const Call call{dy, ids, options, vocab, workspace};
  MEMBOUND_CHECK(out.rank == 2, InvalidArgument, kOp, "argument 'out' must have 2 axes, got ",
                 out.rank);
  check(call);
  check_row_array(out, "out", vocab, call);
  const EmbeddingBackwardProblem problem = make_problem(call, out);
  if (problem.tokens == 0 && problem.accumulate) return;
  run(problem, call, stream);
}

void embedding_backward_sparse(const ConstTensorView& dy, const ConstTensorView& ids,
                               std::int64_t vocab, const EmbeddingBackwardOptions& options,
                               const TensorView& rows_ids, const TensorView& rows,
                               const TensorView& count, const TensorView* workspace,
                               StreamView stream) {
  const Call call{dy, ids, options, vocab, workspace};
  check(call);
  MEMBOUND_CHECK(!options.accumulate, InvalidArgument, kOp,
                 "argument 'accumulate' must be False for the sparse form, got True");
  check_row_array(rows, "rows", ids.size(), call);
  check_dtype(rows_ids, ids.dtype, kOp, "rows_ids");
  check_token_integers(rows_ids, dy, "dy", kOp, "rows_ids");
  MEMBOUND_CHECK(rows_ids.rank == 1 && rows_ids.shape[0] == ids.size(), InvalidArgument, kOp,
                 "argument 'rows_ids' must have shape (", ids.size(), ",), got ",
                 shape_text(rows_ids));
  MEMBOUND_CHECK(ids.dtype == DType::kInt64 || options.vocab_start + vocab - 1 <= kMost,
                 InvalidArgument, kOp, "argument 'ids' must be int64 for ids up to ",
                 options.vocab_start + (vocab - 1), ", got int32");
  check_written(rows_ids, "rows_ids", call);
  check_dtype(count, DType::kInt64, kOp, "count");
  check_token_integers(count, dy, "dy", kOp, "count");
  MEMBOUND_CHECK(count.rank == 0, InvalidArgument, kOp, "argument 'count' must have no axis, got ",
                 count.rank);
  check_written(count, "count", call);
  check_overlap(rows, "rows", rows_ids, "rows_ids", kOp, /*in_place=*/false);
  check_overlap(rows, "rows", count, "count", kOp, /*in_place=*/false);
  check_overlap(rows_ids, "rows_ids", count, "count", kOp, /*in_place=*/false);
  EmbeddingBackwardProblem problem = make_problem(call, rows);
  problem.rows_ids = rows_ids.data;
  problem.wide_rows_ids = ids.dtype == DType::kInt64;
  problem.rows_ids_stride = column_stride(rows_ids);
  problem.rows_count = static_cast<std::int64_t*>(count.data);
  run(problem, call, stream);
}

}  // namespace membound
