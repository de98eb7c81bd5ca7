// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/norm/rms_norm_backward_packed_launch.cuh"

namespace membound::cuda {

template PackedGradientLaunch launch_rms_norm_backward_packed<Float16>;
template PackedGradientLaunch launch_rms_norm_backward_packed<BFloat16>;
template PackedGradientLaunch launch_rms_norm_backward_packed<float>;

}  // namespace membound::cuda
