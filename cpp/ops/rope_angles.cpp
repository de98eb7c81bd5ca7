// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// The arguments of rope that give positions and angles: their checks, and their place in the
// problem.
#include <initializer_list>
#include <string>

#include "core/validate.hpp"
#include "ops/rope.hpp"

namespace membound {

namespace {

using Call = RopeCall;

void check_absent(const ConstTensorView* view, const char* argument, const char* reason,
                  const Call& call) {
  MEMBOUND_CHECK(view == nullptr, InvalidArgument, call.op, "argument '", argument,
                 "' must be None ", reason, ", got shape ",
                 view ? shape_text(*view) : std::string());
}

RopeIntegers integers(const ConstTensorView& view, const char* argument, const Call& call) {
  check_same_device(view, call.q, call.op, argument, call.q_name);
  const bool wide = view.dtype == DType::kInt64;
  MEMBOUND_CHECK(wide || view.dtype == DType::kInt32, TypeMismatch, call.op, "argument '", argument,
                 "' must be int32 or int64, got ", dtype_name(view.dtype));
  MEMBOUND_CHECK(reinterpret_cast<std::uintptr_t>(view.data) % dtype_size(view.dtype) == 0,
                 InvalidArgument, call.op, "argument '", argument,
                 "' must start at a multiple of its element size, got an unaligned pointer");
  return {view.data, wide};
}

// The strides of `view` over axis of positions, batch and sequence, followed by `trailing` axes of
// its own. The axis of positions exists with sections only; the batch may be missing or 1.
struct TokenStrides {
  bool fits = false;
  std::int64_t axis = 0, batch = 0, seq = 0;
};
TokenStrides token_strides(const ConstTensorView& view, int trailing, bool batch_optional,
                           const RopeProblem& problem, const Call& call) {
  TokenStrides strides;
  const bool sections = call.options.section_count > 0;
  const int axes = view.rank - trailing - (sections ? 1 : 0);
  if (axes < (batch_optional ? 1 : 2) || axes > 2) return strides;
  int at = 0;
  if (sections) {
    if (view.shape[at] != problem.axes) return strides;
    strides.axis = view.strides[at++];
  }
  if (axes == 2) {
    if (view.shape[at] != 1 && view.shape[at] != problem.batch) return strides;
    strides.batch = view.shape[at] == 1 ? 0 : view.strides[at];
    ++at;
  }
  strides.fits = view.shape[at] == problem.seq;
  strides.seq = view.strides[at];
  return strides;
}

std::string tokens_text(const RopeProblem& problem, const Call& call) {
  const std::string axes =
      call.options.section_count > 0 ? std::to_string(problem.axes) + ", " : std::string();
  return axes + std::to_string(problem.batch) + ", " + std::to_string(problem.seq);
}

void set_positions(RopeProblem& problem, const Call& call) {
  const RopeAngles& angles = call.angles;
  RopePositions& where = problem.where;
  where.offset = call.options.position_offset;
  if (angles.position_ids) {
    const ConstTensorView& ids = *angles.position_ids;
    where.ids = integers(ids, "position_ids", call);
    const TokenStrides strides = token_strides(ids, 0, true, problem, call);
    MEMBOUND_CHECK(strides.fits, InvalidArgument, call.op,
                   "argument 'position_ids' must have shape (", tokens_text(problem, call),
                   "), where the batch may be 1 or missing, got ", shape_text(ids));
    where.ids_axis_stride = strides.axis;
    where.ids_batch_stride = strides.batch;
    where.ids_seq_stride = strides.seq;
  }
  std::int64_t sequences = problem.batch;
  if (angles.cu_seqlens) {
    const ConstTensorView& ends = *angles.cu_seqlens;
    MEMBOUND_CHECK(call.options.layout == RopeLayout::kThd, InvalidArgument, call.op,
                   "argument 'cu_seqlens' goes with layout 'thd' alone");
    where.cu_seqlens = integers(ends, "cu_seqlens", call);
    MEMBOUND_CHECK(ends.rank == 1 && ends.shape[0] >= 2, InvalidArgument, call.op,
                   "argument 'cu_seqlens' must have shape (sequences + 1,), got ",
                   shape_text(ends));
    where.cu_seqlens_stride = ends.strides[0];
    where.sequences = sequences = ends.shape[0] - 1;
  }
  if (angles.seqlen_offsets) {
    const ConstTensorView& starts = *angles.seqlen_offsets;
    where.offsets = integers(starts, "seqlen_offsets", call);
    MEMBOUND_CHECK(starts.rank == 1 && starts.shape[0] == sequences, InvalidArgument, call.op,
                   "argument 'seqlen_offsets' must have shape (", sequences,
                   ",), one number for each sequence, got ", shape_text(starts));
    where.offsets_stride = starts.strides[0];
  }
}

void check_table(const ConstTensorView& table, const char* argument, const Call& call) {
  check_floating(table, call.op, argument);
  check_same_device(table, call.q, call.op, argument, call.q_name);
  MEMBOUND_CHECK(table.rank >= 2 && table.rank <= 4, InvalidArgument, call.op, "argument '",
                 argument, "' must have 2 axes, or 3 or 4 with rows of each token, got shape ",
                 shape_text(table));
}

// Sets the columns of a table that has one per pair or one per rotated element; the latter are laid
// out like the pairs, as halves or interleaved.
void set_columns(RopeTable& to, const ConstTensorView& table, const RopeProblem& problem) {
  const std::int64_t pairs = problem.rotary_dim / 2, stride = table.strides[table.rank - 1];
  const bool each = table.shape[table.rank - 1] == 2 * pairs;
  to.data = table.data;
  to.col_stride = each && problem.interleaved ? 2 * stride : stride;
  to.second = !each ? 0 : problem.interleaved ? stride : pairs * stride;
}

// True if the call gives positions other than token indices.
bool has_positions(const Call& call) {
  const RopeAngles& angles = call.angles;
  return angles.position_ids || angles.seqlen_offsets || call.options.position_offset != 0;
}

// A table of four axes without that of heads (1, where the layout has it), or, if it is (positions,
// 1, 1, columns), without both. Other tables are returned unchanged.
ConstTensorView without_heads(const ConstTensorView& table, const RopeProblem& problem,
                              const Call& call) {
  if (table.rank != 4 || call.options.section_count > 0) return table;
  const auto keep_axes = [&](std::initializer_list<int> axes) {
    ConstTensorView view = table;
    view.rank = 0;
    for (const int axis : axes) {
      view.shape[view.rank] = table.shape[axis];
      view.strides[view.rank++] = table.strides[axis];
    }
    return view;
  };
  const RopeLayout layout = call.options.layout;
  const int head = layout == RopeLayout::kBhsd ? 1 : 2, seq = 3 - head;
  const std::int64_t batch = table.shape[0];
  const bool by_position = table.shape[1] == 1 && table.shape[2] == 1 &&
                           (layout == RopeLayout::kSbhd || has_positions(call));
  if (!by_position && layout != RopeLayout::kSbhd && table.shape[head] == 1 &&
      (batch == 1 || batch == problem.batch)) {
    return keep_axes({0, seq, 3});
  }
  if (table.shape[1] == 1 && table.shape[2] == 1) return keep_axes({0, 3});
  const bool swapped = layout == RopeLayout::kSbhd && table.shape[2] == 1;
  return swapped ? keep_axes({1, 0, 3}) : table;
}

// Rows are indexed by position, shared by all sequences or one set per sequence; or each token has
// its own.
void set_rows(RopeTable& to, const ConstTensorView& table, const char* argument,
              RopeProblem& problem, const Call& call) {
  const bool of_sequences = table.rank == 3 && call.options.section_count == 0 &&
                            has_positions(call) && table.shape[1] != problem.seq &&
                            (table.shape[0] == 1 || table.shape[0] == problem.batch);
  problem.own_rows = table.rank != 2 && !of_sequences;
  if (!problem.own_rows) {
    const int at = of_sequences ? 1 : 0;
    problem.positions = table.shape[at];
    to.row_stride = table.strides[at];
    to.batch_stride = of_sequences && table.shape[0] > 1 ? table.strides[0] : 0;
    return;
  }
  const TokenStrides strides = token_strides(table, 1, false, problem, call);
  MEMBOUND_CHECK(strides.fits, InvalidArgument, call.op, "argument '", argument,
                 "' must have shape (positions, columns) or (", tokens_text(problem, call),
                 ", columns), where the batch may be 1, got ", shape_text(table));
  to.axis_stride = strides.axis;
  to.batch_stride = strides.batch;
  to.row_stride = strides.seq;
}

// Tables with a row per token exclude positions.
void check_no_positions(const char* argument, const Call& call) {
  const std::string reason = std::string("where ") + argument + " has a row for each token";
  check_absent(call.angles.position_ids, "position_ids", reason.c_str(), call);
  check_absent(call.angles.seqlen_offsets, "seqlen_offsets", reason.c_str(), call);
  check_absent(call.angles.cu_seqlens, "cu_seqlens", reason.c_str(), call);
  MEMBOUND_CHECK(call.options.position_offset == 0, InvalidArgument, call.op,
                 "argument 'seqlen_offsets' must be 0 or None ", reason, ", got ",
                 call.options.position_offset);
}

// Frequencies, to be multiplied by positions, or angles with a row per position or token.
void set_freqs(RopeProblem& problem, const Call& call) {
  const ConstTensorView freqs = without_heads(*call.angles.freqs, problem, call);
  problem.freqs_are_angles = freqs.rank > 1;
  MEMBOUND_CHECK(
      problem.freqs_are_angles || freqs.dtype == DType::kFloat32 || freqs.dtype == DType::kFloat64,
      TypeMismatch, call.op, "argument 'freqs' must be float32 or float64, got ",
      dtype_name(freqs.dtype));
  const std::int64_t pairs = problem.rotary_dim / 2;
  if (problem.freqs_are_angles) {
    check_table(freqs, "freqs", call);
    const std::int64_t cols = freqs.shape[freqs.rank - 1];
    MEMBOUND_CHECK(cols == pairs || cols == 2 * pairs, InvalidArgument, call.op,
                   "argument 'freqs' must have ", pairs, " or ", 2 * pairs,
                   " columns for rotary_dim ", 2 * pairs, ", got shape ", shape_text(freqs));
    set_rows(problem.freqs, freqs, "freqs", problem, call);
  } else {
    check_floating(freqs, call.op, "freqs");
    check_same_device(freqs, call.q, call.op, "freqs", call.q_name);
    MEMBOUND_CHECK(freqs.rank == 1 && freqs.shape[0] == pairs, InvalidArgument, call.op,
                   "argument 'freqs' must have shape (", pairs,
                   ",), half of rotary_dim, or be angles of (positions, columns), got ",
                   shape_text(freqs));
  }
  check_finite(call.options.attention_scaling, call.q.dtype, call.op, "attention_scaling");
  set_columns(problem.freqs, freqs, problem);
  problem.table_dtype = freqs.dtype;
  problem.scaling = call.options.attention_scaling;
}

// Tables of cos and sin, or one table that holds both.
void set_tables(RopeProblem& problem, const Call& call) {
  const ConstTensorView* sin = call.angles.sin;
  check_table(*call.angles.cos, "cos", call);
  const ConstTensorView cos = without_heads(*call.angles.cos, problem, call);
  const std::int64_t pairs = problem.rotary_dim / 2, cols = cos.shape[cos.rank - 1];
  MEMBOUND_CHECK(cols == 2 * pairs || (sin && cols == pairs), InvalidArgument, call.op,
                 "argument 'cos' must have ", sin ? std::to_string(pairs) + " or " : "", 2 * pairs,
                 " columns for rotary_dim ", 2 * pairs, sin ? "" : " and no sin", ", got shape ",
                 shape_text(cos));
  problem.table_dtype = cos.dtype;
  set_rows(problem.cos, cos, "cos", problem, call);
  if (sin == nullptr) {
    problem.cos.data = cos.data;
    problem.cos.col_stride = cos.strides[cos.rank - 1];
    problem.sin = problem.cos;
    problem.sin.data =
        static_cast<const char*>(cos.data) +
        pairs * problem.cos.col_stride * static_cast<std::int64_t>(dtype_size(cos.dtype));
    return;
  }
  check_dtype(*sin, cos.dtype, call.op, "sin");
  check_table(*sin, "sin", call);
  MEMBOUND_CHECK(sin->rank == call.angles.cos->rank, InvalidArgument, call.op,
                 "argument 'sin' must have the shape of 'cos', ", shape_text(*call.angles.cos),
                 ", got ", shape_text(*sin));
  check_leading_shape(*sin, *call.angles.cos, sin->rank, call.op, "sin");
  const ConstTensorView sines = without_heads(*sin, problem, call);
  set_rows(problem.sin, sines, "sin", problem, call);
  set_columns(problem.cos, cos, problem);
  set_columns(problem.sin, sines, problem);
}

// Checks the positions against the table as far as shapes alone allow.
void check_length(const RopeProblem& problem, const char* argument, const Call& call) {
  const RopePositions& where = problem.where;
  if (where.ids.data || where.offsets.data || where.cu_seqlens.data) return;
  MEMBOUND_CHECK(where.offset >= 0 && where.offset <= problem.positions &&
                     problem.seq <= problem.positions - where.offset,
                 InvalidArgument, call.op, "argument '", argument, "' has ", problem.positions,
                 " positions, but the sequence is at ", where.offset, " and has ", problem.seq);
}

}  // namespace

void set_rope_angles(RopeProblem& problem, const Call& call) {
  const RopeAngles& angles = call.angles;
  set_positions(problem, call);
  if (angles.freqs) {
    check_absent(angles.cos, "cos", "with freqs", call);
    check_absent(angles.sin, "sin", "with freqs", call);
    set_freqs(problem, call);
  } else {
    MEMBOUND_CHECK(angles.cos, InvalidArgument, call.op,
                   "argument 'cos' or 'freqs' must be given, got neither");
    MEMBOUND_CHECK(call.options.attention_scaling == 1.0, InvalidArgument, call.op,
                   "argument 'attention_scaling' must be 1 without freqs (tables hold it), got ",
                   call.options.attention_scaling);
    set_tables(problem, call);
  }
  const char* argument = angles.freqs ? "freqs" : "cos";
  if (problem.own_rows) check_no_positions(argument, call);
  if (problem.has_rows_by_position()) check_length(problem, argument, call);
  MEMBOUND_CHECK(call.options.section_count == 0 || angles.position_ids || problem.own_rows,
                 InvalidArgument, call.op,
                 "argument 'sections' needs position_ids with an axis in front");
}

// Checks every position that the kernels will look up.
void check_rope_values(const RopeProblem& problem, const Call& call) {
  MEMBOUND_CHECK(!call.q.device.is_cuda(), InvalidArgument, call.op,
                 "argument 'validate' must be False for arrays on a GPU, which cannot be looked "
                 "at without waiting");
  const RopePositions& where = problem.where;
  if (where.cu_seqlens.data) {
    const auto end = [&](std::int64_t i) {
      return where.cu_seqlens.at(i * where.cu_seqlens_stride);
    };
    MEMBOUND_CHECK(end(0) == 0, InvalidArgument, call.op,
                   "argument 'cu_seqlens' must start with 0, got ", end(0));
    for (std::int64_t i = 0; i < where.sequences; ++i) {
      MEMBOUND_CHECK(end(i) <= end(i + 1), InvalidArgument, call.op,
                     "argument 'cu_seqlens' must not decrease, got ", end(i + 1), " after ",
                     end(i));
    }
    MEMBOUND_CHECK(end(where.sequences) <= problem.seq, InvalidArgument, call.op,
                   "argument 'cu_seqlens' must end within the ", problem.seq, " tokens, got ",
                   end(where.sequences));
  }
  if (!problem.has_rows_by_position()) return;
  const char* argument = where.ids.data ? "position_ids" : "seqlen_offsets";
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    for (std::int64_t s = 0; s < problem.seq; ++s) {
      for (int axis = 0; axis < problem.axes; ++axis) {
        std::int64_t position = 0;
        if (!where.find(axis, b, s, position)) continue;
        MEMBOUND_CHECK(position >= 0 && position < problem.positions, InvalidArgument, call.op,
                       "argument '", argument, "' must give positions from 0 to ",
                       problem.positions - 1, ", got ", position, " for token ", s, " of sequence ",
                       b);
      }
    }
  }
}

}  // namespace membound
