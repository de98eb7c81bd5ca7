// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/norm/rms_norm_quant_bulk.cuh"
#include "cuda/norm/rms_norm_quant_launch.cuh"

namespace membound::cuda {

template <class T>
void launch_rms_norm_quant_bulk(const RmsNormQuantProblem& problem,
                                const tuning::BulkConfig& config, const tuning::RmsNormConfig& row,
                                int device, StreamView stream) {
  const auto p = quant_params<T>(problem, row, RowSplit{});
  const auto as = [&]<FusedInput kFusedInput>() {
    launch_bulk_pipeline(config, [&]<class ThreadGroup>(const LaunchShape& shape) {
      launch<rms_norm_quant_bulk_kernel<T, ThreadGroup, kFusedInput>>(shape, stream, device, p);
    });
  };
  problem.norm.residual.data == nullptr ? as.template operator()<FusedInput::kNone>()
                                        : as.template operator()<FusedInput::kResidual>();
}

template QuantBulkLaunch launch_rms_norm_quant_bulk<Float16>;
template QuantBulkLaunch launch_rms_norm_quant_bulk<BFloat16>;
template QuantBulkLaunch launch_rms_norm_quant_bulk<float>;

}  // namespace membound::cuda
