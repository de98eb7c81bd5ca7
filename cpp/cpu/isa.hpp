// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/kernels/cross_entropy.hpp"
#include "cpu/kernels/embedding.hpp"
#include "cpu/kernels/embedding_backward.hpp"
#include "cpu/kernels/gated_activation.hpp"
#include "cpu/kernels/gated_activation_backward.hpp"
#include "cpu/kernels/gated_activation_quant.hpp"
#include "cpu/kernels/qk_norm_rope.hpp"
#include "cpu/kernels/rms_norm.hpp"
#include "cpu/kernels/rms_norm_backward.hpp"
#include "cpu/kernels/rms_norm_generic.hpp"
#include "cpu/kernels/rms_norm_quant.hpp"
#include "cpu/kernels/rope.hpp"
#include "cpu/kernels/softmax.hpp"
#include "cpu/kernels/softmax_backward.hpp"

namespace membound::cpu {

// The kernels of one instruction set: cpu/kernels/*.cpp are compiled once for each.
struct KernelTable {
  const char* isa;
  void (*rms_norm)(const RmsNormRows&);
  void (*rms_norm_centred)(const RmsNormRows&);
  void (*rms_norm_gated)(const RmsNormRows&);
  void (*rms_norm_weight)(const RmsNormWeight&);
  void (*rms_norm_quant)(const RmsNormQuantRows&);
  void (*rms_norm_backward)(const RmsNormBackwardRows&);
  void (*rms_norm_backward_centred)(const RmsNormBackwardRows&);
  void (*rms_norm_backward_gated)(const RmsNormBackwardRows&);
  void (*rms_norm_backward_block)(const RmsNormBackwardBlock&);
  void (*rms_norm_backward_weight)(const RmsNormBackwardWeight&);
  void (*gated_activation)(const GatedActivationRows&);
  void (*gated_activation_backward)(const GatedActivationBackwardRows&);
  void (*gated_activation_quant)(const GatedActivationQuantRows&);
  void (*rope)(const RopeRows&);
  void (*rope_angles)(const RopeAngleRun&);
  void (*rope_arrange)(const RopeArrangement&);
  void (*rope_angle_gradient)(const RopeAngleGradient&);
  void (*qk_norm_rope)(const QkNormRopeRows&);
  void (*qk_norm_rope_backward)(const QkNormRopeBackwardRows&);
  void (*embedding)(const EmbeddingRows&);
  void (*embedding_backward)(const EmbeddingGradientRow&);
  void (*embedding_backward_zeros)(const EmbeddingGradientZeros&);
  void (*softmax)(const SoftmaxRows&);
  void (*softmax_backward)(const SoftmaxBackwardRows&);
  void (*cross_entropy)(CrossEntropyRows&);
  void (*convert_rows)(const RowConversion&);
  void (*multiply_silu)(const RowConversion&);
};

// The tables that this CPU can run, best first; the first is the default.
struct KernelTables {
  const KernelTable* tables[3];
  int count;
};
KernelTables supported_kernels();

// The table in use, chosen once: the best, or the one MEMBOUND_CPU_ISA names. Throws
// InvalidArgument if that is unknown or not supported by this CPU.
const KernelTable& kernels();

}  // namespace membound::cpu
