// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/embedding.hpp"

#include <limits>

#include "core/route.hpp"
#include "core/validate.hpp"

namespace membound {

namespace {

constexpr const char* kOp = "embedding";

void check_table(const ConstTensorView& table, const char* argument) {
  check_view(table, kOp, argument);
  MEMBOUND_CHECK(table.rank == 2 && table.shape[0] >= 1 && table.shape[1] >= 1, InvalidArgument,
                 kOp, "argument '", argument,
                 "' must have 2 axes of at least 1 element, got shape ", shape_text(table));
  check_floating(table, kOp, argument);
}

void check_positions(const ConstTensorView& ids, const ConstTensorView& weight,
                     const ConstTensorView* position_ids, const ConstTensorView* position_weight) {
  if (position_ids != nullptr) check_view(*position_ids, kOp, "position_ids");
  MEMBOUND_CHECK(position_weight != nullptr || position_ids == nullptr, InvalidArgument, kOp,
                 "argument 'position_ids' must be None without 'position_weight', got shape ",
                 position_ids ? shape_text(*position_ids) : "");
  if (position_weight == nullptr) return;
  check_table(*position_weight, "position_weight");
  check_dtype(*position_weight, weight.dtype, kOp, "position_weight");
  check_same_device(*position_weight, weight, kOp, "position_weight", "weight");
  MEMBOUND_CHECK(position_weight->shape[1] == weight.shape[1], InvalidArgument, kOp,
                 "argument 'position_weight' must have rows of ", weight.shape[1],
                 " elements as those of 'weight', got shape ", shape_text(*position_weight));
  MEMBOUND_CHECK(position_ids != nullptr || ids.rank >= 1, InvalidArgument, kOp,
                 "argument 'position_ids' must be given for 'ids' without an axis, got None");
  if (position_ids == nullptr) return;
  check_token_integers(*position_ids, weight, "weight", kOp, "position_ids");
  check_leading_shape(*position_ids, ids, ids.rank, kOp, "position_ids");
}

void check_out(const TensorView& out, const ConstTensorView& ids, const ConstTensorView& weight) {
  check_same_device(out, weight, kOp, "out", "weight");
  check_row_dtype(out, "out", weight, "weight", kOp);
  ConstTensorView expected = ids;
  expected.shape[expected.rank++] = weight.shape[1];
  check_leading_shape(out, expected, expected.rank, kOp, "out");
  check_writable(out, kOp, "out");
}

RowTable table_of(const ConstTensorView& table) {
  return {table.data, table.shape[0], table.strides[0], column_stride(table)};
}

// Checks every id and position, on the CPU.
void check_values(const EmbeddingProblem& p, const ConstTensorView& ids) {
  check_can_validate(ids, kOp);
  for (std::int64_t token = 0; token < p.tokens; ++token) {
    const std::int64_t id = p.ids.at(p.ids.tokens.offset(token));
    MEMBOUND_CHECK(p.weight.has(p.row_of(id)), InvalidArgument, kOp,
                   "argument 'ids' must hold numbers from ", p.vocab_start, " to ",
                   p.vocab_start + (p.weight.rows - 1), ", got ", id);
    if (p.position_weight.data == nullptr) continue;
    const bool given = p.position_ids.data != nullptr;
    const std::int64_t position =
        given ? p.position_ids.at(p.position_ids.tokens.offset(token)) : token % p.sequence;
    MEMBOUND_CHECK(p.position_weight.has(position), InvalidArgument, kOp, "argument '",
                   given ? "position_ids" : "position_weight",
                   given ? "' must hold numbers from 0 to " : "' must have a row for positions to ",
                   p.position_weight.rows - 1, ", got ", position);
  }
}

}  // namespace

void check_token_integers(const ConstTensorView& view, const ConstTensorView& reference,
                          const char* reference_name, const char* op, const char* argument) {
  check_integers(view, op, argument);
  check_same_device(view, reference, op, argument, reference_name);
}

void check_row_dtype(const ConstTensorView& out, const char* argument, const ConstTensorView& in,
                     const char* in_name, const char* op) {
  check_floating(out, op, argument);
  const bool wide = in.dtype == DType::kFloat64;
  MEMBOUND_CHECK((out.dtype == DType::kFloat64) == wide, TypeMismatch, op, "argument '", argument,
                 "' must be ", wide ? "float64" : "float16, bfloat16 or float32", " for a ",
                 in_name, " of ", dtype_name(in.dtype), ", got ", dtype_name(out.dtype));
}

void check_row_range(double scale, DType dtype, std::int64_t vocab_start, std::int64_t vocab,
                     const char* op) {
  check_finite(scale, dtype, op, "scale");
  const std::int64_t most = std::numeric_limits<std::int64_t>::max() - vocab;
  MEMBOUND_CHECK(vocab_start >= 0 && vocab_start <= most, InvalidArgument, op,
                 "argument 'vocab_start' must be from 0 to ", most, " for a table of ", vocab,
                 " rows, got ", vocab_start);
}

void check_can_validate(const ConstTensorView& ids, const char* op) {
  MEMBOUND_CHECK(!ids.device.is_cuda(), InvalidArgument, op,
                 "argument 'validate' must be False for arrays on a GPU, which cannot be looked "
                 "at without waiting");
}

void embedding(const ConstTensorView& ids, const ConstTensorView& weight,
               const ConstTensorView* position_ids, const ConstTensorView* position_weight,
               const EmbeddingOptions& options, const TensorView& out, StreamView stream) {
  check_table(weight, "weight");
  MEMBOUND_CHECK(ids.rank < kMaxRank, InvalidArgument, kOp, "argument 'ids' must have at most ",
                 kMaxRank - 1, " axes, got ", ids.rank);
  check_token_integers(ids, weight, "weight", kOp, "ids");
  check_positions(ids, weight, position_ids, position_weight);
  check_row_range(options.scale, weight.dtype, options.vocab_start, weight.shape[0], kOp);
  check_out(out, ids, weight);
  check_overlap(out, "out", weight, "weight", kOp, false);
  check_overlap(out, "out", ids, "ids", kOp, false);
  if (position_weight) check_overlap(out, "out", *position_weight, "position_weight", kOp, false);
  if (position_ids) check_overlap(out, "out", *position_ids, "position_ids", kOp, false);
  EmbeddingProblem problem{};
  problem.tokens = ids.size();
  if (problem.tokens == 0) return;
  problem.ids = token_integers(ids, kOp, "ids");
  problem.weight = table_of(weight);
  if (position_weight) problem.position_weight = table_of(*position_weight);
  if (position_ids) problem.position_ids = token_integers(*position_ids, kOp, "position_ids");
  problem.out = out.data;
  problem.dtype = weight.dtype;
  problem.out_dtype = out.dtype;
  problem.out_rows = row_layout(out, out.rank - 1, kOp, "out");
  problem.out_col_stride = column_stride(out);
  problem.dim = weight.shape[1];
  problem.sequence = ids.rank ? ids.shape[ids.rank - 1] : 1;
  problem.vocab_start = options.vocab_start;
  problem.scale = options.scale;
  if (options.validate) check_values(problem, ids);
  route(
      weight.device, kOp, [&] { cpu::embedding(problem); },
      [&] { cuda::embedding(problem, stream); });
}

}  // namespace membound
