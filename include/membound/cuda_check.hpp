// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "membound/error.hpp"

// The only public header that needs the CUDA toolkit.

namespace membound {

// Throws CudaError when status is an error, and clears the runtime's last error first, so that a
// later check does not report this one again.
inline void throw_on_cuda_error(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  const std::string where = std::string(file) + ":" + std::to_string(line);
  const std::string text = std::string(call) + " failed with " + cudaGetErrorName(status) + " (" +
                           cudaGetErrorString(status) + ") at " + where;
  if (status == cudaErrorMemoryAllocation) throw OutOfMemory(text);
  throw CudaError(static_cast<int>(status), cudaGetErrorName(status), text);
}

}  // namespace membound

#define MEMBOUND_CUDA_CHECK(call) ::membound::throw_on_cuda_error((call), #call, __FILE__, __LINE__)
#ifndef CUDA_CHECK
#define CUDA_CHECK(call) MEMBOUND_CUDA_CHECK(call)
#endif
