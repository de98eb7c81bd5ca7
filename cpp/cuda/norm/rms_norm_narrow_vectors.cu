// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/norm/rms_norm_launch.cuh"

namespace membound::cuda {

template NormLaunch launch_rms_norm<Float16, Access::kWords, Beside::kNothing, Centring::kNever>;
template NormLaunch launch_rms_norm<BFloat16, Access::kWords, Beside::kNothing, Centring::kNever>;
template NormLaunch launch_rms_norm<float, Access::kWords, Beside::kNothing, Centring::kNever>;
template NormLaunch launch_rms_norm<Float16, Access::kWords, Beside::kNothing, Centring::kAlways>;
template NormLaunch launch_rms_norm<BFloat16, Access::kWords, Beside::kNothing, Centring::kAlways>;
template NormLaunch launch_rms_norm<float, Access::kWords, Beside::kNothing, Centring::kAlways>;
template NormLaunch launch_rms_norm<Float16, Access::kWords, Beside::kResidual, Centring::kNever>;
template NormLaunch launch_rms_norm<BFloat16, Access::kWords, Beside::kResidual, Centring::kNever>;
template NormLaunch launch_rms_norm<float, Access::kWords, Beside::kResidual, Centring::kNever>;
template NormLaunch launch_rms_norm<Float16, Access::kWords, Beside::kResidual, Centring::kAlways>;
template NormLaunch launch_rms_norm<BFloat16, Access::kWords, Beside::kResidual, Centring::kAlways>;
template NormLaunch launch_rms_norm<float, Access::kWords, Beside::kResidual, Centring::kAlways>;
template NormLaunch launch_rms_norm<Float16, Access::kWords, Beside::kGate, Centring::kNever>;
template NormLaunch launch_rms_norm<BFloat16, Access::kWords, Beside::kGate, Centring::kNever>;
template NormLaunch launch_rms_norm<float, Access::kWords, Beside::kGate, Centring::kNever>;
template NormLaunch launch_rms_norm<Float16, Access::kHalves, Beside::kNothing, Centring::kNever>;
template NormLaunch launch_rms_norm<BFloat16, Access::kHalves, Beside::kNothing, Centring::kNever>;
template NormLaunch launch_rms_norm<Float16, Access::kHalves, Beside::kNothing, Centring::kAlways>;
template NormLaunch launch_rms_norm<BFloat16, Access::kHalves, Beside::kNothing, Centring::kAlways>;
template NormLaunch launch_rms_norm<Float16, Access::kHalves, Beside::kResidual, Centring::kNever>;
template NormLaunch launch_rms_norm<BFloat16, Access::kHalves, Beside::kResidual, Centring::kNever>;
template NormLaunch launch_rms_norm<Float16, Access::kHalves, Beside::kResidual, Centring::kAlways>;
template NormLaunch
    launch_rms_norm<BFloat16, Access::kHalves, Beside::kResidual, Centring::kAlways>;
template NormLaunch launch_rms_norm<Float16, Access::kHalves, Beside::kGate, Centring::kNever>;
template NormLaunch launch_rms_norm<BFloat16, Access::kHalves, Beside::kGate, Centring::kNever>;

}  // namespace membound::cuda
