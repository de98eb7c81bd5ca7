// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The CUDA back end of element-wise ops, but for the arithmetic: Op<T>(number) or Op<T>(number,
// number) returns a result, all in the accumulate type of T.
#include "core/dispatch.hpp"
#include "core/elementwise.hpp"
#include "cuda/activation/gate_tile.cuh"

namespace membound::cuda {

// Units of each input per thread: as many loads are in flight for one input as for two.
template <class T, bool kVectors, int kInputs>
constexpr int kElementwiseUnits = 2 * Unit<T, kVectors>::kCount / kInputs;

template <class Op, int kInputs>
struct ElementwiseParams {
  GateArray<const void*> inputs[kInputs];
  GateArray<void*> out;
  std::int64_t rows, units;
  tuning::GatedActivationConfig config;
  Op op;
  RowLayout input_rows[kInputs], out_rows;
};

// One block has a tile of a row, or several narrow rows. A thread loads all of its units before it
// computes one. No shared memory. Memory-bound.
template <class T, bool kVectors, class Op, int kInputs>
__global__ void __launch_bounds__(tuning::kGateThreads)
    elementwise_kernel(const __grid_constant__ ElementwiseParams<Op, kInputs> p) {
  using U = Unit<T, kVectors>;
  constexpr int kUnits = kElementwiseUnits<T, kVectors, kInputs>;
  pdl_launch_dependents();
  const GatePosition position(p.config);
  if (position.row >= p.rows) return;
  pdl_wait();
  typename U::Raw loaded[kInputs][kUnits] = {};
#pragma unroll
  for (int k = 0; k < kInputs; ++k) {
    const std::int64_t row = p.inputs[k].offset(p.input_rows[k], position.row);
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const std::int64_t unit = position.first + i * position.lanes;
      if (i < position.count && unit < p.units)
        loaded[k][i] = *p.inputs[k].template at<T, kVectors>(row, unit);
    }
  }
  const std::int64_t row = p.out.offset(p.out_rows, position.row);
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    const std::int64_t unit = position.first + i * position.lanes;
    if (i >= position.count || unit >= p.units) return;
    auto values = U::unpacked(loaded[0][i]);
    const auto second = U::unpacked(loaded[kInputs - 1][i]);
#pragma unroll
    for (int j = 0; j < U::kWidth; ++j) {
      if constexpr (kInputs == 1) {
        values.at[j] = p.op(values.at[j]);
      } else {
        values.at[j] = p.op(values.at[j], second.at[j]);
      }
    }
    *p.out.template at<T, kVectors>(row, unit) = U::packed(values);
  }
}

template <class T, bool kVectors, class Op, int kInputs>
void launch_elementwise(const ElementwiseProblem& problem, const Op& op, StreamView stream) {
  using U = Unit<T, kVectors>;
  ElementwiseParams<Op, kInputs> p{.op = op};
  for (int k = 0; k < kInputs; ++k) {
    const InputRows& input = problem.inputs[k];
    p.inputs[k] = gate_array(input.data, input.layout, input.col_stride);
    p.input_rows[k] = input.layout;
  }
  p.out = gate_array(problem.out.data, problem.out.layout, problem.out.col_stride);
  p.out_rows = problem.out.layout;
  p.rows = problem.rows;
  p.units = (problem.cols + U::kWidth - 1) / U::kWidth;
  constexpr int kUnits = kElementwiseUnits<T, kVectors, kInputs>;
  p.config = tuning::gated_activation_config(p.rows, p.units, kUnits);
  launch<elementwise_kernel<T, kVectors, Op, kInputs>>({p.config.blocks, p.config.threads}, stream,
                                                       current_device(), p);
}

// Queues Op<T>{numbers...} for all elements, T being the dtype of the problem.
template <template <class> class Op, class... Numbers>
void elementwise(const ElementwiseProblem& problem, const char* name, StreamView stream,
                 Numbers... numbers) {
  dispatch_floating(problem.dtype, name, [&]<class T>() {
    constexpr int kInputs = requires(Op<T> op, accumulate_t<T> a) { op(a, a); } ? 2 : 1;
    const Op<T> op(numbers...);
    const auto takes_vectors = [&](const auto& rows) {
      return is_vectorisable<T>(rows.data, rows.layout, rows.col_stride, problem.cols);
    };
    if constexpr (sizeof(T) < 8) {
      if (takes_vectors(problem.inputs[0]) && takes_vectors(problem.inputs[1]) &&
          takes_vectors(problem.out))
        return launch_elementwise<T, true, Op<T>, kInputs>(problem, op, stream);
    }
    launch_elementwise<T, false, Op<T>, kInputs>(problem, op, stream);
  });
}

}  // namespace membound::cuda
