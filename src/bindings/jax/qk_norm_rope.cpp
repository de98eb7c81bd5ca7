// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/qk_norm_rope.hpp"

#include "jax/rope_options.hpp"
#include "ops/qk_norm_rope_backward.hpp"

namespace membound::python::jax {

namespace {

template <class Given>
QkNormRopeOptions options_of(const Given& a) {
  return {rope_options_of(a), a.eps, a.weight_offset, static_cast<QkNormRounding>(a.rounding)};
}

// Calls body(call) with the arrays as the library's types.
template <class Body>
auto with_call(const QkNormRope& a, const QkNormRopeOptions& options, Body body) {
  const OptionalView k(a.k), q_weight(a.q_weight), k_weight(a.k_weight);
  const Angles held(a);
  const RopeAngles angles = held;
  return body(QkNormRopeCall{a.q.value(), k, q_weight, k_weight, angles, options, a.out.value(),
                             pointer(a.k_out), pointer(a.q_rstd), pointer(a.k_rstd)});
}

// Calls body(q, k, angles), likewise.
template <class Body>
auto with_gradients(const QkNormRopeBackward& a, Body body) {
  const OptionalView q_weight(a.q_weight), k_weight(a.k_weight);
  const OptionalView q_rstd(a.q_rstd), k_rstd(a.k_rstd);
  const Angles angles(a);
  const bool two = a.k.has_value();
  const ConstTensorView q = a.q_read.value(), dq = a.q.value();
  const ConstTensorView k = (two ? a.k_read : a.q_read).value(), dk = *(two ? a.k : a.q);
  const QkNormRopeGradient of_q{dq, q, q_weight, q_rstd, a.out.value(), pointer(a.dq_weight)};
  const QkNormRopeGradient of_k{
      dk, k, k_weight, k_rstd, (two ? a.k_out : a.out).value(), pointer(a.dk_weight)};
  return body(of_q, two ? &of_k : nullptr, RopeAngles(angles));
}

}  // namespace

void run(const QkNormRope& a, StreamView stream) {
  with_call(a, options_of(a), [&](const QkNormRopeCall& call) {
    qk_norm_rope(call.q, call.k, call.q_weight, call.k_weight, call.angles, call.options, call.out,
                 call.k_out, call.q_rstd, call.k_rstd, stream);
  });
}

void run(const QkNormRopeBackward& a, StreamView stream) {
  with_gradients(
      a, [&](const QkNormRopeGradient& q, const QkNormRopeGradient* k, const RopeAngles& angles) {
        qk_norm_rope_backward(q, k, angles, options_of(a), false, pointer(a.workspace), stream);
      });
}

std::int64_t check(const QkNormRope& a) {
  QkNormRopeOptions options = options_of(a);
  options.rope.validate = false;
  with_call(a, options, [](const QkNormRopeCall& call) { qk_norm_rope_problem(call); });
  return 0;
}

std::int64_t check(const QkNormRopeBackward& a) {
  QkNormRopeOptions options = options_of(a);
  options.rope.validate = false;
  return with_gradients(
      a, [&](const QkNormRopeGradient& q, const QkNormRopeGradient* k, const RopeAngles& angles) {
        qk_norm_rope_backward_problem(q, k, angles, options, false);
        return qk_norm_rope_backward_workspace(q.dy, k ? &k->dy : nullptr, options.rope.layout);
      });
}

}  // namespace membound::python::jax
