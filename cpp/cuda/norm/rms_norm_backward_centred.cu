// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/norm/rms_norm_backward_launch.cuh"

namespace membound::cuda {

template GradientLaunch
    launch_rms_norm_backward<Float16, Access::kAligned, Centring::kAlways, false>;
template GradientLaunch
    launch_rms_norm_backward<BFloat16, Access::kAligned, Centring::kAlways, false>;
template GradientLaunch launch_rms_norm_backward<float, Access::kAligned, Centring::kAlways, false>;

}  // namespace membound::cuda
