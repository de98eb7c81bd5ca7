// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Marks functions that GPU kernels call too.
#if defined(__CUDACC__)
#define MEMBOUND_HOST_DEVICE __host__ __device__
#else
#define MEMBOUND_HOST_DEVICE
#endif
