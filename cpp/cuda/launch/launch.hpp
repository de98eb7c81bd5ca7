// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Kernel launches with clusters and programmatic dependent launch. The implementation is compiled
// once, in launch.cpp, because every translation unit includes this header.
#include <cstddef>
#include <cstdint>

#include "membound/stream.hpp"

namespace membound::cuda {

struct LaunchShape {
  std::int64_t blocks;
  int threads;
  int cluster = 1;               // blocks of a cluster; above 1 needs compute capability 9.0
  std::size_t shared_bytes = 0;  // dynamic
  bool overlap_launch = true;    // programmatic dependent launch: the kernel calls pdl_wait
};

inline constexpr int kMaxDevices = 64;

int current_device();

// The largest cluster that the GPU supports, in blocks: 16 on data-centre GPUs from 9.0 on (above
// the portable 8, which launches opt in to), 8 on other GPUs from 9.0 on, 1 before.
int max_cluster_size(int device);

// Shared memory available to a block, static and dynamic together.
std::size_t max_shared_bytes(int device);

// What plans of launches depend on.
struct GpuLimits {
  int multiprocessors;
  int max_cluster;   // as above
  int shared_bytes;  // as above
};
GpuLimits limits_of(int device);

// parameters: the kernel's only argument. known: see kernel_state.
void launch_kernel(const void* kernel, std::int8_t (&known)[kMaxDevices], const LaunchShape& shape,
                   StreamView stream, int device, const void* parameters);

// What prepare() found out about a kernel on each device; initially zero.
template <auto kKernel>
std::int8_t (&kernel_state()) [kMaxDevices] {
  static std::int8_t known[kMaxDevices];
  return known;
}

// Queues kKernel(params) on a stream of the current device and returns at once.
template <auto kKernel, class Params>
void launch(const LaunchShape& shape, StreamView stream, int device, const Params& params) {
  launch_kernel(reinterpret_cast<const void*>(kKernel), kernel_state<kKernel>(), shape, stream,
                device, &params);
}

// Clusters of this shape that are resident on the device at once, according to its driver. found:
// the cache of this function, for clusters of 1, 2, 4, 8 and 16 blocks; initially zero.
using ResidentClusters = std::int16_t[kMaxDevices][5];
int resident_clusters(const void* kernel, std::int8_t (&known)[kMaxDevices],
                      ResidentClusters& found, const LaunchShape& shape, int device);

// The same with a cache per kernel, whose key is the cluster size alone: the kernel's shapes must
// not differ in anything else that limits residency.
template <auto kKernel>
int resident_clusters(const LaunchShape& shape, int device) {
  static ResidentClusters found;
  return resident_clusters(reinterpret_cast<const void*>(kKernel), kernel_state<kKernel>(), found,
                           shape, device);
}

}  // namespace membound::cuda
