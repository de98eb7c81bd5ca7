// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace membound::cuda {

// Whether the mean of a row is subtracted (layer_norm and its gradients). The fastest kernels are
// compiled for each case; the others decide at run time, which halves their code.
enum class Centring { kNever, kAlways, kRunTime };

template <Centring kCentring, class Params>
__device__ inline bool is_centred(const Params& p) {
  return kCentring == Centring::kAlways || (kCentring == Centring::kRunTime && p.centred);
}

}  // namespace membound::cuda
