// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>

#include "membound/cuda_check.hpp"
#include "membound/stream.hpp"

namespace {

constexpr int kThreads = 256;

// One element per thread; limited by the bandwidth of global memory alone.
__global__ void add_kernel(const float* a, const float* b, float* sum, std::size_t count) {
  const std::size_t i = blockIdx.x * static_cast<std::size_t>(kThreads) + threadIdx.x;
  if (i < count) sum[i] = a[i] + b[i];
}

}  // namespace

void add_on_gpu(const float* a, const float* b, float* sum, std::size_t count,
                membound::StreamView stream) {
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  add_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream.handle())>>>(a, b, sum, count);
  CUDA_CHECK(cudaGetLastError());
}
