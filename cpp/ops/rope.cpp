// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/rope.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "core/route.hpp"
#include "core/validate.hpp"

namespace membound {

namespace {

using Call = RopeCall;

constexpr const char* kLayoutNames[] = {"bshd", "sbhd", "bhsd", "thd"};

const char* layout_name(RopeLayout layout) { return kLayoutNames[static_cast<int>(layout)]; }

// Indices of the axes of batch, sequence, head and dim; -1: absent.
struct Axes {
  int batch, seq, head, dim;
};
Axes axes_of(RopeLayout layout) {
  switch (layout) {
    case RopeLayout::kSbhd: return {1, 0, 2, 3};
    case RopeLayout::kBhsd: return {0, 2, 1, 3};
    case RopeLayout::kThd: return {-1, 0, 1, 2};
    default: return {0, 1, 2, 3};
  }
}

std::int64_t extent_of(const ConstTensorView& view, int axis) {
  return axis < 0 ? 1 : view.shape[axis];
}

void check_heads(const Call& call) {
  const RopeLayout layout = call.options.layout;
  const int rank = layout == RopeLayout::kThd ? 3 : 4;
  const auto has_rank = [&](const ConstTensorView& view, const char* name) {
    check_view(view, call.op, name);
    MEMBOUND_CHECK(view.rank == rank, InvalidArgument, call.op, "argument '", name, "' must have ",
                   rank, " axes for layout '", layout_name(layout), "', got shape ",
                   shape_text(view));
  };
  has_rank(call.q, call.q_name);
  check_floating(call.q, call.op, call.q_name);
  check_rows(call.q, call.op, call.q_name);
  if (call.k == nullptr) return;
  has_rank(*call.k, call.k_name);
  check_dtype(*call.k, call.q.dtype, call.op, call.k_name);
  check_same_device(*call.k, call.q, call.op, call.k_name, call.q_name);
  check_floating(*call.k, call.op, call.k_name);
  const int head = axes_of(layout).head;
  for (int axis = 0; axis < rank; ++axis) {
    MEMBOUND_CHECK(axis == head || call.k->shape[axis] == call.q.shape[axis], InvalidArgument,
                   call.op, "argument '", call.k_name, "' must have the shape of '", call.q_name,
                   "', ", shape_text(call.q), ", but for the number of heads, got ",
                   shape_text(*call.k));
  }
}

void check_output(const Call& call, const TensorView& out, const char* name,
                  const ConstTensorView& own, const char* own_name) {
  check_like(out, name, own, own_name, call.op);
  check_writable(out, call.op, name);
  const auto check_disjoint = [&](const ConstTensorView* input, const char* input_name,
                                  bool in_place) {
    if (input) check_rope_overlap(out, name, *input, input_name, call.op, in_place);
  };
  check_disjoint(&call.q, call.q_name, own_name == call.q_name);
  check_disjoint(call.k, call.k_name, own_name == call.k_name);
  check_disjoint(call.angles.cos, "cos", false);
  check_disjoint(call.angles.sin, "sin", false);
  check_disjoint(call.angles.freqs, "freqs", false);
  check_disjoint(call.angles.position_ids, "position_ids", false);
  check_disjoint(call.angles.seqlen_offsets, "seqlen_offsets", false);
  check_disjoint(call.angles.cu_seqlens, "cu_seqlens", false);
}

void check_outputs(const Call& call) {
  check_output(call, call.out, call.out_name, call.q, call.q_name);
  if (call.k_cached) return;
  MEMBOUND_CHECK((call.k == nullptr) == (call.k_out == nullptr), InvalidArgument, call.op,
                 "argument '", call.k_out_name, "' must be given with '", call.k_name,
                 "', and only then");
  if (call.k == nullptr) return;
  check_output(call, *call.k_out, call.k_out_name, *call.k, call.k_name);
  check_rope_overlap(*call.k_out, call.k_out_name, call.out, call.out_name, call.op, false);
}

RopeHeads heads_of(const ConstTensorView& x, const TensorView* out, RopeLayout layout) {
  return {x.data, out ? out->data : nullptr, extent_of(x, axes_of(layout).head),
          rope_strides(x, layout), out ? rope_strides(*out, layout) : RopeStrides{}};
}

// Must run before errors that print one array because another is given.
void check_angle_views(const RopeAngles& angles, const char* op) {
  const std::pair<const ConstTensorView*, const char*> every[] = {
      {angles.cos, "cos"},
      {angles.sin, "sin"},
      {angles.freqs, "freqs"},
      {angles.position_ids, "position_ids"},
      {angles.seqlen_offsets, "seqlen_offsets"},
      {angles.cu_seqlens, "cu_seqlens"}};
  for (const auto& [view, name] : every) {
    if (view != nullptr) check_view(*view, op, name);
  }
}

// Determines which elements of a head are rotated.
void set_rotary(RopeProblem& problem, const Call& call) {
  const RopeAngles& angles = call.angles;
  problem.rotary_offset = call.options.rotary_offset;
  problem.rotary_dim = call.options.rotary_dim;
  if (problem.rotary_dim == 0) {
    const bool one_cache = angles.cos && !angles.sin && angles.cos->rank > 0;
    problem.rotary_dim = angles.freqs && angles.freqs->rank == 1 ? 2 * angles.freqs->shape[0]
                         : one_cache ? angles.cos->shape[angles.cos->rank - 1]
                                     : problem.head_dim - problem.rotary_offset;
  }
  MEMBOUND_CHECK(
      problem.rotary_dim >= 2 && problem.rotary_dim % 2 == 0 && problem.rotary_dim >> 32 == 0,
      InvalidArgument, call.op,
      "argument 'rotary_dim' must be even, at least 2 and below 2^32, got ", problem.rotary_dim);
  MEMBOUND_CHECK(
      problem.rotary_offset >= 0 && problem.rotary_offset <= problem.head_dim - problem.rotary_dim,
      InvalidArgument, call.op, "argument 'rotary_offset' must be from 0 to ",
      problem.head_dim - problem.rotary_dim, ", the head's ", problem.head_dim,
      " elements less the ", problem.rotary_dim, " that turn, got ", problem.rotary_offset);
}

void set_sections(RopeProblem& problem, const Call& call) {
  const RopeOptions& options = call.options;
  const int count = options.section_count;
  problem.axes = std::max(count, 1);
  problem.interleaved_sections = count > 0 && options.interleaved_sections;
  MEMBOUND_CHECK(count >= 0 && count <= kMaxRopeSections, InvalidArgument, call.op,
                 "argument 'sections' must have at most ", kMaxRopeSections, " numbers, got ",
                 count);
  std::int64_t sum = 0;
  for (int axis = 0; axis < count; ++axis) {
    MEMBOUND_CHECK(options.sections[axis] >= 0 && options.sections[axis] <= problem.rotary_dim,
                   InvalidArgument, call.op, "argument 'sections' must have numbers from 0 to ",
                   problem.rotary_dim / 2, ", got ", options.sections[axis]);
    sum += options.sections[axis];
    problem.section_bounds[axis] = options.interleaved_sections ? options.sections[axis] : sum;
  }
  MEMBOUND_CHECK(count == 0 || sum == problem.rotary_dim / 2, InvalidArgument, call.op,
                 "argument 'sections' must add up to ", problem.rotary_dim / 2,
                 ", half of rotary_dim, got ", sum);
}

}  // namespace

RopeStrides rope_strides(const ConstTensorView& view, RopeLayout layout) {
  const Axes axes = axes_of(layout);
  const auto stride = [&](int axis) { return axis < 0 ? 0 : view.strides[axis]; };
  return {stride(axes.batch), stride(axes.seq), stride(axes.head), stride(axes.dim)};
}

void check_rope_overlap(const ConstTensorView& written, const char* written_name,
                        const ConstTensorView& other, const char* other_name, const char* op,
                        bool in_place) {
  if (in_place && is_same_array(written, other)) return;
  const ByteSpan one = byte_span(written), two = byte_span(other);
  if (one.last <= two.first || two.last <= one.first) [[likely]]
    return;
  const auto in_memory_order = [](ConstTensorView view) {
    for (int last = view.rank; last > 1; --last) {
      for (int axis = 1; axis < last; ++axis) {
        if (std::abs(view.strides[axis - 1]) >= std::abs(view.strides[axis])) continue;
        std::swap(view.strides[axis - 1], view.strides[axis]);
        std::swap(view.shape[axis - 1], view.shape[axis]);
      }
    }
    return view;
  };
  check_overlap(in_memory_order(written), written_name, in_memory_order(other), other_name, op,
                /*in_place=*/false);
}

RopeProblem rope_problem(const Call& call) {
  check_heads(call);
  check_angle_views(call.angles, call.op);
  const Axes axes = axes_of(call.options.layout);
  RopeProblem problem{};
  problem.count = call.k ? 2 : 1;
  problem.dtype = call.q.dtype;
  problem.batch = extent_of(call.q, axes.batch);
  problem.seq = extent_of(call.q, axes.seq);
  problem.head_dim = extent_of(call.q, axes.dim);
  problem.interleaved = call.options.interleaved;
  problem.inverse = call.options.inverse;
  set_rotary(problem, call);
  set_sections(problem, call);
  set_rope_angles(problem, call);
  check_outputs(call);
  problem.arrays[0] = heads_of(call.q, &call.out, call.options.layout);
  if (call.k) problem.arrays[1] = heads_of(*call.k, call.k_out, call.options.layout);
  if (call.options.validate) check_rope_values(problem, call);
  return problem;
}

void run_rope(const RopeProblem& problem, Device device, const char* op, StreamView stream) {
  RopeProblem some = problem;  // without arrays that have no heads
  some.count = 0;
  for (int i = 0; i < problem.count; ++i) {
    if (problem.arrays[i].heads > 0) some.arrays[some.count++] = problem.arrays[i];
  }
  if (some.count == 0 || some.tokens() == 0) return;
  route(device, op, [&] { cpu::rope(some); }, [&] { cuda::rope(some, stream); });
}

void rope(const ConstTensorView& q, const ConstTensorView* k, const RopeAngles& angles,
          const RopeOptions& options, const TensorView& out, const TensorView* k_out,
          StreamView stream) {
  const RopeProblem problem =
      rope_problem({"rope", "q", "k", "out", "k_out", q, k, angles, options, out, k_out});
  run_rope(problem, q.device, "rope", stream);
}

}  // namespace membound
