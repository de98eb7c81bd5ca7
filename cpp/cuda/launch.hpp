// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The only place that launches a kernel.
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

#include "core/check.hpp"
#include "membound/cuda_check.hpp"
#include "membound/stream.hpp"

namespace membound::cuda {

struct LaunchShape {
  std::int64_t blocks;
  int threads;
  int cluster = 1;             // blocks of a cluster; above 1 needs compute capability 9.0
  int shared_bytes = 0;        // dynamic shared memory
  bool overlap_launch = true;  // programmatic dependent launch: the kernel executes the wait
};

inline constexpr int kMaxDevices = 64;

inline int current_device() {
  int device = 0;
  MEMBOUND_CUDA_CHECK(cudaGetDevice(&device));
  MEMBOUND_CHECK(device < kMaxDevices, InvalidArgument, "launch", "device index must be below ",
                 kMaxDevices, ", got ", device);
  return device;
}

// Clusters and programmatic dependent launch exist: the GPU has them.
inline bool device_has_clusters(int device) {
  static std::atomic<std::int8_t> known[kMaxDevices];  // 0: not asked yet, 1: no, 2: yes
  std::int8_t answer = known[device].load(std::memory_order_relaxed);
  if (answer == 0) {
    int major = 0;
    MEMBOUND_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    answer = major >= 9 ? 2 : 1;
    known[device].store(answer, std::memory_order_relaxed);
  }
  return answer == 2;
}

namespace detail {

// Once per kernel and device: loads the kernel, allows it all the shared memory there is, and finds
// whether its code was compiled for 9.0 or later. Only such code executes the grid dependency wait,
// without which an overlapped launch could read what the kernel before it still writes.
template <auto kKernel>
bool prepare(int device) {
  static std::atomic<std::int8_t> known[kMaxDevices];
  std::int8_t answer = known[device].load(std::memory_order_acquire);
  if (answer == 0) {
    cudaFuncAttributes attributes;
    const void* function = reinterpret_cast<const void*>(kKernel);
    MEMBOUND_CUDA_CHECK(cudaFuncGetAttributes(&attributes, function));
    int limit = 0;
    MEMBOUND_CUDA_CHECK(
        cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    MEMBOUND_CUDA_CHECK(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             limit - static_cast<int>(attributes.sharedSizeBytes)));
    answer = attributes.ptxVersion >= 90 && device_has_clusters(device) ? 2 : 1;
    known[device].store(answer, std::memory_order_release);
  }
  return answer == 2;
}

}  // namespace detail

// Queues kKernel(params) on the stream of the current device. Nothing waits.
template <auto kKernel, class Params>
void launch(const LaunchShape& shape, StreamView stream, int device, const Params& params) {
  const bool overlap = detail::prepare<kKernel>(device) && shape.overlap_launch;
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(shape.shared_bytes);
  config.stream = static_cast<cudaStream_t>(stream.handle());
  config.attrs = attributes;
  if (overlap) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  }
  void* arguments[] = {const_cast<Params*>(&params)};
  MEMBOUND_CUDA_CHECK(
      cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kKernel), arguments));
}

}  // namespace membound::cuda
