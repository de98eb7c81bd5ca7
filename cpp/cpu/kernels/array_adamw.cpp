// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/array.hpp"
#include "cpu/vec.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

// Inputs may be the outputs: each element is read before it is written.
template <class A>
void update(const AdamWBlock& block) {
  const A *p = static_cast<const A*>(block.inputs[0]), *g = static_cast<const A*>(block.grad);
  const A *m = static_cast<const A*>(block.inputs[1]), *v = static_cast<const A*>(block.inputs[2]);
  A *new_p = static_cast<A*>(block.outputs[0]), *new_m = static_cast<A*>(block.outputs[1]);
  A* new_v = static_cast<A*>(block.outputs[2]);
  const AdamWStep<A> step(block.factors);
#pragma GCC ivdep
  for (std::int64_t i = 0; i < block.count; ++i) {
    const A mean = step.exp_avg(m[i], g[i]), square = step.exp_avg_sq(v[i], g[i]);
    new_m[i] = mean;
    new_v[i] = square;
    new_p[i] = step.param(p[i], mean, square);
  }
}

}  // namespace

void array_adamw(const AdamWBlock& block) {
  block.dtype == DType::kFloat64 ? update<double>(block) : update<float>(block);
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
