// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

namespace membound::cuda {

int multiprocessors(int device);

// Throws where none of the architectures that the kernels were compiled for runs on the
// device, which is the current one.
cudaFuncAttributes attributes_of(const void* kernel, int device);

// Of the architectures that the kernels were compiled for, the one that the device, which is the
// current one, runs, as in 90 for 9.0: code for an older one may run there, but has no clusters.
int compiled_architecture(int device);

}  // namespace membound::cuda
