// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/qk_norm_rope_backward.hpp"

#include <algorithm>

#include "core/route.hpp"
#include "core/validate.hpp"
#include "membound/device_buffer.hpp"

namespace membound {

namespace {

constexpr const char* kOp = "qk_norm_rope_backward";

using Gradient = QkNormRopeGradient;

// Argument names for q and for k.
struct Names {
  const char *x, *dy, *weight, *rstd, *dx, *dweight;
};
constexpr Names kNames[] = {{"q", "dq", "q_weight", "q_rstd", "dq_out", "dq_weight"},
                            {"k", "dk", "k_weight", "k_rstd", "dk_out", "dk_weight"}};

void check_inputs(const Gradient& given, int array, const RopeProblem& problem) {
  const Names& name = kNames[array];
  check_like(given.x, name.x, given.dy, name.dy, kOp);
  if (given.weight) check_head_weight(*given.weight, name.weight, problem, array, given.x, kOp);
  if (given.rstd) check_row_statistic(*given.rstd, name.rstd, given.x, name.x, kOp);
  if (given.dweight == nullptr) return;
  MEMBOUND_CHECK(given.weight, InvalidArgument, kOp, "argument '", name.dweight,
                 "' must be None without '", name.weight, "', got an array");
  check_head_weight(*given.dweight, name.dweight, problem, array, given.x, kOp);
  check_leading_shape(*given.dweight, *given.weight, given.weight->rank, kOp, name.dweight);
  check_writable(*given.dweight, kOp, name.dweight);
}

// Outputs must not overlap inputs or each other, except that a gradient may be exactly its own dq
// or q (likewise for k).
void check_all_disjoint(const Gradient* const (&given)[2], int count, const RopeAngles& angles) {
  const auto check_disjoint = [](const TensorView* written, const char* name,
                                 const ConstTensorView* other, const char* other_name,
                                 bool in_place = false) {
    if (written && other) {
      check_rope_overlap(*written, name, *other, other_name, kOp, in_place);
    }
  };
  const auto check_disjoint_from_angles = [&](const TensorView* written, const char* name) {
    check_disjoint(written, name, angles.cos, "cos");
    check_disjoint(written, name, angles.sin, "sin");
    check_disjoint(written, name, angles.freqs, "freqs");
    check_disjoint(written, name, angles.position_ids, "position_ids");
    check_disjoint(written, name, angles.seqlen_offsets, "seqlen_offsets");
    check_disjoint(written, name, angles.cu_seqlens, "cu_seqlens");
  };
  for (int i = 0; i < count; ++i) {
    const Gradient& one = *given[i];
    check_disjoint_from_angles(one.dweight, kNames[i].dweight);
    for (int j = 0; j < count; ++j) {
      const Gradient& other = *given[j];
      const Names& name = kNames[j];
      const ConstTensorView dx = other.dx;
      check_disjoint(&one.dx, kNames[i].dx, &other.x, name.x, i == j);
      check_disjoint(&one.dx, kNames[i].dx, other.weight, name.weight);
      check_disjoint(&one.dx, kNames[i].dx, other.rstd, name.rstd);
      check_disjoint(one.dweight, kNames[i].dweight, &other.dy, name.dy);
      check_disjoint(one.dweight, kNames[i].dweight, &other.x, name.x);
      check_disjoint(one.dweight, kNames[i].dweight, other.weight, name.weight);
      check_disjoint(one.dweight, kNames[i].dweight, other.rstd, name.rstd);
      check_disjoint(one.dweight, kNames[i].dweight, &dx, name.dx);
      if (i < j && other.dweight) {
        const ConstTensorView dweight = *other.dweight;
        check_disjoint(one.dweight, kNames[i].dweight, &dweight, name.dweight);
      }
    }
  }
}

HeadGradient head_gradient(const Gradient& given, std::int64_t heads, RopeLayout layout) {
  HeadGradient made{};
  made.x = given.x.data;
  made.x_strides = rope_strides(given.x, layout);
  if (given.weight) made.weight = head_weight(*given.weight);
  if (given.rstd) made.rstd = head_statistic(*given.rstd, layout);
  if (given.dweight) {
    const HeadWeight at = head_weight(*given.dweight);
    made.dweight = {given.dweight->data, at.dtype, at.head_stride, at.stride};
  }
  made.groups = given.weight && given.weight->rank == 2 ? heads : 1;
  return made;
}

void check_workspace(const TensorView& workspace, std::int64_t bytes, const ConstTensorView& dq) {
  check_dtype(workspace, DType::kUInt8, kOp, "workspace");
  check_same_device(workspace, dq, kOp, "workspace", "dq");
  MEMBOUND_CHECK(workspace.rank == 1 && workspace.shape[0] >= bytes &&
                     (workspace.shape[0] <= 1 || workspace.strides[0] == 1) &&
                     reinterpret_cast<std::uintptr_t>(workspace.data) % 16 == 0,
                 InvalidArgument, kOp, "argument 'workspace' must be ", bytes,
                 " contiguous bytes aligned to 16, got shape ", shape_text(workspace));
}

}  // namespace

std::int64_t qk_norm_rope_backward_workspace(const ConstTensorView& q, const ConstTensorView* k,
                                             RopeLayout layout) {
  std::int64_t rows = 0, head_dim = 0;
  for (const ConstTensorView* x : {&q, k}) {
    if (x == nullptr || x->rank < 3 || x->size() == 0) continue;
    head_dim = x->shape[x->rank - 1];
    const std::int64_t heads = x->shape[layout == RopeLayout::kBhsd ? 1 : x->rank - 2];
    const std::int64_t all = x->size() / head_dim;
    // One weight for all heads, or one per head.
    rows += std::max(qk_norm_parts(all), heads * qk_norm_parts(all / heads));
  }
  return rows * head_dim * static_cast<std::int64_t>(dtype_size(accumulate_dtype(q.dtype)));
}

QkNormRopeBackwardProblem qk_norm_rope_backward_problem(const QkNormRopeGradient& q,
                                                        const QkNormRopeGradient* k,
                                                        const RopeAngles& angles,
                                                        const QkNormRopeOptions& options,
                                                        bool accumulate) {
  RopeOptions back = options.rope;
  back.inverse = !back.inverse;
  const RopeCall call{kOp,
                      "dq",
                      "dk",
                      "dq_out",
                      "dk_out",
                      q.dy,
                      k ? &k->dy : nullptr,
                      angles,
                      back,
                      q.dx,
                      k ? &k->dx : nullptr};
  QkNormRopeBackwardProblem problem{};
  problem.rope = rope_problem(call);
  check_qk_norm(problem.rope, options, {q.weight != nullptr, k && k->weight}, kOp);
  const QkNormRopeGradient* const both[] = {&q, k};
  for (int i = 0; i < problem.rope.count; ++i) {
    check_inputs(*both[i], i, problem.rope);
    problem.arrays[i] = head_gradient(*both[i], problem.rope.arrays[i].heads, options.rope.layout);
  }
  check_all_disjoint(both, problem.rope.count, angles);
  problem.eps = options.eps;
  problem.weight_offset = options.weight_offset;
  problem.round_normed = options.rounding == QkNormRounding::kBeforeWeight;
  problem.accumulate = accumulate;
  return problem;
}

void qk_norm_rope_backward(const QkNormRopeGradient& q, const QkNormRopeGradient* k,
                           const RopeAngles& angles, const QkNormRopeOptions& options,
                           bool accumulate, const TensorView* workspace, StreamView stream) {
  QkNormRopeBackwardProblem problem =
      qk_norm_rope_backward_problem(q, k, angles, options, accumulate);
  const std::int64_t bytes =
      qk_norm_rope_backward_workspace(q.dy, k ? &k->dy : nullptr, options.rope.layout);
  if (workspace) {
    check_workspace(*workspace, bytes, q.dy);
    problem.workspace = workspace->data;
  }
  route(
      q.dy.device, kOp, [&] { cpu::qk_norm_rope_backward(problem); },
      [&] {
        DeviceBuffer allocated;
        if (problem.workspace == nullptr && problem.wants_dweight()) {
          allocated = DeviceBuffer(static_cast<std::size_t>(bytes), q.dy.device, stream);
          problem.workspace = allocated.data();
        }
        cuda::qk_norm_rope_backward(problem, stream);
      });
}

}  // namespace membound
