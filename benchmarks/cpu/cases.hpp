// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/dtype.hpp"

// The measured cases. Goals are in TARGETS.md, classes of research on the CPU; AVX2 must reach 0.75
// of them.
namespace membound_bench {

using membound::DType;

enum class Op {
  kRmsNorm,
  kAddRmsNorm,
  kAddRmsNormInPlace,
  kBackward,
  kBackwardDx,
  kAddBackward,
  kLayerNorm,
  kAddLayerNorm,
  kLayerBackward,
  kLayerBackwardDx,
  kAddLayerBackward,
  kGated,
  kGateFirst,
  kGatedBackward,
  kGateFirstBackward,
  kRope,
  kRopeInterleaved,
  kRopeInPlace,
  kRopeFreqs,
  kSiluAndMul,
  kSoftmax,
};

inline const char* op_name(Op op) {
  switch (op) {
    case Op::kRmsNorm: return "rms_norm";
    case Op::kAddRmsNorm: return "add_rms_norm";
    case Op::kAddRmsNormInPlace: return "add_rms_norm in place";
    case Op::kBackward: return "rms_norm_backward";
    case Op::kBackwardDx: return "rms_norm_backward dx";
    case Op::kAddBackward: return "add_rms_norm_backward";
    case Op::kLayerNorm: return "layer_norm";
    case Op::kAddLayerNorm: return "add_layer_norm";
    case Op::kLayerBackward: return "layer_norm_backward";
    case Op::kLayerBackwardDx: return "layer_norm_backward dx";
    case Op::kAddLayerBackward: return "add_layer_norm_backward";
    case Op::kGated: return "rms_norm_gated";
    case Op::kGateFirst: return "rms_norm_gated, gate first";
    case Op::kGatedBackward: return "rms_norm_gated_backward";
    case Op::kGateFirstBackward: return "rms_norm_gated_backward, gate first";
    case Op::kRope: return "rope";
    case Op::kRopeInterleaved: return "rope interleaved";
    case Op::kRopeInPlace: return "rope in place";
    case Op::kRopeFreqs: return "rope from freqs";
    case Op::kSiluAndMul: return "silu_and_mul";
    default: return "softmax";
  }
}

// Matrices read and written; the reference moves the same number.
inline int matrices_of(Op op) {
  switch (op) {
    case Op::kRmsNorm:
    case Op::kLayerNorm:
    case Op::kRope:
    case Op::kRopeInterleaved:
    case Op::kRopeInPlace:
    case Op::kRopeFreqs:
    case Op::kSoftmax: return 2;
    case Op::kBackward:
    case Op::kBackwardDx:
    case Op::kLayerBackward:
    case Op::kLayerBackwardDx:
    case Op::kGated:
    case Op::kGateFirst:
    case Op::kSiluAndMul: return 3;
    case Op::kGatedBackward:
    case Op::kGateFirstBackward: return 5;
    default: return 4;
  }
}

struct Case {
  Op op;
  const char* label;
  std::int64_t rows, cols;
  DType dtype;
  double goal;          // required ratio on AVX-512, 0: none
  bool best_reference;  // compared with the better reference, else with the plain one
};

// clang-format off
inline constexpr DType kHalf = DType::kFloat16, kBrain = DType::kBFloat16,
                       kSingle = DType::kFloat32, kDouble = DType::kFloat64;
inline constexpr Case kCases[] = {
    {Op::kRmsNorm, "tiny", 1, 4096, kSingle, 0, false},
    {Op::kRmsNorm, "tiny", 1, 4096, kBrain, 0, false},
    {Op::kRmsNorm, "tiny", 8, 4096, kSingle, 0, false},
    {Op::kRmsNorm, "tiny", 8, 4096, kBrain, 0, false},
    {Op::kRmsNorm, "cached", 64, 4096, kSingle, 0.65, false},
    {Op::kRmsNorm, "cached", 128, 4096, kSingle, 0.65, false},
    {Op::kRmsNorm, "cached", 256, 4096, kSingle, 0.65, false},
    {Op::kRmsNorm, "cached", 64, 4096, kBrain, 0.60, false},
    {Op::kRmsNorm, "cached", 128, 4096, kBrain, 0.60, false},
    {Op::kRmsNorm, "cached", 256, 4096, kBrain, 0.60, false},
    {Op::kRmsNorm, "cached", 64, 4096, kHalf, 0.50, false},
    {Op::kRmsNorm, "cached", 256, 4096, kHalf, 0.50, false},
    {Op::kRmsNorm, "cached", 128, 4096, kDouble, 0.65, false},
    {Op::kRmsNorm, "DRAM", 2048, 4096, kSingle, 0.85, true},
    {Op::kRmsNorm, "DRAM", 8192, 4096, kSingle, 0.85, true},
    {Op::kRmsNorm, "DRAM", 4096, 8192, kSingle, 0.85, true},
    {Op::kRmsNorm, "DRAM", 256, 131072, kSingle, 0.85, true},
    {Op::kRmsNorm, "DRAM", 2048, 4096, kBrain, 0.75, true},
    {Op::kRmsNorm, "DRAM", 8192, 4096, kBrain, 0.75, true},
    {Op::kRmsNorm, "DRAM", 4096, 8192, kBrain, 0.75, true},
    {Op::kRmsNorm, "DRAM", 8192, 4096, kHalf, 0.70, true},
    {Op::kRmsNorm, "DRAM", 4096, 4096, kDouble, 0.85, true},
    {Op::kRmsNorm, "heads", 65536, 128, kSingle, 0.85, true},
    {Op::kRmsNorm, "heads", 65536, 128, kBrain, 0.70, true},
    {Op::kRmsNorm, "heads", 65536, 128, kHalf, 0.70, true},
    {Op::kRmsNorm, "heads", 4096, 128, kBrain, 0, false},

    {Op::kAddRmsNorm, "tiny", 1, 4096, kSingle, 0, false},
    {Op::kAddRmsNorm, "tiny", 1, 4096, kBrain, 0, false},
    {Op::kAddRmsNorm, "tiny", 8, 4096, kBrain, 0, false},
    {Op::kAddRmsNorm, "cached", 64, 4096, kSingle, 0.80, false},
    {Op::kAddRmsNorm, "cached", 128, 4096, kSingle, 0.80, false},
    {Op::kAddRmsNorm, "cached", 64, 4096, kBrain, 0.80, false},
    {Op::kAddRmsNorm, "cached", 128, 4096, kBrain, 0.80, false},
    {Op::kAddRmsNorm, "cached", 128, 4096, kHalf, 0, false},
    {Op::kAddRmsNorm, "DRAM", 2048, 4096, kSingle, 0.80, true},
    {Op::kAddRmsNorm, "DRAM", 4096, 8192, kSingle, 0.80, true},
    {Op::kAddRmsNorm, "DRAM", 2048, 4096, kBrain, 0.80, true},
    {Op::kAddRmsNorm, "DRAM", 8192, 4096, kBrain, 0.80, true},
    {Op::kAddRmsNorm, "DRAM", 8192, 4096, kHalf, 0.80, true},
    {Op::kAddRmsNorm, "DRAM", 2048, 4096, kDouble, 0.80, true},
    {Op::kAddRmsNorm, "heads", 65536, 128, kSingle, 0, true},
    {Op::kAddRmsNorm, "heads", 65536, 128, kBrain, 0, true},
    {Op::kAddRmsNormInPlace, "tiny", 1, 4096, kBrain, 0, false},
    {Op::kAddRmsNormInPlace, "cached", 128, 4096, kSingle, 0, false},
    {Op::kAddRmsNormInPlace, "cached", 128, 4096, kBrain, 0, false},
    {Op::kAddRmsNormInPlace, "DRAM", 2048, 4096, kSingle, 1.0, true},
    {Op::kAddRmsNormInPlace, "DRAM", 4096, 8192, kSingle, 1.0, true},
    {Op::kAddRmsNormInPlace, "DRAM", 8192, 4096, kBrain, 1.0, true},

    {Op::kBackward, "tiny", 1, 4096, kSingle, 0, false},
    {Op::kBackward, "tiny", 1, 4096, kBrain, 0, false},
    {Op::kBackward, "tiny", 8, 4096, kSingle, 0, false},
    {Op::kBackward, "tiny", 8, 4096, kBrain, 0, false},
    {Op::kBackward, "cached", 64, 4096, kSingle, 0.45, false},
    {Op::kBackward, "cached", 128, 4096, kSingle, 0.45, false},
    {Op::kBackward, "cached", 64, 4096, kBrain, 0, false},
    {Op::kBackward, "cached", 128, 4096, kBrain, 0, false},
    {Op::kBackward, "cached", 128, 4096, kHalf, 0, false},
    {Op::kBackward, "cached", 128, 4096, kDouble, 0, false},
    {Op::kBackward, "DRAM", 2048, 4096, kSingle, 0.70, true},
    {Op::kBackward, "DRAM", 4096, 4096, kSingle, 0.70, true},
    {Op::kBackward, "DRAM", 4096, 8192, kSingle, 0.70, true},
    {Op::kBackward, "DRAM", 2048, 4096, kBrain, 0.50, true},
    {Op::kBackward, "DRAM", 8192, 4096, kBrain, 0.50, true},
    {Op::kBackward, "DRAM", 8192, 4096, kHalf, 0, true},
    {Op::kBackward, "DRAM", 2048, 4096, kDouble, 0, true},
    {Op::kBackward, "heads", 65536, 128, kSingle, 0.60, true},
    {Op::kBackward, "heads", 65536, 128, kBrain, 0.50, true},
    {Op::kBackwardDx, "tiny", 1, 4096, kBrain, 0, false},
    {Op::kBackwardDx, "DRAM", 4096, 4096, kSingle, 0.70, true},
    {Op::kBackwardDx, "DRAM", 8192, 4096, kBrain, 0.50, true},
    {Op::kAddBackward, "cached", 128, 4096, kBrain, 0, false},
    {Op::kAddBackward, "DRAM", 4096, 4096, kSingle, 0, true},
    {Op::kAddBackward, "DRAM", 8192, 4096, kBrain, 0, true},

    {Op::kLayerNorm, "tiny", 1, 4096, kSingle, 0, false},
    {Op::kLayerNorm, "tiny", 1, 4096, kBrain, 0, false},
    {Op::kLayerNorm, "cached", 128, 4096, kSingle, 0, false},
    {Op::kLayerNorm, "cached", 128, 4096, kBrain, 0, false},
    {Op::kLayerNorm, "cached", 128, 4096, kHalf, 0, false},
    {Op::kLayerNorm, "cached", 128, 4096, kDouble, 0, false},
    {Op::kLayerNorm, "cached", 512, 768, kSingle, 0, false},
    {Op::kLayerNorm, "DRAM", 8192, 4096, kSingle, 0, true},
    {Op::kLayerNorm, "DRAM", 16384, 768, kSingle, 0, true},
    {Op::kLayerNorm, "DRAM", 8192, 4096, kBrain, 0, true},
    {Op::kLayerNorm, "DRAM", 8192, 4096, kHalf, 0, true},
    {Op::kLayerNorm, "DRAM", 4096, 4096, kDouble, 0, true},
    {Op::kLayerNorm, "heads", 65536, 128, kSingle, 0, true},
    {Op::kLayerNorm, "heads", 65536, 128, kBrain, 0, true},
    {Op::kAddLayerNorm, "cached", 128, 4096, kBrain, 0, false},
    {Op::kAddLayerNorm, "DRAM", 4096, 8192, kSingle, 0, true},
    {Op::kAddLayerNorm, "DRAM", 8192, 4096, kBrain, 0, true},
    {Op::kLayerBackward, "tiny", 1, 4096, kBrain, 0, false},
    {Op::kLayerBackward, "cached", 128, 4096, kSingle, 0, false},
    {Op::kLayerBackward, "cached", 128, 4096, kBrain, 0, false},
    {Op::kLayerBackward, "cached", 128, 4096, kDouble, 0, false},
    {Op::kLayerBackward, "DRAM", 4096, 4096, kSingle, 0, true},
    {Op::kLayerBackward, "DRAM", 16384, 768, kSingle, 0, true},
    {Op::kLayerBackward, "DRAM", 8192, 4096, kBrain, 0, true},
    {Op::kLayerBackward, "heads", 65536, 128, kSingle, 0, true},
    {Op::kLayerBackwardDx, "DRAM", 4096, 4096, kSingle, 0, true},
    {Op::kLayerBackwardDx, "DRAM", 8192, 4096, kBrain, 0, true},
    {Op::kAddLayerBackward, "DRAM", 4096, 4096, kSingle, 0, true},

    {Op::kGated, "tiny", 1, 4096, kSingle, 0, false},
    {Op::kGated, "tiny", 1, 4096, kBrain, 0, false},
    {Op::kGated, "cached", 128, 4096, kSingle, 0, false},
    {Op::kGated, "cached", 128, 4096, kBrain, 0, false},
    {Op::kGated, "DRAM", 4096, 4096, kSingle, 0, true},
    {Op::kGated, "DRAM", 8192, 4096, kBrain, 0, true},
    {Op::kGated, "DRAM", 8192, 4096, kHalf, 0, true},
    {Op::kGated, "DRAM", 2048, 4096, kDouble, 0, true},
    {Op::kGated, "heads", 65536, 128, kSingle, 0, true},
    {Op::kGated, "heads", 65536, 128, kBrain, 0, true},
    {Op::kGateFirst, "cached", 128, 4096, kBrain, 0, false},
    {Op::kGateFirst, "DRAM", 4096, 4096, kSingle, 0, true},
    {Op::kGateFirst, "DRAM", 8192, 4096, kBrain, 0, true},
    {Op::kGatedBackward, "cached", 128, 4096, kBrain, 0, false},
    {Op::kGatedBackward, "DRAM", 4096, 4096, kSingle, 0, true},
    {Op::kGatedBackward, "DRAM", 8192, 4096, kBrain, 0, true},
    {Op::kGatedBackward, "heads", 65536, 128, kSingle, 0, true},
    {Op::kGateFirstBackward, "DRAM", 4096, 4096, kSingle, 0, true},
    {Op::kGateFirstBackward, "DRAM", 8192, 4096, kBrain, 0, true},

    {Op::kRope, "decode", 1, 4096, kSingle, 0, false},
    {Op::kRope, "decode", 64, 4096, kSingle, 0.80, false},
    {Op::kRope, "decode", 64, 4096, kBrain, 0, false},
    {Op::kRope, "DRAM", 4096, 4096, kSingle, 0.85, true},
    {Op::kRope, "DRAM", 4096, 4096, kBrain, 0.75, true},
    {Op::kRope, "DRAM", 16384, 4096, kBrain, 0.75, true},
    {Op::kRope, "DRAM", 8192, 4096, kHalf, 0, true},
    {Op::kRope, "DRAM", 2048, 4096, kDouble, 0, true},
    {Op::kRopeInterleaved, "DRAM", 4096, 4096, kSingle, 0.85, true},
    {Op::kRopeInterleaved, "DRAM", 16384, 4096, kBrain, 0.75, true},
    {Op::kRopeInterleaved, "DRAM", 8192, 4096, kHalf, 0, true},
    {Op::kRopeInPlace, "decode", 64, 4096, kSingle, 0, false},
    {Op::kRopeInPlace, "DRAM", 4096, 4096, kSingle, 0.85, true},
    {Op::kRopeInPlace, "DRAM", 16384, 4096, kBrain, 0.75, true},
    {Op::kRopeFreqs, "decode", 64, 4096, kSingle, 0, false},
    {Op::kRopeFreqs, "DRAM", 4096, 4096, kSingle, 0, true},
    {Op::kRopeFreqs, "DRAM", 16384, 4096, kBrain, 0, true},

    {Op::kSiluAndMul, "tiny", 1, 14336, kSingle, 0, false},
    {Op::kSiluAndMul, "tiny", 1, 14336, kBrain, 0, false},
    {Op::kSiluAndMul, "cached", 64, 4096, kSingle, 0.28, false},
    {Op::kSiluAndMul, "cached", 64, 4096, kBrain, 0.13, false},
    {Op::kSiluAndMul, "DRAM", 2048, 4096, kSingle, 0.70, true},
    {Op::kSiluAndMul, "DRAM", 2048, 14336, kSingle, 0.70, true},
    {Op::kSiluAndMul, "DRAM", 2048, 14336, kBrain, 0.50, true},
    {Op::kSiluAndMul, "DRAM", 8192, 4096, kHalf, 0, true},
    {Op::kSiluAndMul, "DRAM", 2048, 4096, kDouble, 0, true},
    {Op::kSoftmax, "cached", 128, 4096, kSingle, 0, false},
    {Op::kSoftmax, "cached", 128, 4096, kBrain, 0, false},
    {Op::kSoftmax, "DRAM", 8192, 4096, kSingle, 0, true},
    {Op::kSoftmax, "DRAM", 8192, 4096, kBrain, 0, true},
};
// clang-format on

}  // namespace membound_bench
