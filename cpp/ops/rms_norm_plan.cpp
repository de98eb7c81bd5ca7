// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/check.hpp"
#include "core/dispatch.hpp"
#include "cuda/norm/plan_text.hpp"
#include "membound/norm_plan.hpp"

namespace membound {

namespace {

using namespace cuda;

struct PlannedOp {
  const char* name;
  FusedInput fused_input = FusedInput::kNone;
  bool centred = false;
  bool quantised = false;
  bool gradient = false;
};
constexpr PlannedOp kOps[] = {
    {"rms_norm"},
    {"add_rms_norm", FusedInput::kResidual},
    {"rms_norm_gated", FusedInput::kGate},
    {"layer_norm", FusedInput::kNone, true},
    {"add_layer_norm", FusedInput::kResidual, true},
    {"rms_norm_quant", FusedInput::kNone, false, true},
    {"add_rms_norm_quant", FusedInput::kResidual, false, true},
    {"rms_norm_backward", FusedInput::kNone, false, false, true},
    {"add_rms_norm_backward", FusedInput::kResidual, false, false, true},
    {"rms_norm_gated_backward", FusedInput::kGate, false, false, true},
    {"layer_norm_backward", FusedInput::kNone, true, false, true},
    {"add_layer_norm_backward", FusedInput::kResidual, true, false, true},
};

const PlannedOp& op_named(const std::string& name) {
  std::string known;
  for (const PlannedOp& op : kOps) {
    if (name == op.name) return op;
    known += (known.empty() ? "" : ", ") + std::string(op.name);
  }
  MEMBOUND_CHECK(false, InvalidArgument, "norm_plan", "op must be one of ", known, ", got ", name);
}

// Shared memory of a block and the largest cluster, by compute capability (CUDA programming guide,
// table of technical specifications).
GpuLimits limits_of(int compute, int multiprocessors) {
  const bool data_centre = compute == 80 || (compute >= 90 && compute < 120);
  const int kibibytes = compute < 80 ? 64 : !data_centre ? 99 : compute == 80 ? 163 : 227;
  const int max_cluster = compute < 90 ? 1 : compute < 120 ? 16 : 8;
  return {multiprocessors, max_cluster, kibibytes << 10};
}

std::string norm_text(const PlannedOp& op, std::int64_t rows, std::int64_t cols, int size,
                      const GpuLimits& gpu) {
  tuning::NormFacts of = tuning::contiguous_norm(rows, cols, size);
  of.fused_input = op.fused_input;
  of.centred = op.centred;
  of.quantised = op.quantised;
  return to_string(tuning::norm_plan(of, gpu));
}

std::string gradient_text(const PlannedOp& op, std::int64_t rows, std::int64_t cols, int size,
                          const GpuLimits& gpu) {
  tuning::GradientFacts of = tuning::contiguous_gradient(rows, cols, size);
  of.centred = op.centred;
  of.gated = op.fused_input == FusedInput::kGate;
  of.adds = op.fused_input == FusedInput::kResidual;
  if (of.adds) of.row_strides[2] = cols;
  return to_string(tuning::gradient_plan(of, gpu));
}

}  // namespace

std::string norm_plan_text(const std::string& name, std::int64_t rows, std::int64_t cols,
                           DType dtype, int compute, int multiprocessors) {
  const PlannedOp& op = op_named(name);
  MEMBOUND_CHECK(rows >= 1 && cols >= 1, InvalidArgument, "norm_plan",
                 "rows and cols must be at least 1, got ", rows, " x ", cols);
  const GpuLimits gpu = limits_of(compute, multiprocessors);
  return dispatch_floating(dtype, "norm_plan", [&]<class T>() {
    return op.gradient ? gradient_text(op, rows, cols, sizeof(T), gpu)
                       : norm_text(op, rows, cols, sizeof(T), gpu);
  });
}

}  // namespace membound
