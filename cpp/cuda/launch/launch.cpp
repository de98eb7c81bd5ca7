// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// The only file that launches kernels.
#include "cuda/launch/launch.hpp"

#include <cuda_runtime_api.h>

#include <atomic>
#include <bit>

#include "core/check.hpp"
#include "cuda/launch/device.hpp"
#include "membound/cuda_check.hpp"

namespace membound::cuda {

namespace {

// Once per kernel and device: loads the kernel, allows it clusters of 16 and all shared memory, and
// finds whether its code was compiled for 9.0 or later. Only such code executes the grid dependency
// wait (pdl_wait), without which an overlapped launch could read what the previous kernel is still
// writing.
bool prepare(const void* kernel, std::int8_t& known_here, int device) {
  const std::atomic_ref<std::int8_t> known(known_here);
  std::int8_t answer = known.load(std::memory_order_acquire);
  if (answer == 0) {
    const cudaFuncAttributes attributes = attributes_of(kernel, device);
    if (max_cluster_size(device) > 8) {
      MEMBOUND_CUDA_CHECK(
          cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    }
    const int dynamic = static_cast<int>(max_shared_bytes(device) - attributes.sharedSizeBytes);
    MEMBOUND_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, dynamic));
    answer = attributes.ptxVersion >= 90 && max_cluster_size(device) > 1 ? 2 : 1;
    known.store(answer, std::memory_order_release);
  }
  return answer == 2;
}

}  // namespace

int current_device() {
  int device = 0;
  MEMBOUND_CUDA_CHECK(cudaGetDevice(&device));
  MEMBOUND_CHECK(device < kMaxDevices, InvalidArgument, "launch", "device index must be below ",
                 kMaxDevices, ", got ", device);
  return device;
}

int max_cluster_size(int device) {
  static std::atomic<std::int8_t> known[kMaxDevices];  // 0: not queried yet
  std::int8_t answer = known[device].load(std::memory_order_relaxed);
  if (answer == 0) {
    int major = 0;
    MEMBOUND_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    const bool has_none = major < 9 || compiled_architecture(device) < 90;
    answer = has_none ? 1 : (major < 12 ? 16 : 8);
    known[device].store(answer, std::memory_order_relaxed);
  }
  return answer;
}

std::size_t max_shared_bytes(int device) {
  static std::atomic<int> known[kMaxDevices];  // 0: not queried yet
  int answer = known[device].load(std::memory_order_relaxed);
  if (answer == 0) {
    MEMBOUND_CUDA_CHECK(
        cudaDeviceGetAttribute(&answer, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    known[device].store(answer, std::memory_order_relaxed);
  }
  return static_cast<std::size_t>(answer);
}

GpuLimits limits_of(int device) {
  return {multiprocessors(device), max_cluster_size(device),
          static_cast<int>(max_shared_bytes(device))};
}

int resident_clusters(const void* kernel, std::int8_t (&known)[kMaxDevices],
                      ResidentClusters& found, const LaunchShape& shape, int device) {
  const int kind = std::countr_zero(static_cast<unsigned>(shape.cluster));
  const std::atomic_ref<std::int16_t> asked(found[device][kind]);  // clusters + 1; 0: not queried
  std::int16_t answer = asked.load(std::memory_order_relaxed);
  if (answer == 0) {
    prepare(kernel, known[device], device);
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(shape.cluster));
    config.blockDim = dim3(static_cast<unsigned>(shape.threads));
    config.dynamicSmemBytes = shape.shared_bytes;
    config.attrs = &cluster;
    config.numAttrs = 1;
    int clusters = 0;
    MEMBOUND_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
    answer = static_cast<std::int16_t>(clusters + 1);
    asked.store(answer, std::memory_order_relaxed);
  }
  return answer - 1;
}

void launch_kernel(const void* kernel, std::int8_t (&known)[kMaxDevices], const LaunchShape& shape,
                   StreamView stream, int device, const void* parameters) {
  const bool overlap = prepare(kernel, known[device], device) && shape.overlap_launch;
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
  void* arguments[] = {const_cast<void*>(parameters)};
  MEMBOUND_CUDA_CHECK(cudaLaunchKernelExC(&config, kernel, arguments));
}

}  // namespace membound::cuda
