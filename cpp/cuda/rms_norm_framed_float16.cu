// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/rms_norm_framed_launch.cuh"

namespace membound::cuda {

template void launch_rms_norm_framed<Float16>(const RmsNormProblem&, const tuning::FramedConfig&,
                                              const tuning::RmsNormConfig&, int, StreamView);

}  // namespace membound::cuda
