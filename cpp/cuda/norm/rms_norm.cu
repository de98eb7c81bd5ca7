// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/dispatch.hpp"
#include "cuda/launch/device.hpp"
#include "cuda/launch/launch.hpp"
#include "cuda/norm/centring.cuh"
#include "cuda/norm/fused_input.cuh"
#include "cuda/norm/rms_norm_config.hpp"
#include "cuda/row/array.hpp"
#include "cuda/row/bulk_config.hpp"
#include "cuda/row/packed_config.hpp"
#include "ops/rms_norm.hpp"

namespace membound::cuda {

template <class T, Access kAccess, Beside kBeside, Centring kCentring>
void launch_rms_norm(const RmsNormProblem& problem, const tuning::RmsNormConfig& config,
                     const RowSplit& split, int device, StreamView stream);

template <class T>
void launch_rms_norm_framed(const RmsNormProblem& problem, const tuning::FramedConfig& config,
                            const tuning::RmsNormConfig& row, int device, StreamView stream);

template <class T>
void launch_rms_norm_dense(const RmsNormProblem& problem, const tuning::DenseConfig& config,
                           const tuning::RmsNormConfig& row, int device, StreamView stream);

template <class T>
RowAccess<T> access_of(const RmsNormProblem& problem) {
  RowAccess<T> access(problem.rows, problem.cols);
  access.also_columns(problem.weight, problem.weight_dtype, problem.weight_stride,
                      problem.weight_head_stride);
  access.also_columns(problem.bias, problem.bias_dtype, problem.bias_stride,
                      problem.bias_head_stride);
  access.also_rows(problem.x, problem.x_rows, problem.x_col_stride);
  access.also_rows(problem.out, problem.out_rows, problem.out_col_stride);
  access.also_rows(problem.residual, problem.residual_rows, problem.residual_col_stride);
  access.also_rows(problem.residual_out, problem.residual_out_rows,
                   problem.residual_out_col_stride);
  access.also_rows(problem.gate, problem.gate_rows, problem.gate_col_stride);
  access.also_statistic(problem.mean, problem.mean_rows);
  access.also_statistic(problem.rstd, problem.rstd_rows);
  return access;
}

// Whether rows of unit stride may go to kernels without options that have bulk copies, which are
// where clusters are.
bool takes_bulk_copies(const RmsNormProblem& problem, const RowSplit& split, int device) {
  return split.extent == 0 && problem.heads <= 1 && problem.is_plain() &&
         max_cluster_size(device) > 1;
}

// How rows of unit stride go by the frame of out: in no blocks where they do not.
template <class T>
tuning::FramedConfig framed_config(const RmsNormProblem& problem, const tuning::RmsNormConfig& row,
                                   int device) {
  if (problem.residual != nullptr &&
      !start_alike<T>(problem.out, problem.out_rows, problem.residual_out,
                      problem.residual_out_rows)) {
    return {};
  }
  const bool beside = problem.gate != nullptr || problem.residual != nullptr;
  return tuning::framed_config(problem.rows, row, sizeof(T), problem.gate != nullptr,
                               beside ? 2 : 1, problem.centred ? 2 : 1, multiprocessors(device),
                               static_cast<int>(max_shared_bytes(device)));
}

// How narrow rows of unit stride go as pieces of memory: in no blocks where they do not.
template <class T>
tuning::DenseConfig dense_config(const RmsNormProblem& problem, const tuning::RmsNormConfig& row) {
  const auto dense = [&](const void* data, const RowLayout& rows) {
    return data == nullptr || rows.strides[0] == problem.cols;
  };
  if (!dense(problem.x, problem.x_rows) || !dense(problem.out, problem.out_rows) ||
      !dense(problem.gate, problem.gate_rows) || !dense(problem.residual, problem.residual_rows) ||
      !dense(problem.residual_out, problem.residual_out_rows)) {
    return {};
  }
  const bool gated = problem.gate != nullptr;
  return tuning::dense_config(problem.rows, problem.cols, row, sizeof(T), gated,
                              gated || problem.residual != nullptr ? 2 : 1);
}

// Rows that start anywhere as pieces of memory or by their frames. Whether they went so.
template <class T>
bool launch_bulk_copies(const RmsNormProblem& problem, const tuning::RmsNormConfig& config,
                        const RowSplit& split, int device, StreamView stream) {
  if (!takes_bulk_copies(problem, split, device)) return false;
  const auto dense = dense_config<T>(problem, config);
  if (dense.blocks > 0) {
    launch_rms_norm_dense<T>(problem, dense, config, device, stream);
    return true;
  }
  const auto framed = framed_config<T>(problem, config, device);
  if (framed.blocks == 0) return false;
  launch_rms_norm_framed<T>(problem, framed, tuning::unfolded(config), device, stream);
  return true;
}

// Rows that start anywhere word by word.
template <class T>
void launch_words(const RmsNormProblem& problem, const tuning::RmsNormConfig& config,
                  const RowSplit& split, bool whole_words, int device, StreamView stream) {
  const auto with = [&]<Beside kBeside, Centring kCentring>() {
    if constexpr (sizeof(T) < 4) {
      if (!whole_words) {
        return launch_rms_norm<T, Access::kHalves, kBeside, kCentring>(problem, config, split,
                                                                       device, stream);
      }
    }
    launch_rms_norm<T, Access::kWords, kBeside, kCentring>(problem, config, split, device, stream);
  };
  const auto go = [&]<Beside kBeside>() {
    problem.centred ? with.template operator()<kBeside, Centring::kAlways>()
                    : with.template operator()<kBeside, Centring::kNever>();
  };
  if (problem.gate != nullptr) return with.template operator()<Beside::kGate, Centring::kNever>();
  problem.residual != nullptr ? go.template operator()<Beside::kResidual>()
                              : go.template operator()<Beside::kNothing>();
}

// Rows that start anywhere, few or many, in the form that suits them. Whether they have one.
template <class T>
bool launch_unaligned(const RmsNormProblem& problem, const tuning::RmsNormConfig& config,
                      const RowSplit& split, int device, StreamView stream) {
  const bool whole_words =
      is_in_words<T>(problem.x, problem.x_rows, problem.cols) &&
      is_in_words<T>(problem.out, problem.out_rows, problem.cols) &&
      is_in_words<T>(problem.gate, problem.gate_rows, problem.cols) &&
      is_in_words<T>(problem.residual, problem.residual_rows, problem.cols) &&
      is_in_words<T>(problem.residual_out, problem.residual_out_rows, problem.cols);
  const std::int64_t chunks = tuning::ceil_div(problem.cols, kPack<T>);
  const bool gate = problem.gate != nullptr;
  if (!tuning::takes_words(config, problem.rows, chunks, whole_words, gate)) {
    if (launch_bulk_copies<T>(problem, config, split, device, stream)) return true;
    if (!tuning::goes_by_words(config, problem.rows, sizeof(T), gate)) return false;
  }
  launch_words<T>(problem, tuning::unfolded(config), split, whole_words, device, stream);
  return true;
}

void rms_norm(const RmsNormProblem& problem, StreamView stream) {
  dispatch_floating(problem.dtype, "rms_norm", [&]<class T>() {
    const int device = current_device();
    const tuning::RmsNormConfig config =
        tuning::rms_norm_config(problem.rows, problem.cols, sizeof(T), max_cluster_size(device));
    RowAccess<T> asked = access_of<T>(problem);
    if (problem.heads > 1 && config.form != tuning::RowForm::kWarp)
      asked.at_least(Access::kShifted);
    const bool shifted = asked.access() == Access::kShifted;
    if constexpr (sizeof(T) < 8) {
      if (shifted && launch_unaligned<T>(problem, config, asked.split(), device, stream)) return;
    }
    const bool beside = problem.gate != nullptr || problem.residual != nullptr;
    const auto most_shared = static_cast<std::int64_t>(max_shared_bytes(device));
    if ((problem.gate != nullptr && shifted) ||
        tuning::is_seldom(config, sizeof(T), shifted, beside) ||
        !tuning::has_parking(config, shifted, beside, most_shared)) {
      asked.at_least(Access::kAny);
    }
    const Access access = asked.access();
    const RowSplit split = asked.split();
    const auto with = [&]<Access kAccess, Beside kBeside, Centring kCentring>() {
      tuning::RmsNormConfig shape =
          kAccess == Access::kAny ? tuning::unfolded(config)
          : kBeside == Beside::kGate
              ? tuning::spread_beside_gate(config, problem.rows, sizeof(T))
              : tuning::spread_over_threads(
                    config, problem.rows, sizeof(T), kAccess == Access::kShifted,
                    kBeside == Beside::kResidual, kCentring == Centring::kAlways);
      if (kAccess == Access::kAligned && kBeside != Beside::kGate) {
        const std::int64_t chunks = tuning::ceil_div(problem.cols, kPack<T>);
        shape = tuning::by_warps(shape, problem.rows, chunks, sizeof(T),
                                 kBeside != Beside::kNothing, problem.centred);
      }
      launch_rms_norm<T, kAccess, kBeside, kCentring>(problem, shape, split, device, stream);
    };
    // As is_seldom says.
    constexpr bool kEveryday = sizeof(T) < 8;
    const auto go = [&]<Access kAccess, Centring kCentring>() {
      if constexpr (kEveryday || kAccess == Access::kAny) {
        if (problem.residual != nullptr)
          return with.template operator()<kAccess, Beside::kResidual, kCentring>();
      }
      with.template operator()<kAccess, Beside::kNothing, kCentring>();
    };
    if (problem.gate != nullptr) {
      if constexpr (kEveryday) {
        if (access == Access::kAligned)
          return with.template operator()<Access::kAligned, Beside::kGate, Centring::kNever>();
      }
      with.template operator()<Access::kAny, Beside::kGate, Centring::kNever>();
    } else if (access == Access::kAny) {
      go.template operator()<Access::kAny, Centring::kAsked>();
    } else if (kEveryday && access == Access::kShifted) {
      if constexpr (kEveryday) go.template operator()<Access::kShifted, Centring::kAsked>();
    } else if (problem.centred) {
      go.template operator()<Access::kAligned, Centring::kAlways>();
    } else {
      go.template operator()<Access::kAligned, Centring::kNever>();
    }
  });
}

}  // namespace membound::cuda
