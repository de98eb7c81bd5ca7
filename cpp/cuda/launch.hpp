// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The only place that launches a kernel.
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/check.hpp"
#include "membound/cuda_check.hpp"
#include "membound/stream.hpp"

namespace membound::cuda {

struct LaunchShape {
  std::int64_t blocks;
  int threads;
  int cluster = 1;               // blocks of a cluster; above 1 needs compute capability 9.0
  std::size_t shared_bytes = 0;  // dynamic
  bool overlap_launch = true;    // programmatic dependent launch: the kernel executes the wait
};

inline constexpr int kMaxDevices = 64;

inline int current_device() {
  int device = 0;
  MEMBOUND_CUDA_CHECK(cudaGetDevice(&device));
  MEMBOUND_CHECK(device < kMaxDevices, InvalidArgument, "launch", "device index must be below ",
                 kMaxDevices, ", got ", device);
  return device;
}

// The largest cluster of blocks that the GPU takes: 16 on data-centre parts from 9.0 on (beyond the
// portable 8, which launches opt in to), 8 on others from 9.0 on, 1 before.
inline int max_cluster_size(int device) {
  static std::atomic<std::int8_t> known[kMaxDevices];  // 0: not asked yet
  std::int8_t answer = known[device].load(std::memory_order_relaxed);
  if (answer == 0) {
    int major = 0;
    MEMBOUND_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    answer = major < 9 ? 1 : (major < 12 ? 16 : 8);
    known[device].store(answer, std::memory_order_relaxed);
  }
  return answer;
}

// Shared memory that a block can have, in all.
inline std::size_t max_shared_bytes(int device) {
  static std::atomic<int> known[kMaxDevices];  // 0: not asked yet
  int answer = known[device].load(std::memory_order_relaxed);
  if (answer == 0) {
    MEMBOUND_CUDA_CHECK(
        cudaDeviceGetAttribute(&answer, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    known[device].store(answer, std::memory_order_relaxed);
  }
  return static_cast<std::size_t>(answer);
}

namespace detail {

// Once per kernel and device: loads the kernel, allows it clusters of 16 and all shared memory,
// finds whether its code was compiled for 9.0 or later. Only such code executes the grid dependency
// wait, without which an overlapped launch could read what the kernel before it still writes.
template <auto kKernel>
bool prepare(int device) {
  static std::atomic<std::int8_t> known[kMaxDevices];
  std::int8_t answer = known[device].load(std::memory_order_acquire);
  if (answer == 0) {
    cudaFuncAttributes attributes;
    const void* function = reinterpret_cast<const void*>(kKernel);
    MEMBOUND_CUDA_CHECK(cudaFuncGetAttributes(&attributes, function));
    if (max_cluster_size(device) > 8) {
      MEMBOUND_CUDA_CHECK(
          cudaFuncSetAttribute(function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    }
    const int dynamic = static_cast<int>(max_shared_bytes(device) - attributes.sharedSizeBytes);
    MEMBOUND_CUDA_CHECK(
        cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, dynamic));
    answer = attributes.ptxVersion >= 90 && max_cluster_size(device) > 1 ? 2 : 1;
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
  config.dynamicSmemBytes = shape.shared_bytes;
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
