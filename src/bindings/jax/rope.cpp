// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/rope.hpp"

#include "jax/rope_options.hpp"
#include "membound/ops/rope_backward.hpp"

namespace membound::python::jax {

void run(const Rope& a, StreamView stream) {
  const RopeOptions options = rope_options_of(a);
  const Angles angles(a);
  const OptionalView k(a.k);
  if (!a.backward) {
    return rope(a.q.value(), k, angles, options, a.out.value(), pointer(a.k_out), stream);
  }
  rope_backward(a.q.value(), k, OptionalView(a.q_read), OptionalView(a.k_read), angles, options,
                a.out.value(), pointer(a.k_out), pointer(a.dfreqs), pointer(a.workspace), stream);
}

std::int64_t check(const Rope& a) {
  RopeOptions options = rope_options_of(a);
  options.validate = false;
  const Angles angles(a);
  const OptionalView k(a.k);
  const RopeProblem problem =
      rope_problem({a.op, a.q_name, a.k_name, a.out_name, a.k_out_name, a.q.value(), k, angles,
                    options, a.out.value(), pointer(a.k_out)});
  return a.dfreqs ? rope_backward_workspace(problem.rotary_dim) : 0;
}

}  // namespace membound::python::jax
