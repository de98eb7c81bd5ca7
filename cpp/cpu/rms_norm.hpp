// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/rows.hpp"
#include "ops/rms_norm.hpp"

// How rows of a norm come to the kernels, for the back ends that do something with its result.
namespace membound::cpu {

// What all rows share, and the parameters that it points into; row pointers and their number come
// with each run.
struct PreparedNorm {
  RmsNormRows rows;
  PreparedWeight weight, bias;
};
PreparedNorm prepare_norm(const RmsNormProblem& problem, const KernelTable& table);

// Moves to the rows from `row` on, at most rows.rows, fewer where a layout leaves its innermost
// axis. Arrays that the problem lacks stay as they are.
void enter_rows(RmsNormRows& rows, const RmsNormProblem& problem, std::int64_t row);

}  // namespace membound::cpu
