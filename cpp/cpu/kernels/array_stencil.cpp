// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/array.hpp"
#include "cpu/vec.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

// kCount elements of S each. Weights are taken in their order, however many results there are.
template <class S, int kCount, class T>
MEMBOUND_ALWAYS_INLINE void apply(const StencilBlock& block, std::int64_t at) {
  constexpr std::int64_t kLanes = sizeof(S) / sizeof(T);
  T* result = static_cast<T*>(block.result) + at;
  S sums[kCount];
  for (int i = 0; i < kCount; ++i) sums[i] = block.accumulates ? load<S>(result + i * kLanes) : S{};
  for (std::int64_t tap = 0; tap < block.taps; ++tap) {
    const T weight = static_cast<const T*>(block.weights)[tap];
    const T* input = static_cast<const T*>(block.inputs[tap]) + at;
    for (int i = 0; i < kCount; ++i) sums[i] = sums[i] + weight * load<S>(input + i * kLanes);
  }
  for (int i = 0; i < kCount; ++i) store(result + i * kLanes, sums[i]);
}

template <class T>
void run(const StencilBlock& block) {
  typedef T V __attribute__((vector_size(kVectorBytes)));
  constexpr std::int64_t kLanes = kVectorBytes / sizeof(T), kUnrolled = 4;
  std::int64_t at = 0;
  for (; at + kUnrolled * kLanes <= block.count; at += kUnrolled * kLanes)
    apply<V, kUnrolled, T>(block, at);
  for (; at + kLanes <= block.count; at += kLanes) apply<V, 1, T>(block, at);
  for (; at < block.count; ++at) apply<T, 1, T>(block, at);
}

}  // namespace

void array_stencil(const StencilBlock& block) {
  block.dtype == DType::kFloat64 ? run<double>(block) : run<float>(block);
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
