// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/norm/variant.hpp"

namespace membound::cuda {

template <Centring kCentring, class Params>
__device__ inline bool is_centred(const Params& p) {
  return kCentring == Centring::kAlways || (kCentring == Centring::kRunTime && p.centred);
}

}  // namespace membound::cuda
