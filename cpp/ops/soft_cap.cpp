// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/soft_cap.hpp"

#include <cmath>

#include "core/route.hpp"
#include "core/validate.hpp"

namespace membound {

namespace {

void run(const SoftCapProblem& problem, Device device, const char* op, StreamView stream) {
  MEMBOUND_CHECK(std::isfinite(problem.cap) && problem.cap > 0.0, InvalidArgument, op,
                 "argument 'cap' must be finite and above 0, got ", problem.cap);
  check_finite(problem.cap, problem.arrays.dtype, op, "cap");
  check_limit(problem.cap, problem.arrays.dtype, op, "cap");
  if (problem.arrays.rows == 0) return;
  route(device, op, [&] { cpu::soft_cap(problem); }, [&] { cuda::soft_cap(problem, stream); });
}

}  // namespace

void soft_cap(const ConstTensorView& x, double cap, const TensorView& out, StreamView stream) {
  constexpr const char* kOp = "soft_cap";
  run({elementwise_problem(kOp, {{"x", x}}, "out", out), cap}, x.device, kOp, stream);
}

void soft_cap_backward(const ConstTensorView& dy, const ConstTensorView& x, double cap,
                       const TensorView& dx, StreamView stream) {
  constexpr const char* kOp = "soft_cap_backward";
  run({elementwise_problem(kOp, {{"x", x}, {"dy", dy}}, "dx", dx), cap}, x.device, kOp, stream);
}

}  // namespace membound
