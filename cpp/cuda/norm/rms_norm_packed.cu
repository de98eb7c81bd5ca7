// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/norm/rms_norm_packed_launch.cuh"

namespace membound::cuda {

template PackedLaunch launch_rms_norm_packed<Float16>;
template PackedLaunch launch_rms_norm_packed<BFloat16>;
template PackedLaunch launch_rms_norm_packed<float>;

}  // namespace membound::cuda
