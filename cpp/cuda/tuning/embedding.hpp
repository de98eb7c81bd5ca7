// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of embedding: a pure function, unit-tested without a GPU.
#include "cuda/tuning/gated_activation.hpp"

namespace membound::cuda::tuning {

// Loads that a thread has in flight: one array is read in the place of two or three.
inline constexpr int kEmbeddingUnits = 4;

// units: chunks or elements of a row.
inline GatedActivationConfig embedding_config(std::int64_t tokens, std::int64_t units) {
  return gated_activation_config(tokens, units, kEmbeddingUnits);
}

}  // namespace membound::cuda::tuning
