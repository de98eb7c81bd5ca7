// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/kernels/array.hpp"
#include "cpu/kernels/cross_entropy.hpp"
#include "cpu/kernels/elementwise_rows.hpp"
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

// Every kernel and its parameter: cpu/kernels/*.cpp are compiled once for each instruction set.
// clang-format off
#define MEMBOUND_KERNELS(kernel_)                                        \
  kernel_(rms_norm, const RmsNormRows&)                                  \
  kernel_(rms_norm_centred, const RmsNormRows&)                          \
  kernel_(rms_norm_gated, const RmsNormRows&)                            \
  kernel_(rms_norm_weight, const RmsNormWeight&)                         \
  kernel_(rms_norm_quant, const RmsNormQuantRows&)                       \
  kernel_(rms_norm_backward, const RmsNormBackwardRows&)                 \
  kernel_(rms_norm_backward_centred, const RmsNormBackwardRows&)         \
  kernel_(rms_norm_backward_gated, const RmsNormBackwardRows&)           \
  kernel_(rms_norm_backward_block, const RmsNormBackwardBlock&)          \
  kernel_(rms_norm_backward_weight, const RmsNormBackwardWeight&)        \
  kernel_(gated_activation, const GatedActivationRows&)                  \
  kernel_(gated_activation_backward, const GatedActivationBackwardRows&) \
  kernel_(gated_activation_quant, const GatedActivationQuantRows&)       \
  kernel_(rope, const RopeRows&)                                         \
  kernel_(rope_angles, const RopeAngleRun&)                              \
  kernel_(rope_arrange, const RopeArrangement&)                          \
  kernel_(rope_angle_gradient, const RopeAngleGradient&)                 \
  kernel_(qk_norm_rope, const QkNormRopeRows&)                           \
  kernel_(qk_norm_rope_backward, const QkNormRopeBackwardRows&)          \
  kernel_(embedding, const EmbeddingRows&)                               \
  kernel_(embedding_backward, const EmbeddingGradientRow&)               \
  kernel_(embedding_backward_zeros, const EmbeddingGradientZeros&)       \
  kernel_(softmax, const SoftmaxRows&)                                   \
  kernel_(softmax_backward, const SoftmaxBackwardRows&)                  \
  kernel_(cross_entropy, CrossEntropyRows&)                              \
  kernel_(soft_cap, const ElementwiseRows&, double cap)                  \
  kernel_(array_unary, const ArrayBlocks&)                               \
  kernel_(array_binary, const ArrayBlocks&)                              \
  kernel_(array_ternary, const ArrayBlocks&)                             \
  kernel_(array_stencil, const StencilBlock&)                            \
  kernel_(array_adamw, const AdamWBlock&)                                \
  kernel_(array_convert, const ArrayConversion&)                         \
  kernel_(array_store, const ArrayBytes&)                                \
  kernel_(array_transpose, const ArrayTranspose&)                        \
  kernel_(array_reduce_rows, const ArrayRows&)                           \
  kernel_(array_reduce_columns, const ArrayColumns&)                     \
  kernel_(array_matmul, const MatmulBlock&)                              \
  kernel_(array_matmul_tile, MatmulTile&)                                \
  kernel_(convert_rows, const RowConversion&)                            \
  kernel_(multiply_silu, const RowConversion&)
// clang-format on

#define MEMBOUND_DECLARE(name_, ...) void name_(__VA_ARGS__);
namespace baseline {
MEMBOUND_KERNELS(MEMBOUND_DECLARE)
}
namespace avx2 {
MEMBOUND_KERNELS(MEMBOUND_DECLARE)
}
namespace avx512 {
MEMBOUND_KERNELS(MEMBOUND_DECLARE)
}
namespace neon {
MEMBOUND_KERNELS(MEMBOUND_DECLARE)
}
#undef MEMBOUND_DECLARE

// The kernels of one instruction set.
struct KernelTable {
  const char* isa;
#define MEMBOUND_MEMBER(name_, ...) void (*name_)(__VA_ARGS__);
  MEMBOUND_KERNELS(MEMBOUND_MEMBER)
#undef MEMBOUND_MEMBER
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
