// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/norm/rms_norm_backward_bulk_launch.cuh"

namespace membound::cuda {

template FramedGradientLaunch launch_rms_norm_backward_framed<Float16>;
template FramedGradientLaunch launch_rms_norm_backward_framed<BFloat16>;
template FramedGradientLaunch launch_rms_norm_backward_framed<float>;

}  // namespace membound::cuda
