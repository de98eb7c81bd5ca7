// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of embedding: a pure function, unit-tested without a GPU.
#include "cuda/activation/gated_activation_config.hpp"

namespace membound::cuda::tuning {

// Units of a row per thread: two 16-byte vectors (bfloat16, 8192 tokens of 8192: 75.5 -> 70.8 us
// against four), but four for unaligned rows, which have more setup per thread.
inline constexpr int kEmbeddingUnits = 2;
inline constexpr int kUnalignedEmbeddingUnits = 4;

}  // namespace membound::cuda::tuning
