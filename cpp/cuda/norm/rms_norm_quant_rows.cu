// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/norm/rms_norm_quant_launch.cuh"

namespace membound::cuda {

template QuantLaunch launch_rms_norm_quant<Float16, Access::kAligned>;
template QuantLaunch launch_rms_norm_quant<BFloat16, Access::kAligned>;
template QuantLaunch launch_rms_norm_quant<float, Access::kAligned>;
template QuantLaunch launch_rms_norm_quant<Float16, Access::kStrided>;
template QuantLaunch launch_rms_norm_quant<BFloat16, Access::kStrided>;
template QuantLaunch launch_rms_norm_quant<float, Access::kStrided>;
template QuantLaunch launch_rms_norm_quant<double, Access::kStrided>;

}  // namespace membound::cuda
