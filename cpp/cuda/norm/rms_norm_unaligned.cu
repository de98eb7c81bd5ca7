// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/norm/rms_norm_launch.cuh"

namespace membound::cuda {

template NormLaunch
    launch_rms_norm<Float16, Access::kUnaligned, FusedInput::kNone, Centring::kRunTime>;
template NormLaunch
    launch_rms_norm<BFloat16, Access::kUnaligned, FusedInput::kNone, Centring::kRunTime>;
template NormLaunch
    launch_rms_norm<float, Access::kUnaligned, FusedInput::kNone, Centring::kRunTime>;
template NormLaunch
    launch_rms_norm<Float16, Access::kUnaligned, FusedInput::kResidual, Centring::kRunTime>;
template NormLaunch
    launch_rms_norm<BFloat16, Access::kUnaligned, FusedInput::kResidual, Centring::kRunTime>;
template NormLaunch
    launch_rms_norm<float, Access::kUnaligned, FusedInput::kResidual, Centring::kRunTime>;
template NormLaunch
    launch_rms_norm<Float16, Access::kUnaligned, FusedInput::kGate, Centring::kNever>;
template NormLaunch
    launch_rms_norm<BFloat16, Access::kUnaligned, FusedInput::kGate, Centring::kNever>;
template NormLaunch launch_rms_norm<float, Access::kUnaligned, FusedInput::kGate, Centring::kNever>;

}  // namespace membound::cuda
