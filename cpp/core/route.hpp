// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "membound/device.hpp"
#include "membound/error.hpp"

namespace membound {

// Makes a GPU current within a scope, and restores the caller's. Does nothing if it is current
// already; the destructor cannot throw. If there is no such GPU, the error names the op.
class DeviceGuard {
 public:
  DeviceGuard(Device device, const char* op);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = -1;  // -1: nothing to restore
};

// Throws a CudaError that explains why there is no such GPU.
[[noreturn]] void throw_cuda_unavailable(const char* op);

// The only place that chooses a back end. Each op passes its two launchers.
template <class Cpu, class Cuda>
void route(Device device, [[maybe_unused]] const char* op, Cpu&& cpu,
           [[maybe_unused]] Cuda&& cuda) {
  if (!device.is_cuda()) {
    cpu();
    return;
  }
#if MEMBOUND_WITH_CUDA
  DeviceGuard guard(device, op);
  cuda();
#else
  throw_cuda_unavailable(op);
#endif
}

}  // namespace membound
