// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/norm/rms_norm_bulk_launch.cuh"

namespace membound::cuda {

template BulkLaunch launch_rms_norm_bulk<Float16>;
template BulkLaunch launch_rms_norm_bulk<BFloat16>;
template BulkLaunch launch_rms_norm_bulk<float>;

}  // namespace membound::cuda
