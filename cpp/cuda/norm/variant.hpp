// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/row/access.hpp"

namespace membound::cuda {

// The second input that a kernel reads with x: a residual that is added to x, or a gate whose silu
// multiplies x or the result.
enum class FusedInput { kNone, kResidual, kGate };

// Whether the mean of a row is subtracted (layer_norm and its gradients). The fastest kernels are
// compiled for each case; the others decide at run time, which halves their code.
enum class Centring { kNever, kAlways, kRunTime };

// What kernels of forward norms are compiled for, apart from the dtype and the threads of a row.
struct NormVariant {
  Access access;
  FusedInput fused_input;
  Centring centring;
  bool quantised = false;

  bool operator==(const NormVariant&) const = default;
};

// Whether a thread group that may stage its rows in shared memory does so. Aligned rows of two
// items per thread also fit registers, and the few rows of one wave are faster that way (1024 x
// 4096 RMSNorm, bfloat16 on H200: 6.5 -> 5.8 us). They are staged where the kernel needs its
// registers otherwise: LayerNorm, quantised or gated 16-bit rows, and more vectors per item.
constexpr bool stages_row(int vectors_per_item, const NormVariant& of, int dtype_size) {
  return of.access == Access::kAligned &&
         (vectors_per_item > 2 ||
          (dtype_size == 2 && (of.centring != Centring::kNever || of.quantised ||
                               of.fused_input == FusedInput::kGate)));
}

// What a kernel of gradients does. Options cost registers and a third of the instructions, so rows
// without them have kernels of their own; aligned rows also have kernels for the common ones.
enum class Form {
  kPlain,         // no options
  kPlainRounded,  // an offset of the weight and rounding before it
  kPlainAdd,      // dsum
  kPlainGated,    // a gate without options, staged in shared memory unless rows are narrow
  kGeneral,       // all options
  kGated,         // all with a gate
};

// What kernels of gradients are compiled for, apart from the dtype and the threads of a row.
struct GradientVariant {
  Access access;
  Centring centring;
  Form form;

  constexpr bool gated() const { return form == Form::kGated || form == Form::kPlainGated; }
  bool operator==(const GradientVariant&) const = default;
};

}  // namespace membound::cuda
