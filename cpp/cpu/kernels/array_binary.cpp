// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/elementary.hpp"
#include "cpu/kernels/array_blocks.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

// Functions of float32 by way of float64. Where is_special, the scalar function is called instead.
template <class V>
MEMBOUND_ALWAYS_INLINE auto is_number_but_zero(V x) {
  return ((x > 0) | (x < 0)) & (x - x == 0);
}
struct VectorAtan2 : functors::Atan2 {
  static MEMBOUND_ALWAYS_INLINE F64 doubles(F64 y, F64 x) { return atan2_of(y, x); }
  static MEMBOUND_ALWAYS_INLINE auto is_special(F32 y, F32 x) {
    return ~(is_number_but_zero(y) & is_number_but_zero(x));
  }
};
struct VectorPow : functors::Pow {
  static MEMBOUND_ALWAYS_INLINE F64 doubles(F64 x, F64 y) { return pow_of(x, y); }
  static MEMBOUND_ALWAYS_INLINE auto is_special(F32 x, F32 y) {
    return ~((x > 0) & (x - x == 0) & (y - y == 0));
  }
};

// The result may be one of the inputs.
template <class F>
MEMBOUND_ALWAYS_INLINE void run_vector(const float* x, const float* y, float* result) {
  const F32 a = load<F32>(x), b = load<F32>(y);
  const F32 found =
      by_doubles([](F64 one, F64 other) MEMBOUND_INLINED { return F::doubles(one, other); }, a, b);
  const auto special = F::is_special(a, b);
  if (!is_any(special)) [[likely]]
    return store(result, found);
  float values[kVectorBytes / sizeof(float)];
  store(values, found);
  for (std::size_t i = 0; i < kVectorBytes / sizeof(float); ++i) {
    if (special[i] != 0) values[i] = F::apply(x[i], y[i]);
  }
  __builtin_memcpy(result, values, sizeof(values));
}
template <class F>
void run_vectors(const float* x, const float* y, float* result, std::int64_t count) {
  constexpr std::int64_t kLanes = kVectorBytes / sizeof(float);
  std::int64_t at = 0;
  for (; at + kLanes <= count; at += kLanes) run_vector<F>(x + at, y + at, result + at);
  if (at == count) return;
  float values[3][kLanes];
  for (std::int64_t i = 0; i < kLanes; ++i) {
    values[0][i] = at + i < count ? x[at + i] : 1;
    values[1][i] = at + i < count ? y[at + i] : 1;
  }
  run_vector<F>(values[0], values[1], values[2]);
  for (std::int64_t i = 0; at + i < count; ++i) result[at + i] = values[2][i];
}
template <class F>
void run_floats(const ArrayBlocks& blocks) {
  const float *x = static_cast<const float*>(blocks.inputs[0]),
              *y = static_cast<const float*>(blocks.inputs[1]);
  float* result = static_cast<float*>(blocks.result);
  for (std::int64_t at = 0; at < blocks.count; at += blocks.block) {
    const std::int64_t left = blocks.count - at;
    run_vectors<F>(x, y, result + at, left < blocks.block ? left : blocks.block);
    x += blocks.advance[0];
    y += blocks.advance[1];
  }
}

}  // namespace

void array_binary(const ArrayBlocks& blocks) {
  const bool floats = blocks.dtype == DType::kFloat32;
  if (floats && blocks.op == ElementwiseOp::kAtan2) return run_floats<VectorAtan2>(blocks);
  if (floats && blocks.op == ElementwiseOp::kPow) return run_floats<VectorPow>(blocks);
  run_blocks<2>(blocks);
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
