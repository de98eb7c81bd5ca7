// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/dispatch.hpp"
#include "cuda/gated_activation_backward_kernel.cuh"
#include "cuda/tuning/gated_activation_backward.hpp"
#include "ops/gated_activation_backward.hpp"

namespace membound::cuda {

namespace {

template <class T>
bool all_take_chunks(const GatedActivationBackwardProblem& problem) {
  const std::int64_t cols = problem.cols;
  return takes_chunks<T>(problem.dy, problem.dy_rows, problem.dy_col_stride, cols) &&
         takes_chunks<T>(problem.gate, problem.gate_rows, problem.gate_col_stride, cols) &&
         takes_chunks<T>(problem.up, problem.up_rows, problem.up_col_stride, cols) &&
         takes_chunks<T>(problem.dgate, problem.dgate_rows, problem.dgate_col_stride, cols) &&
         takes_chunks<T>(problem.dup, problem.dup_rows, problem.dup_col_stride, cols);
}

template <class T, bool kChunks>
void launch_units(const GatedActivationBackwardProblem& problem, StreamView stream) {
  using U = Unit<T, kChunks>;
  GatedActivationBackwardParams<accumulate_t<T>> p{};
  p.dy = gate_array(problem.dy, problem.dy_rows, problem.dy_col_stride);
  p.gate = gate_array(problem.gate, problem.gate_rows, problem.gate_col_stride);
  p.up = gate_array(problem.up, problem.up_rows, problem.up_col_stride);
  p.row_scale = gate_array(problem.row_scale, problem.row_scale_rows, 1);
  p.dgate = gate_array(problem.dgate, problem.dgate_rows, problem.dgate_col_stride);
  p.dup = gate_array(problem.dup, problem.dup_rows, problem.dup_col_stride);
  p.dy_rows = problem.dy_rows;
  p.gate_rows = problem.gate_rows;
  p.up_rows = problem.up_rows;
  p.row_scale_rows = problem.row_scale_rows;
  p.dgate_rows = problem.dgate_rows;
  p.dup_rows = problem.dup_rows;
  p.rows = problem.rows;
  p.units = problem.cols / U::kWidth;
  p.config = tuning::gated_activation_backward_config(p.rows, p.units, U::kCount);
  p.numbers =
      gate_numbers<T>(problem.options, problem.up != nullptr && problem.row_scale == nullptr);
  const LaunchShape shape{p.config.blocks, p.config.threads};
  launch<gated_activation_backward_kernel<T, kChunks>>(shape, stream, current_device(), p);
}

}  // namespace

void gated_activation_backward(const GatedActivationBackwardProblem& problem, StreamView stream) {
  dispatch_floating(problem.dtype, "gated_activation_backward", [&]<class T>() {
    if constexpr (sizeof(T) < 8) {
      if (all_take_chunks<T>(problem)) return launch_units<T, true>(problem, stream);
    }
    launch_units<T, false>(problem, stream);
  });
}

}  // namespace membound::cuda
