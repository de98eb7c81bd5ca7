// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include "membound/export.hpp"
#include "membound/stream.hpp"
#include "membound/tensor_view.hpp"

namespace membound {

// The activation function; Phi is the normal distribution function.
enum class Activation : std::uint8_t {
  kSilu,      // g / (1 + exp(-alpha * g)): SwiGLU
  kGelu,      // g * Phi(g): GeGLU
  kGeluTanh,  // g / 2 * (1 + tanh(sqrt(2 / pi) * (g + 0.044715 * g^3)))
  kSigmoid,   // 1 / (1 + exp(-alpha * g)): GLU
  kRelu2,     // max(g, 0)^2
  kRelu,      // max(g, 0), with slope 0 at 0: ReGLU
  kSitu,      // alpha * tanh(g / alpha) / (1 + exp(-g)): SiTU-GLU, whose limit is soft
};

struct GatedActivationOptions {
  Activation kind = Activation::kSilu;
  double alpha = 1.0;  // of kSilu, kSigmoid and kSitu: finite and above 0; 1 for the others
  double limit = std::numeric_limits<double>::infinity();  // above 0; infinity: none
  double up_offset = 0.0;                                  // finite
  const char* op = nullptr;  // the function's name in errors, if it is another
};

// Each element of
//
//   out = act(min(gate, limit)) * (clamp(up, -limit, limit) + up_offset) * row_scale
//
// in float32 (float64 for float64), rounded once. kSitu limits up alone, and smoothly: its factor
// is limit * tanh(up / limit) + up_offset.
//
// gate       (..., cols) with at least one axis and cols >= 1; float16, bfloat16, float32 or
//            float64; any strides
// up         gate's shape, dtype and device, or nullptr: out = act(min(gate, limit)) * row_scale;
//            then up_offset is 0
// row_scale  gate's shape less the last axis, accumulate_dtype(gate.dtype), or nullptr
// options    limit = 7, alpha = 1.702, up_offset = 1: gpt-oss
// out        gate's shape, dtype and device; may be gate or up itself
// stream     where the work is queued; ignored on the CPU
//
// An array that is written must not overlap another in part. Zero rows: nothing happens. Throws
// InvalidArgument, TypeMismatch, CudaError.
MEMBOUND_API void gated_activation(const ConstTensorView& gate, const ConstTensorView* up,
                                   const ConstTensorView* row_scale,
                                   const GatedActivationOptions& options, const TensorView& out,
                                   StreamView stream);

// Shorthands by the names that models use; those with `up` are gated.
inline void silu_and_mul(const ConstTensorView& gate, const ConstTensorView& up,
                         const TensorView& out, StreamView stream,
                         GatedActivationOptions options = {}) {
  options.kind = Activation::kSilu;
  options.op = "silu_and_mul";
  gated_activation(gate, &up, nullptr, options, out, stream);
}
inline void gelu_and_mul(const ConstTensorView& gate, const ConstTensorView& up,
                         const TensorView& out, StreamView stream,
                         GatedActivationOptions options = {}) {
  options.kind = Activation::kGelu;
  options.op = "gelu_and_mul";
  gated_activation(gate, &up, nullptr, options, out, stream);
}
inline void gelu_tanh_and_mul(const ConstTensorView& gate, const ConstTensorView& up,
                              const TensorView& out, StreamView stream,
                              GatedActivationOptions options = {}) {
  options.kind = Activation::kGeluTanh;
  options.op = "gelu_tanh_and_mul";
  gated_activation(gate, &up, nullptr, options, out, stream);
}
inline void sigmoid_and_mul(const ConstTensorView& gate, const ConstTensorView& up,
                            const TensorView& out, StreamView stream,
                            GatedActivationOptions options = {}) {
  options.kind = Activation::kSigmoid;
  options.op = "sigmoid_and_mul";
  gated_activation(gate, &up, nullptr, options, out, stream);
}
inline void relu2(const ConstTensorView& gate, const TensorView& out, StreamView stream) {
  GatedActivationOptions options;
  options.kind = Activation::kRelu2;
  options.op = "relu2";
  gated_activation(gate, nullptr, nullptr, options, out, stream);
}

// How gate and up are packed in one array of (..., 2 * cols).
enum class Packing : std::uint8_t {
  kHalves,       // all of the gate, then all of up
  kInterleaved,  // alternating elements, as in gpt-oss
};

namespace detail {
inline const void* advanced(const void* data, std::int64_t bytes) {
  return static_cast<const char*>(data) + bytes;
}
inline void* advanced(void* data, std::int64_t bytes) { return static_cast<char*>(data) + bytes; }
}  // namespace detail

template <class Pointer>
struct GateAndUp {
  BasicTensorView<Pointer> gate, up;
};
// Views of both. packed has at least one axis, the last of an even extent.
template <class Pointer>
GateAndUp<Pointer> split_gate_up(const BasicTensorView<Pointer>& packed, Packing packing) {
  GateAndUp<Pointer> parts{packed, packed};
  const int last = packed.rank - 1;
  const std::int64_t cols = packed.shape[last] / 2, stride = packed.strides[last];
  const std::int64_t between = packing == Packing::kHalves ? cols * stride : stride;
  for (BasicTensorView<Pointer>* part : {&parts.gate, &parts.up}) {
    part->shape[last] = cols;
    if (packing == Packing::kInterleaved) part->strides[last] = 2 * stride;
  }
  parts.up.data =
      detail::advanced(packed.data, between * static_cast<std::int64_t>(dtype_size(packed.dtype)));
  return parts;
}

}  // namespace membound
