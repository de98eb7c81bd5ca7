// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/norm/rms_norm_launch.cuh"

namespace membound::cuda {

template NormLaunch launch_rms_norm<Float16, Access::k4Byte, FusedInput::kNone, Centring::kNever>;
template NormLaunch launch_rms_norm<BFloat16, Access::k4Byte, FusedInput::kNone, Centring::kNever>;
template NormLaunch launch_rms_norm<float, Access::k4Byte, FusedInput::kNone, Centring::kNever>;
template NormLaunch launch_rms_norm<Float16, Access::k4Byte, FusedInput::kNone, Centring::kAlways>;
template NormLaunch launch_rms_norm<BFloat16, Access::k4Byte, FusedInput::kNone, Centring::kAlways>;
template NormLaunch launch_rms_norm<float, Access::k4Byte, FusedInput::kNone, Centring::kAlways>;
template NormLaunch
    launch_rms_norm<Float16, Access::k4Byte, FusedInput::kResidual, Centring::kNever>;
template NormLaunch
    launch_rms_norm<BFloat16, Access::k4Byte, FusedInput::kResidual, Centring::kNever>;
template NormLaunch launch_rms_norm<float, Access::k4Byte, FusedInput::kResidual, Centring::kNever>;
template NormLaunch
    launch_rms_norm<Float16, Access::k4Byte, FusedInput::kResidual, Centring::kAlways>;
template NormLaunch
    launch_rms_norm<BFloat16, Access::k4Byte, FusedInput::kResidual, Centring::kAlways>;
template NormLaunch
    launch_rms_norm<float, Access::k4Byte, FusedInput::kResidual, Centring::kAlways>;
template NormLaunch launch_rms_norm<Float16, Access::k4Byte, FusedInput::kGate, Centring::kNever>;
template NormLaunch launch_rms_norm<BFloat16, Access::k4Byte, FusedInput::kGate, Centring::kNever>;
template NormLaunch launch_rms_norm<float, Access::k4Byte, FusedInput::kGate, Centring::kNever>;
template NormLaunch launch_rms_norm<Float16, Access::k2Byte, FusedInput::kNone, Centring::kNever>;
template NormLaunch launch_rms_norm<BFloat16, Access::k2Byte, FusedInput::kNone, Centring::kNever>;
template NormLaunch launch_rms_norm<Float16, Access::k2Byte, FusedInput::kNone, Centring::kAlways>;
template NormLaunch launch_rms_norm<BFloat16, Access::k2Byte, FusedInput::kNone, Centring::kAlways>;
template NormLaunch
    launch_rms_norm<Float16, Access::k2Byte, FusedInput::kResidual, Centring::kNever>;
template NormLaunch
    launch_rms_norm<BFloat16, Access::k2Byte, FusedInput::kResidual, Centring::kNever>;
template NormLaunch
    launch_rms_norm<Float16, Access::k2Byte, FusedInput::kResidual, Centring::kAlways>;
template NormLaunch
    launch_rms_norm<BFloat16, Access::k2Byte, FusedInput::kResidual, Centring::kAlways>;
template NormLaunch launch_rms_norm<Float16, Access::k2Byte, FusedInput::kGate, Centring::kNever>;
template NormLaunch launch_rms_norm<BFloat16, Access::k2Byte, FusedInput::kGate, Centring::kNever>;

}  // namespace membound::cuda
