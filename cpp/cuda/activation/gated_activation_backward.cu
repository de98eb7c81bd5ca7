// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/dispatch.hpp"
#include "cuda/activation/gated_activation_backward_config.hpp"
#include "cuda/activation/gated_activation_backward_kernel.cuh"
#include "ops/gated_activation_backward.hpp"

namespace membound::cuda {

namespace {

template <class T>
bool all_take_vectors(const GatedActivationBackwardProblem& problem) {
  const std::int64_t cols = problem.cols;
  return is_vectorisable<T>(problem.dy, problem.dy_rows, problem.dy_col_stride, cols) &&
         is_vectorisable<T>(problem.gate, problem.gate_rows, problem.gate_col_stride, cols) &&
         is_vectorisable<T>(problem.up, problem.up_rows, problem.up_col_stride, cols) &&
         is_vectorisable<T>(problem.dgate, problem.dgate_rows, problem.dgate_col_stride, cols) &&
         is_vectorisable<T>(problem.dup, problem.dup_rows, problem.dup_col_stride, cols);
}

template <class T>
bool all_support_unaligned(const GatedActivationBackwardProblem& problem) {
  const auto stride = [](const void* data, std::int64_t col_stride) {
    return data != nullptr ? col_stride : 1;
  };
  return supports_unaligned<T>(
      {problem.dy_col_stride, problem.gate_col_stride, stride(problem.up, problem.up_col_stride),
       stride(problem.dgate, problem.dgate_col_stride),
       stride(problem.dup, problem.dup_col_stride)},
      problem.cols);
}

// True if rows of dgate and dup may differ in alignment, modulo 16 bytes.
template <class T>
bool alignments_may_differ(const GatedActivationBackwardProblem& problem) {
  if (problem.dgate == nullptr || problem.dup == nullptr) return false;
  const auto behind = [](const void* data) {
    return reinterpret_cast<std::uintptr_t>(data) % kVectorBytes;
  };
  const RowLayout &a = problem.dgate_rows, &b = problem.dup_rows;
  bool alike = behind(problem.dgate) == behind(problem.dup) && a.rank == b.rank;
  for (int axis = 0; alike && axis < a.rank; ++axis) {
    alike = a.shape[axis] == b.shape[axis] && (a.strides[axis] - b.strides[axis]) % kPack<T> == 0;
  }
  return !alike;
}

template <class T, Access kAccess>
void launch_units(const GatedActivationBackwardProblem& problem, StreamView stream) {
  constexpr bool kVectors = kAccess != Access::kStrided;
  using U = Unit<T, kVectors>;
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
  p.cols = problem.cols;
  p.units = (problem.cols + U::kWidth - 1) / U::kWidth;
  p.config = kAccess == Access::kUnaligned
                 ? tuning::unaligned_gate_config(p.rows, p.units)
                 : tuning::gated_activation_backward_config(p.rows, p.units, U::kCount);
  p.numbers =
      gate_numbers<T>(problem.options, problem.up != nullptr && problem.row_scale == nullptr);
  const LaunchShape shape{p.config.blocks, p.config.threads};
  if constexpr (kAccess == Access::kUnaligned) {
    p.alignments_differ = alignments_may_differ<T>(problem);
    launch<gated_activation_backward_unaligned_kernel<T>>(shape, stream, current_device(), p);
  } else {
    launch<gated_activation_backward_kernel<T, kVectors>>(shape, stream, current_device(), p);
  }
}

}  // namespace

void gated_activation_backward(const GatedActivationBackwardProblem& problem, StreamView stream) {
  dispatch_floating(problem.dtype, "gated_activation_backward", [&]<class T>() {
    if constexpr (sizeof(T) < 8) {
      if (all_take_vectors<T>(problem)) return launch_units<T, Access::kAligned>(problem, stream);
      if (all_support_unaligned<T>(problem))
        return launch_units<T, Access::kUnaligned>(problem, stream);
    }
    launch_units<T, Access::kStrided>(problem, stream);
  });
}

}  // namespace membound::cuda
