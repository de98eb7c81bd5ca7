// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/qk_norm_rope.hpp"

#include "core/route.hpp"
#include "core/validate.hpp"

namespace membound {

namespace {

constexpr const char* kOp = "qk_norm_rope";

struct Named {
  const ConstTensorView* view;
  const char* name;
};

// What the call brought beside rope's arrays, for q and for k.
struct Norms {
  Named weights[2], rstds[2];
};

// A written array beside all that is read or written; rope has checked its own among themselves.
void check_apart(const Norms& norms, const RopeCall& call) {
  const auto apart = [](const Named& written, const Named& other) {
    if (written.view == nullptr || other.view == nullptr) return;
    check_rope_overlap(*written.view, written.name, *other.view, other.name, kOp,
                       /*in_place=*/false);
  };
  const ConstTensorView out = call.out, k_out = call.k_out ? *call.k_out : call.out;
  const Named outs[] = {{&out, "out"}, {call.k_out ? &k_out : nullptr, "k_out"}};
  const Named reads[] = {{&call.q, "q"},
                         {call.k, "k"},
                         {call.angles.cos, "cos"},
                         {call.angles.sin, "sin"},
                         {call.angles.freqs, "freqs"},
                         {call.angles.position_ids, "position_ids"},
                         {call.angles.seqlen_offsets, "seqlen_offsets"},
                         {call.angles.cu_seqlens, "cu_seqlens"}};
  for (const Named& weight : norms.weights) {
    for (const Named& one : outs) apart(one, weight);
    for (const Named& one : norms.rstds) apart(one, weight);
  }
  for (const Named& rstd : norms.rstds) {
    for (const Named& one : outs) apart(rstd, one);
    for (const Named& one : reads) apart(rstd, one);
  }
  apart(norms.rstds[1], norms.rstds[0]);
}

// Arrays without heads are nothing to do.
QkNormRopeProblem with_heads(const QkNormRopeProblem& problem) {
  QkNormRopeProblem some = problem;
  some.rope.count = 0;
  for (int i = 0; i < problem.rope.count; ++i) {
    if (problem.rope.arrays[i].heads == 0) continue;
    const int at = some.rope.count++;
    some.rope.arrays[at] = problem.rope.arrays[i];
    some.weights[at] = problem.weights[i];
    some.rstds[at] = problem.rstds[i];
  }
  return some;
}

}  // namespace

HeadStatistic head_statistic(const ConstTensorView& view, RopeLayout layout) {
  ConstTensorView heads = view;  // with the axis of elements that it lacks
  heads.shape[heads.rank] = 1;
  heads.strides[heads.rank++] = 0;
  return {const_cast<void*>(view.data), rope_strides(heads, layout)};
}

void check_head_weight(const ConstTensorView& weight, const char* name, const RopeProblem& problem,
                       int array, const ConstTensorView& x, const char* op) {
  const std::int64_t heads = problem.arrays[array].heads;
  check_floating(weight, op, name);
  check_same_device(weight, x, op, name, array == 0 ? "q" : "k");
  const bool fits =
      (weight.rank == 1 && weight.shape[0] == problem.head_dim) ||
      (weight.rank == 2 && weight.shape[0] == heads && weight.shape[1] == problem.head_dim);
  MEMBOUND_CHECK(fits, InvalidArgument, op, "argument '", name, "' must have shape (",
                 problem.head_dim, ",) or (", heads, ", ", problem.head_dim, "), got ",
                 shape_text(weight));
}

HeadWeight head_weight(const ConstTensorView& weight) {
  const bool of_each = weight.rank == 2;
  return {weight.data, weight.dtype, of_each ? weight.strides[0] : 0,
          weight.strides[weight.rank - 1]};
}

void check_qk_norm(const RopeProblem& problem, const QkNormRopeOptions& options,
                   const bool (&has_weight)[2], const char* op) {
  check_eps(options.eps, op);
  const bool all = has_weight[0] && (problem.count == 1 || has_weight[1]);
  check_weight_offset(options.weight_offset, all, op);
  MEMBOUND_CHECK(problem.count == 2 || !has_weight[1], InvalidArgument, op,
                 "argument 'k_weight' must be None without 'k'");
  MEMBOUND_CHECK(problem.head_dim <= kMaxQkNormHeadDim, InvalidArgument, op,
                 "argument 'q' must have heads of at most ", kMaxQkNormHeadDim, " elements, got ",
                 problem.head_dim);
}

QkNormRopeProblem qk_norm_rope_problem(const QkNormRopeCall& given) {
  const auto& [q, k, q_weight, k_weight, angles, options, out, k_out, q_rstd, k_rstd] = given;
  const RopeCall call{kOp, "q", "k", "out", "k_out", q, k, angles, options.rope, out, k_out};
  QkNormRopeProblem problem{};
  problem.rope = rope_problem(call);
  const ConstTensorView q_statistic = q_rstd ? *q_rstd : out;
  const ConstTensorView k_statistic = k_rstd ? *k_rstd : out;
  const Norms norms{
      {{q_weight, "q_weight"}, {k_weight, "k_weight"}},
      {{q_rstd ? &q_statistic : nullptr, "q_rstd"}, {k_rstd ? &k_statistic : nullptr, "k_rstd"}}};
  check_qk_norm(problem.rope, options, {q_weight != nullptr, k_weight != nullptr}, kOp);
  MEMBOUND_CHECK(k || !k_rstd, InvalidArgument, kOp, "argument 'k_rstd' must be None without 'k'");
  for (int i = 0; i < problem.rope.count; ++i) {
    const ConstTensorView& x = i == 0 ? q : *k;
    if (const auto& [weight, name] = norms.weights[i]; weight) {
      check_head_weight(*weight, name, problem.rope, i, x, kOp);
      problem.weights[i] = head_weight(*weight);
    }
    if (const auto& [rstd, name] = norms.rstds[i]; rstd) {
      check_row_statistic(*rstd, name, x, i == 0 ? "q" : "k", kOp);
      check_writable(*rstd, kOp, name);
      problem.rstds[i] = head_statistic(*rstd, options.rope.layout);
    }
  }
  check_apart(norms, call);
  problem.eps = options.eps;
  problem.weight_offset = options.weight_offset;
  problem.round_normed = options.rounding == QkNormRounding::kBeforeWeight;
  problem.round_weighted = options.rounding != QkNormRounding::kOnce;
  return problem;
}

void qk_norm_rope(const ConstTensorView& q, const ConstTensorView* k,
                  const ConstTensorView* q_weight, const ConstTensorView* k_weight,
                  const RopeAngles& angles, const QkNormRopeOptions& options, const TensorView& out,
                  const TensorView* k_out, const TensorView* q_rstd, const TensorView* k_rstd,
                  StreamView stream) {
  const QkNormRopeProblem problem = with_heads(qk_norm_rope_problem(
      {q, k, q_weight, k_weight, angles, options, out, k_out, q_rstd, k_rstd}));
  if (problem.rope.count == 0 || problem.rope.tokens() == 0) return;
  route(
      q.device, kOp, [&] { cpu::qk_norm_rope(problem); },
      [&] { cuda::qk_norm_rope(problem, stream); });
}

}  // namespace membound
