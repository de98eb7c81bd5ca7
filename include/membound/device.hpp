// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "membound/device_type.hpp"
#include "membound/export.hpp"

namespace membound {

// "cpu" or "cuda:1".
MEMBOUND_API std::string device_name(Device device);

// What CUDA this build and this machine offer. Never throws and leaves no error behind.
struct CudaStatus {
  bool built_with_cuda = false;
  int device_count = 0;
  int error_code = 0;  // 0 when at least one device is usable
  std::string error_name;
  std::string message;        // why there is no device, in one sentence, or "ok"
  int runtime_version = 0;    // as CUDA encodes it: 13000
  int driver_version = 0;     // 0 when no driver is installed
  std::string architectures;  // what the kernels were compiled for, e.g. "80 90 120"
};
MEMBOUND_API CudaStatus cuda_status();

struct DeviceProperties {
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
  int multiprocessors = 0;
  std::size_t memory_bytes = 0;
  std::size_t l2_bytes = 0;
};
// Throws CudaError when the device is not there.
MEMBOUND_API DeviceProperties device_properties(Device device);

// The current GPU of this thread, for callers that have a stream but not its device.
MEMBOUND_API Device current_cuda_device();

// The CPU instruction set in use: "baseline", "avx2", "avx512" or "neon". Chosen once; the
// environment variable MEMBOUND_CPU_ISA forces a lower one.
MEMBOUND_API const char* cpu_isa();

// How many threads a large CPU call may use (affinity, cgroup quota, OMP_NUM_THREADS), and a setter
// that overrides it; 0 restores the default. Results do not depend on it.
MEMBOUND_API int cpu_threads();
MEMBOUND_API void set_cpu_threads(int count);

}  // namespace membound
