// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <atomic>

#include "cuda/device.hpp"
#include "cuda/launch.hpp"
#include "membound/cuda_check.hpp"

namespace membound::cuda {

namespace {

__global__ void empty_kernel() {}

}  // namespace

int multiprocessors(int device) {
  static std::atomic<int> known[kMaxDevices];  // 0: not asked yet
  int answer = known[device].load(std::memory_order_relaxed);
  if (answer == 0) {
    MEMBOUND_CUDA_CHECK(cudaDeviceGetAttribute(&answer, cudaDevAttrMultiProcessorCount, device));
    known[device].store(answer, std::memory_order_relaxed);
  }
  return answer;
}

int compiled_architecture() {
  cudaFuncAttributes attributes;
  MEMBOUND_CUDA_CHECK(cudaFuncGetAttributes(&attributes, empty_kernel));
  return attributes.ptxVersion;
}

}  // namespace membound::cuda
