// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/check.hpp"
#include "core/route.hpp"

// 1 where this build has the kernels of arrays for GPUs.
#if MEMBOUND_WITH_CUDA && __has_include("cuda/array/unit.cuh")
#define MEMBOUND_ARRAYS_ON_CUDA 1
#else
#define MEMBOUND_ARRAYS_ON_CUDA 0
#endif

namespace membound {

// route() for functions of arrays.
template <class Cpu, class Cuda>
void route_array(Device device, const char* op, Cpu&& cpu, [[maybe_unused]] Cuda&& cuda) {
#if MEMBOUND_ARRAYS_ON_CUDA
  route(device, op, cpu, cuda);
#else
  MEMBOUND_CHECK(!device.is_cuda(), InvalidArgument, op,
                 "this build computes with arrays on the CPU alone, got one on ",
                 device_name(device));
  cpu();
#endif
}

}  // namespace membound
