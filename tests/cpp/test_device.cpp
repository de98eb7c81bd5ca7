// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <string>

#include "core/route.hpp"
#include "membound/device.hpp"
#include "membound/error.hpp"

using namespace membound;

TEST_CASE("device: names and equality") {
  CHECK(device_name(Device::cpu()) == "cpu");
  CHECK(device_name(Device::cuda(1)) == "cuda:1");
  CHECK(Device::cuda(0) != Device::cuda(1));
  CHECK(Device::cuda(0) != Device::cpu());
  CHECK(Device::cuda_host() == Device::cpu());
}

TEST_CASE("device: cuda_status explains itself and never throws") {
  const CudaStatus status = cuda_status();
  CHECK_FALSE(status.message.empty());
  CHECK(status.built_with_cuda == (MEMBOUND_WITH_CUDA != 0));
  if (status.device_count == 0) {
    CHECK_THROWS_AS(device_properties(Device::cuda(0)), CudaError);
  } else {
    CHECK(device_properties(Device::cuda(0)).multiprocessors > 0);
  }
  CHECK_THROWS_AS(device_properties(Device::cuda(4096)), CudaError);
}

TEST_CASE("device: route takes the CPU for both kinds of host memory") {
  for (Device device : {Device::cpu(), Device::cuda_host()}) {
    int cpu = 0, cuda = 0;
    route(device, "op", [&] { ++cpu; }, [&] { ++cuda; });
    CHECK(cpu == 1);
    CHECK(cuda == 0);
  }
}

TEST_CASE("device: a GPU that is not there is a CudaError") {
  const auto nothing = [] {};
  CHECK_THROWS_AS(route(Device::cuda(4096), "op", nothing, nothing), CudaError);
}

TEST_CASE("device: threads can be set and return to the default") {
  const int usual = cpu_threads();
  CHECK(usual >= 1);
  set_cpu_threads(3);
  CHECK(cpu_threads() == 3);
  CHECK_THROWS_AS(set_cpu_threads(-1), InvalidArgument);
  CHECK(cpu_threads() == 3);
  set_cpu_threads(0);
  CHECK(cpu_threads() == usual);
}
