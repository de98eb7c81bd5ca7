// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// For functions that kernels on GPUs call too.
#if defined(__CUDACC__)
#define MEMBOUND_HOST_DEVICE __host__ __device__
#else
#define MEMBOUND_HOST_DEVICE
#endif
