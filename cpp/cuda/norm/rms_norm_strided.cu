// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/norm/rms_norm_launch.cuh"

namespace membound::cuda {

template NormLaunch launch_rms_norm<Float16, Access::kAny, Beside::kNothing, Centring::kAsked>;
template NormLaunch launch_rms_norm<BFloat16, Access::kAny, Beside::kNothing, Centring::kAsked>;
template NormLaunch launch_rms_norm<float, Access::kAny, Beside::kNothing, Centring::kAsked>;
template NormLaunch launch_rms_norm<double, Access::kAny, Beside::kNothing, Centring::kAsked>;
template NormLaunch launch_rms_norm<Float16, Access::kAny, Beside::kResidual, Centring::kAsked>;
template NormLaunch launch_rms_norm<BFloat16, Access::kAny, Beside::kResidual, Centring::kAsked>;
template NormLaunch launch_rms_norm<float, Access::kAny, Beside::kResidual, Centring::kAsked>;
template NormLaunch launch_rms_norm<double, Access::kAny, Beside::kResidual, Centring::kAsked>;

}  // namespace membound::cuda
