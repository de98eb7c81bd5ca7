// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Random numbers, the same as the CPU's: this unit is compiled without contraction to FMA.
#include "core/array/philox.hpp"
#include "cuda/array/unit.cuh"
#include "cuda/launch/launch.hpp"
#include "cuda/row/cluster.cuh"

namespace membound::cuda {

namespace {

inline constexpr int kRandomThreads = 256;

struct RandomParams {
  ArrayRandom problem;
  int item_bytes;
};

// A thread makes the elements of one block of random words. Limited by arithmetic.
__global__ void __launch_bounds__(kRandomThreads)
    array_random_kernel(const __grid_constant__ RandomParams params) {
  pdl_wait_and_launch();
  const ArrayRandom& p = params.problem;
  const bool is_real = p.kind == RandomKind::kUniform || p.kind == RandomKind::kNormal;
  const int each = is_real ? philox::per_block(p.dtype) : 2;
  const std::int64_t block = std::int64_t{blockIdx.x} * kRandomThreads + threadIdx.x;
  const philox::Words words = philox::block(p.counter + static_cast<std::uint64_t>(block), p.seed);
  double reals[4];
  std::uint64_t naturals[2];
  if (is_real) {
    philox::reals({p.kind == RandomKind::kNormal, p.dtype, p.low, p.high}, words, reals);
  } else {
    philox::integers(p.lowest, p.range, words, naturals);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::int64_t at = block * each + i;
    if (i >= each || at >= p.count) break;
    char* data = static_cast<char*>(p.result);
    is_real ? store_number(data, p.dtype, params.item_bytes, at, reals[i])
            : store_number(data, p.dtype, params.item_bytes, at, naturals[i % 2]);
  }
}

}  // namespace

void array_random(const ArrayRandom& problem, StreamView stream) {
  const bool is_real = problem.kind == RandomKind::kUniform || problem.kind == RandomKind::kNormal;
  const std::int64_t each = is_real ? philox::per_block(problem.dtype) : 2;
  const std::int64_t per_launch = each * kRandomThreads;
  launch<array_random_kernel>({(problem.count + per_launch - 1) / per_launch, kRandomThreads},
                              stream, current_device(),
                              RandomParams{problem, static_cast<int>(dtype_size(problem.dtype))});
}

}  // namespace membound::cuda
