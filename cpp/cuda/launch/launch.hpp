// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// How kernels are launched. What is behind it is compiled once, in launch.cpp: this header is read
// by every unit.
#include <cstddef>
#include <cstdint>

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

int current_device();

// The largest cluster of blocks that the GPU takes: 16 on data-centre parts from 9.0 on (beyond the
// portable 8, which launches opt in to), 8 on others from 9.0 on, 1 before.
int max_cluster_size(int device);

// Shared memory that a block can have, in all.
std::size_t max_shared_bytes(int device);

// parameters: the kernel's only argument. known: see known_of.
void launch_kernel(const void* kernel, std::int8_t (&known)[kMaxDevices], const LaunchShape& shape,
                   StreamView stream, int device, const void* parameters);

// What is known of a kernel on each device, zeros at first.
template <auto kKernel>
std::int8_t (&known_of()) [kMaxDevices] {
  static std::int8_t known[kMaxDevices];
  return known;
}

// Queues kKernel(params) on the stream of the current device. Nothing waits.
template <auto kKernel, class Params>
void launch(const LaunchShape& shape, StreamView stream, int device, const Params& params) {
  launch_kernel(reinterpret_cast<const void*>(kKernel), known_of<kKernel>(), shape, stream, device,
                &params);
}

// Clusters of the shape that the device works on at once, as its driver says. found: for clusters
// of 1, 2, 4, 8 and 16 blocks, zeros at first.
using ResidentClusters = std::int16_t[kMaxDevices][5];
int resident_clusters(const void* kernel, std::int8_t (&known)[kMaxDevices],
                      ResidentClusters& found, const LaunchShape& shape, int device);

// The same; the shapes of a kernel differ in their clusters alone, as far as this goes.
template <auto kKernel>
int resident_clusters(const LaunchShape& shape, int device) {
  static ResidentClusters found;
  return resident_clusters(reinterpret_cast<const void*>(kKernel), known_of<kKernel>(), found,
                           shape, device);
}

}  // namespace membound::cuda
