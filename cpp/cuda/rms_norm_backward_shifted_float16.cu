// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/rms_norm_backward_launch.cuh"

namespace membound::cuda {

template void launch_rms_norm_backward<Float16, Access::kShifted, Centring::kAsked, false>(
    const RmsNormBackwardProblem&, const RmsNormBackwardConfig&, const RowSplit&, int, StreamView);

}  // namespace membound::cuda
