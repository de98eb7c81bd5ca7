// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/elementary_float64.hpp"
#include "cpu/kernels/array_division.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

// Where is_special, the scalar function is called instead.
struct VectorAtan2 : functors::Atan2 {
  static MEMBOUND_ALWAYS_INLINE F32 vector(F32 y, F32 x) { return atan2_of(y, x); }
  static MEMBOUND_ALWAYS_INLINE F64 vector(F64 y, F64 x) { return float64::atan2_of(y, x); }
  static MEMBOUND_ALWAYS_INLINE auto is_special(F32 y, F32 x, F32) {
    // Without fused products the parts of smaller ones are not exact.
    constexpr float kLeast = kFusesProducts ? 0x1p-149f : 0x1p-97f;
    const F32 one = absolute(y), other = absolute(x);
    return ~((one >= kLeast) & (other >= kLeast) & (one < 0x1p125f) & (other < 0x1p125f));
  }
  static MEMBOUND_ALWAYS_INLINE auto is_special(F64 y, F64 x, F64) {
    const F64 one = absolute(y), other = absolute(x);
    const F64 least = one < other ? one : other, most = one < other ? other : one;
    return ~((least > 0x1p-1000) & (most < 0x1p1000));
  }
};
struct VectorPow : functors::Pow {
  static MEMBOUND_ALWAYS_INLINE F32 vector(F32 x, F32 y) { return pow_of(x, y); }
  static MEMBOUND_ALWAYS_INLINE F64 vector(F64 x, F64 y) { return float64::pow_of(x, y); }
  static MEMBOUND_ALWAYS_INLINE auto is_special(F32 x, F32, F32 power) {
    return ~((x >= 0x1p-126f) & (x < __builtin_inff()) & (power > 0));
  }
  static MEMBOUND_ALWAYS_INLINE auto is_special(F64 x, F64, F64 power) {
    return ~((x >= 0x1p-1022) & (x - x == 0) & (power > 0x1p-1000) & (power < 0x1p1000));
  }
};

template <class F, class V, class A>
[[gnu::noinline]] void apply_to_special(const A* x, const A* y, A* found, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto special = F::is_special(V{} + x[i], V{} + y[i], V{} + found[i]);
    if (special[0] != 0) found[i] = F::apply(x[i], y[i]);
  }
}
// Vectors of a part of the elements, then what is special among them. The result may be one of the
// inputs, so each part waits until it is done; the last one is padded with ones.
template <class F, class A>
void run_vectors(const A* x, const A* y, A* result, std::int64_t count) {
  typedef A V __attribute__((vector_size(kVectorBytes)));
  constexpr std::int64_t kLanes = kVectorBytes / sizeof(A), kPart = 16 * kLanes;
  A values[kPart], inputs[2][kPart];
  for (std::int64_t at = 0; at < count; at += kPart) {
    const std::int64_t part = count - at < kPart ? count - at : kPart;
    const A *a = x + at, *b = y + at;
    if (part < kPart) {
      for (A& one : inputs[0]) one = 1;
      for (A& one : inputs[1]) one = 1;
      a = static_cast<const A*>(__builtin_memcpy(inputs[0], a, part * sizeof(A)));
      b = static_cast<const A*>(__builtin_memcpy(inputs[1], b, part * sizeof(A)));
    }
    decltype(F::is_special(V{}, V{}, V{})) special{};
    for (std::int64_t i = 0; i < part; i += kLanes) {
      const V one = load<V>(a + i), other = load<V>(b + i), found = F::vector(one, other);
      special |= F::is_special(one, other, found);
      store(values + i, found);
    }
    if (is_any(special)) [[unlikely]]
      apply_to_special<F, V>(a, b, values, part);
    __builtin_memcpy(result + at, values, part * sizeof(A));
  }
}
template <class F, class A>
void run_numbers(const ArrayBlocks& blocks) {
  const A *x = static_cast<const A*>(blocks.inputs[0]),
          *y = static_cast<const A*>(blocks.inputs[1]);
  A* result = static_cast<A*>(blocks.result);
  for (std::int64_t at = 0; at < blocks.count; at += blocks.block) {
    const std::int64_t left = blocks.count - at;
    run_vectors<F>(x, y, result + at, left < blocks.block ? left : blocks.block);
    x += blocks.advance[0];
    y += blocks.advance[1];
  }
}
template <class F>
void run_division(const ArrayBlocks& blocks) {
  with_type(blocks.dtype, [&]<class A>(TypeTag<A>) MEMBOUND_INLINED {
    constexpr bool kIsBool = scalar::kSameType<A, bool>;
    // Vectors of 16 bytes gain nothing.
    if constexpr (!kIsBool && !scalar::Number<A>::kFloating && kVectorBytes > 16) {
      divide_blocks<F, A>(blocks);
    } else if constexpr (scalar::Number<A>::kFloating && kFusesProducts) {
      run_numbers<F, A>(blocks);
    } else if constexpr (!kIsBool) {
      BlockLoop<F, A, 2>::run(blocks);
    }
  });
}

template <class F>
void run(const ArrayBlocks& blocks) {
  if (blocks.dtype == DType::kFloat32) return run_numbers<F, float>(blocks);
  if (kFusesProducts && blocks.dtype == DType::kFloat64) return run_numbers<F, double>(blocks);
  run_blocks<2>(blocks);
}

}  // namespace

void array_binary(const ArrayBlocks& blocks) {
  switch (blocks.op) {
    case ElementwiseOp::kAtan2: return run<VectorAtan2>(blocks);
    case ElementwiseOp::kPow: return run<VectorPow>(blocks);
    case ElementwiseOp::kFloorDivide: return run_division<FloorDivision>(blocks);
    case ElementwiseOp::kRemainder: return run_division<Rest>(blocks);
    default: return run_blocks<2>(blocks);
  }
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
