// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/rms_norm_launch.cuh"

namespace membound::cuda {

template void launch_rms_norm<double, Access::kAligned, Beside::kNothing, Centring::kNever>(
    const RmsNormProblem&, const tuning::RmsNormConfig&, const RowSplit&, int, StreamView);

}  // namespace membound::cuda
