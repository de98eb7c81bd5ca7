// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/soft_cap.hpp"

#include "cpu/elementwise.hpp"
#include "cpu/isa.hpp"

namespace membound::cpu {

void soft_cap(const SoftCapProblem& problem) {
  const KernelTable& table = kernels();
  each_elementwise_part(problem.arrays,
                        [&](const ElementwiseRows& rows) { table.soft_cap(rows, problem.cap); });
}

}  // namespace membound::cpu
