// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/norm/rms_norm_backward_packed_launch.cuh"

namespace membound::cuda {

template DenseGradientLaunch launch_rms_norm_backward_dense<Float16>;
template DenseGradientLaunch launch_rms_norm_backward_dense<BFloat16>;
template DenseGradientLaunch launch_rms_norm_backward_dense<float>;

}  // namespace membound::cuda
