// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/norm/rms_norm_launch.cuh"

namespace membound::cuda {

template NormLaunch
    launch_rms_norm<Float16, Access::kAligned, FusedInput::kNone, Centring::kAlways>;
template NormLaunch
    launch_rms_norm<BFloat16, Access::kAligned, FusedInput::kNone, Centring::kAlways>;
template NormLaunch launch_rms_norm<float, Access::kAligned, FusedInput::kNone, Centring::kAlways>;
template NormLaunch
    launch_rms_norm<Float16, Access::kAligned, FusedInput::kResidual, Centring::kAlways>;
template NormLaunch
    launch_rms_norm<BFloat16, Access::kAligned, FusedInput::kResidual, Centring::kAlways>;
template NormLaunch
    launch_rms_norm<float, Access::kAligned, FusedInput::kResidual, Centring::kAlways>;

}  // namespace membound::cuda
