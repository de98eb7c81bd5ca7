// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "membound/cuda_check.hpp"
#include "membound/device.hpp"

using namespace membound;

TEST_CASE("cuda_check: success passes, a failure carries code, name and call") {
  CHECK_NOTHROW(MEMBOUND_CUDA_CHECK(cudaSuccess));
  CHECK_NOTHROW(CUDA_CHECK(cudaSuccess));
  try {
    MEMBOUND_CUDA_CHECK(cudaErrorInvalidValue);
    FAIL("no exception");
  } catch (const CudaError& error) {
    CHECK(error.code() == cudaErrorInvalidValue);
    CHECK(error.name() == "cudaErrorInvalidValue");
    CHECK(std::string(error.what()).find("cudaErrorInvalidValue") != std::string::npos);
  }
}

TEST_CASE("cuda_check: memory that ran out is OutOfMemory") {
  CHECK_THROWS_AS(MEMBOUND_CUDA_CHECK(cudaErrorMemoryAllocation), OutOfMemory);
}

TEST_CASE("cuda_check: the runtime's last error is cleared") {
  CHECK_THROWS_AS(MEMBOUND_CUDA_CHECK(cudaSetDevice(4096)), CudaError);
  // Without a driver every call of the runtime, this one too, returns that the driver is missing.
  const bool no_driver = cuda_status().error_code == cudaErrorInsufficientDriver;
  CHECK(cudaGetLastError() == (no_driver ? cudaErrorInsufficientDriver : cudaSuccess));
}
