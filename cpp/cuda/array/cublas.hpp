// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops/array/problems.hpp"

namespace membound::cuda {

// cuBLAS is found at run time: a library that the process has loaded already, else one by its name.
// MEMBOUND_CUBLAS names another file, and `off` leaves it out. cublas_matmul returns false if there
// is none, or if it cannot: each matrix must have adjacent elements along one dimension.
bool has_cublas();
bool cublas_matmul(const ArrayMatmul& problem, StreamView stream);

}  // namespace membound::cuda
