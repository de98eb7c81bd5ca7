// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of embedding: a pure function, unit-tested without a GPU.
#include "cuda/activation/gated_activation_config.hpp"

namespace membound::cuda::tuning {

// Of a row for each thread (H200, 128256 x 8192 bfloat16, 8192 tokens: 70.8 us, 75.5 with four; 256
// tokens of 4096: 3.4 and 3.9). Rows that start anywhere take more for a thread (50257 x 1601: 34.6
// us, 29.6 with four).
inline constexpr int kEmbeddingUnits = 2;
inline constexpr int kUnalignedEmbeddingUnits = 4;

}  // namespace membound::cuda::tuning
