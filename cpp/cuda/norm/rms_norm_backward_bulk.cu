// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/norm/rms_norm_backward_bulk_launch.cuh"

namespace membound::cuda {

template BulkGradientLaunch launch_rms_norm_backward_bulk<Float16>;
template BulkGradientLaunch launch_rms_norm_backward_bulk<BFloat16>;
template BulkGradientLaunch launch_rms_norm_backward_bulk<float>;

}  // namespace membound::cuda
