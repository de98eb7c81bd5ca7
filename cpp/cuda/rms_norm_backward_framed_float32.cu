// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/rms_norm_backward_framed_launch.cuh"

namespace membound::cuda {

template void launch_rms_norm_backward_framed<float>(const RmsNormBackwardProblem&,
                                                     const RmsNormBackwardConfig&, int, StreamView);

}  // namespace membound::cuda
