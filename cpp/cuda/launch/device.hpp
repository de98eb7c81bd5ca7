// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Queries of the device: its SMs, and the compiled architecture that it runs.
#include <cuda_runtime_api.h>

namespace membound::cuda {

int multiprocessors(int device);

// Throws if the device, which must be current, runs none of the architectures that the kernels were
// compiled for.
cudaFuncAttributes attributes_of(const void* kernel, int device);

// The compiled architecture whose code the device, which must be current, runs: 90 for 9.0. A newer
// GPU may run code of an older architecture, but that code has no clusters.
int compiled_architecture(int device);

}  // namespace membound::cuda
