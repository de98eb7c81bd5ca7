// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/norm/rms_norm_packed_launch.cuh"

namespace membound::cuda {

template DenseLaunch launch_rms_norm_dense<Float16>;
template DenseLaunch launch_rms_norm_dense<BFloat16>;
template DenseLaunch launch_rms_norm_dense<float>;

}  // namespace membound::cuda
