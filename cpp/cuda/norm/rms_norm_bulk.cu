// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/norm/rms_norm_bulk_launch.cuh"

namespace membound::cuda {

template FramedLaunch launch_rms_norm_framed<Float16>;
template FramedLaunch launch_rms_norm_framed<BFloat16>;
template FramedLaunch launch_rms_norm_framed<float>;

}  // namespace membound::cuda
