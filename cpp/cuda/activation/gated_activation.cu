// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/dispatch.hpp"
#include "cuda/activation/gated_activation_kernel.cuh"
#include "ops/gated_activation.hpp"

namespace membound::cuda {

namespace {

template <class T>
bool all_take_vectors(const GatedActivationProblem& problem) {
  const std::int64_t cols = problem.cols;
  return is_vectorisable<T>(problem.gate, problem.gate_rows, problem.gate_col_stride, cols) &&
         is_vectorisable<T>(problem.up, problem.up_rows, problem.up_col_stride, cols) &&
         is_vectorisable<T>(problem.out, problem.out_rows, problem.out_col_stride, cols);
}

template <class T>
bool all_support_unaligned(const GatedActivationProblem& problem) {
  const std::int64_t up = problem.up != nullptr ? problem.up_col_stride : 1;
  return supports_unaligned<T>({problem.gate_col_stride, up, problem.out_col_stride}, problem.cols);
}

template <class T, Access kAccess>
void launch_units(const GatedActivationProblem& problem, StreamView stream) {
  constexpr bool kVectors = kAccess != Access::kStrided;
  using U = Unit<T, kVectors>;
  GatedActivationParams<accumulate_t<T>> p{};
  p.gate = gate_array(problem.gate, problem.gate_rows, problem.gate_col_stride);
  p.up = gate_array(problem.up, problem.up_rows, problem.up_col_stride);
  p.row_scale = gate_array(problem.row_scale, problem.row_scale_rows, 1);
  p.out = gate_array(problem.out, problem.out_rows, problem.out_col_stride);
  p.gate_rows = problem.gate_rows;
  p.up_rows = problem.up_rows;
  p.row_scale_rows = problem.row_scale_rows;
  p.out_rows = problem.out_rows;
  p.rows = problem.rows;
  p.cols = problem.cols;
  p.units = (problem.cols + U::kWidth - 1) / U::kWidth;
  p.config = kAccess == Access::kUnaligned
                 ? tuning::unaligned_gate_config(p.rows, p.units)
                 : tuning::gated_activation_config(p.rows, p.units, U::kCount);
  p.numbers =
      gate_numbers<T>(problem.options, problem.up != nullptr && problem.row_scale == nullptr);
  const LaunchShape shape{p.config.blocks, p.config.threads};
  if constexpr (kAccess == Access::kUnaligned) {
    launch<gated_activation_unaligned_kernel<T>>(shape, stream, current_device(), p);
  } else {
    launch<gated_activation_kernel<T, kVectors>>(shape, stream, current_device(), p);
  }
}

}  // namespace

void gated_activation(const GatedActivationProblem& problem, StreamView stream) {
  dispatch_floating(problem.dtype, "gated_activation", [&]<class T>() {
    if constexpr (sizeof(T) < 8) {
      if (all_take_vectors<T>(problem)) return launch_units<T, Access::kAligned>(problem, stream);
      if (all_support_unaligned<T>(problem))
        return launch_units<T, Access::kUnaligned>(problem, stream);
    }
    launch_units<T, Access::kStrided>(problem, stream);
  });
}

}  // namespace membound::cuda
