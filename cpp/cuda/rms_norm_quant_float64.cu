// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/rms_norm_quant_launch.cuh"

namespace membound::cuda {

template void launch_rms_norm_quant<double, Access::kAny>(const RmsNormQuantProblem&,
                                                          const tuning::RmsNormConfig&,
                                                          const RowSplit&, int, StreamView);

}  // namespace membound::cuda
