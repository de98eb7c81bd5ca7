// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Gradient of the frequencies, in two kernels: partial sums over parts of the tokens, then the sum
// of the parts.
#include "cuda/launch/launch.hpp"
#include "cuda/rope/rope_angles.cuh"
#include "cuda/row/cluster.cuh"
#include "ops/rope.hpp"

namespace membound::cuda {

namespace {

constexpr int kLanes = 64;      // pairs at once
constexpr int kTokenLanes = 4;  // tokens at once
constexpr int kSumThreads = 128;

// A block sums one part of the tokens. Lane t of kTokenLanes has every kTokenLanes-th token; shared
// memory holds the lanes' sums, which are added in lane order, so that the tree depends on the
// shape alone. Float64 throughout, whatever the dtype. Limited by the latency of loads.
__global__ void __launch_bounds__(kLanes* kTokenLanes)
    rope_parts_kernel(const __grid_constant__ RopeFrequenciesProblem problem) {
  pdl_wait_and_launch();
  __shared__ double partial_sums[kTokenLanes][kLanes];
  const RopeProblem& p = problem.rope;
  const int lane = threadIdx.x % kLanes, token_lane = threadIdx.x / kLanes;
  const std::int64_t tokens = p.batch * p.seq, pairs = p.rotary_dim / 2;
  const std::int64_t each = rope_tokens_per_part(tokens);
  const std::int64_t first = blockIdx.x * each;
  const std::int64_t last = first + each < tokens ? first + each : tokens;
  for (std::int64_t from = 0; from < pairs; from += kLanes) {
    const std::int64_t pair = from + lane;
    double sum = 0;
    for (std::int64_t token = first + token_lane; pair < pairs && token < last;
         token += kTokenLanes) {
      const std::int64_t b = wide_quotient(token, p.seq), s = token - b * p.seq;
      const AngleRow row = angle_row(p, pair, b, s);
      if (row.kind == AngleRow::kNone) continue;
      const std::int64_t one = p.rotary_offset + (p.interleaved ? 2 * pair : pair);
      const std::int64_t other = one + (p.interleaved ? 1 : pairs);
      double term = 0;
#pragma unroll 1
      for (int i = 0; i < p.count; ++i) {
        const RopeStrides& xs = problem.x_strides[i];
        const RopeStrides& ds = p.arrays[i].out_strides;
#pragma unroll 1
        for (std::int64_t head = 0; head < p.arrays[i].heads; ++head) {
          const std::int64_t x = xs.at(b, s) + head * xs.head;
          const std::int64_t dx = ds.at(b, s) + head * ds.head;
          const double x1 = read_number<double>(problem.x[i], p.dtype, x + one * xs.dim);
          const double x2 = read_number<double>(problem.x[i], p.dtype, x + other * xs.dim);
          const double dx1 = read_number<double>(p.arrays[i].out, p.dtype, dx + one * ds.dim);
          const double dx2 = read_number<double>(p.arrays[i].out, p.dtype, dx + other * ds.dim);
          term += product(x1, dx2) - product(x2, dx1);
        }
      }
      sum += product(row.position, term);
    }
    partial_sums[token_lane][lane] = sum;
    __syncthreads();
    if (token_lane == 0 && pair < pairs) {
      double total = 0;
      for (int i = 0; i < kTokenLanes; ++i) total += partial_sums[i][lane];
      static_cast<double*>(problem.workspace)[blockIdx.x * pairs + pair] = total;
    }
    __syncthreads();
  }
}

// A thread adds the parts of one pair in order. Latency-bound.
__global__ void rope_sum_parts_kernel(const __grid_constant__ RopeFrequenciesProblem problem) {
  pdl_wait_and_launch();
  const std::int64_t pairs = problem.rope.rotary_dim / 2;
  const std::int64_t pair = std::int64_t{blockIdx.x} * kSumThreads + threadIdx.x;
  if (pair >= pairs) return;
  const double* parts = static_cast<const double*>(problem.workspace) + pair;
  double sum = 0;
#pragma unroll 8
  for (std::int64_t part = 0; part < kRopeParts; ++part) sum += parts[part * pairs];
  // The gradient is rotated opposite to the forward: `inverse` here means that the forward was not
  // inverse.
  if (!problem.rope.inverse) sum = -sum;
  const std::int64_t at = pair * problem.dfreqs_stride;
  if (problem.dfreqs_dtype == DType::kFloat64) {
    static_cast<double*>(problem.dfreqs)[at] = sum;
  } else {
    static_cast<float*>(problem.dfreqs)[at] = static_cast<float>(sum);
  }
}

}  // namespace

void rope_frequencies(const RopeFrequenciesProblem& problem, StreamView stream) {
  const int device = current_device();
  launch<rope_parts_kernel>({.blocks = kRopeParts, .threads = kLanes * kTokenLanes}, stream, device,
                            problem);
  const std::int64_t pairs = problem.rope.rotary_dim / 2;
  launch<rope_sum_parts_kernel>(
      {.blocks = (pairs + kSumThreads - 1) / kSumThreads, .threads = kSumThreads}, stream, device,
      problem);
}

}  // namespace membound::cuda
