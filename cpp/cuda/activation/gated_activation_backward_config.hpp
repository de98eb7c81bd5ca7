// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of gated_activation_backward: a pure function, unit-tested without a GPU.
#include "cuda/activation/gated_activation_config.hpp"

namespace membound::cuda::tuning {

// The same as the forward's, although three arrays are read instead of two.
inline GatedActivationConfig gated_activation_backward_config(std::int64_t rows, std::int64_t units,
                                                              int per_thread) {
  return gated_activation_config(rows, units, per_thread);
}

}  // namespace membound::cuda::tuning
