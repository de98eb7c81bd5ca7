// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/rms_norm_quant_framed.cuh"
#include "cuda/rms_norm_quant_launch.cuh"

namespace membound::cuda {

namespace {

template <class T, Beside kBeside>
void launch_beside(const RmsNormQuantParams<accumulate_t<T>>& p, const tuning::FramedConfig& config,
                   int device, StreamView stream) {
  const LaunchShape shape{.blocks = config.blocks,
                          .threads = config.threads,
                          .shared_bytes = static_cast<std::size_t>(config.bytes)};
  config.vecs == 4 ? launch<rms_norm_quant_framed_kernel<T, BlockTeam<1, 16, 4>, kBeside>>(
                         shape, stream, device, p)
                   : launch<rms_norm_quant_framed_kernel<T, BlockTeam<1, 16>, kBeside>>(
                         shape, stream, device, p);
}

}  // namespace

template <class T>
void launch_rms_norm_quant_framed(const RmsNormQuantProblem& problem,
                                  const tuning::FramedConfig& config,
                                  const tuning::RmsNormConfig& row, int device, StreamView stream) {
  const auto p = quant_params<T>(problem, row, RowSplit{});
  problem.norm.residual == nullptr ? launch_beside<T, Beside::kNothing>(p, config, device, stream)
                                   : launch_beside<T, Beside::kResidual>(p, config, device, stream);
}

template QuantFramedLaunch launch_rms_norm_quant_framed<Float16>;
template QuantFramedLaunch launch_rms_norm_quant_framed<BFloat16>;
template QuantFramedLaunch launch_rms_norm_quant_framed<float>;

}  // namespace membound::cuda
