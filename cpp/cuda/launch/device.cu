// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Device attributes, cached per device, and the architecture whose code a device runs.
#include <atomic>
#include <string>

#include "cuda/launch/device.hpp"
#include "cuda/launch/launch.hpp"
#include "membound/cuda_check.hpp"

namespace membound::cuda {

namespace {

__global__ void empty_kernel() {}

[[noreturn]] void throw_without_code(cudaError_t error, int device) {
  int major = 0, minor = 0;
  MEMBOUND_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  MEMBOUND_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  const std::string number = std::to_string(10 * major + minor);
  throw CudaError(error, cudaGetErrorName(error),
                  "this membound has CUDA kernels for " MEMBOUND_CUDA_ARCHITECTURES
                  ", which cuda:" +
                      std::to_string(device) + " (" + number +
                      ") does not run: build it with CUDAARCHS=" + number);
}

}  // namespace

int multiprocessors(int device) {
  static std::atomic<int> known[kMaxDevices];  // 0: not queried yet
  int answer = known[device].load(std::memory_order_relaxed);
  if (answer == 0) {
    MEMBOUND_CUDA_CHECK(cudaDeviceGetAttribute(&answer, cudaDevAttrMultiProcessorCount, device));
    known[device].store(answer, std::memory_order_relaxed);
  }
  return answer;
}

cudaFuncAttributes attributes_of(const void* kernel, int device) {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
    cudaGetLastError();
    throw_without_code(error, device);
  }
  MEMBOUND_CUDA_CHECK(error);
  return attributes;
}

int compiled_architecture(int device) {
  return attributes_of(reinterpret_cast<const void*>(empty_kernel), device).ptxVersion;
}

}  // namespace membound::cuda
