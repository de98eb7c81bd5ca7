// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/elementary_float64.hpp"
#include "cpu/kernels/array_division.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

// Float32 by way of float64. Where is_special, the scalar function is called instead.
template <class V>
MEMBOUND_ALWAYS_INLINE auto is_number_but_zero(V x) {
  return ((x > 0) | (x < 0)) & (x - x == 0);
}
struct VectorAtan2 : functors::Atan2 {
  static MEMBOUND_ALWAYS_INLINE F32 vector(F32 y, F32 x) {
    return by_doubles([](F64 a, F64 b) MEMBOUND_INLINED { return atan2_of(a, b); }, y, x);
  }
  static MEMBOUND_ALWAYS_INLINE F64 vector(F64 y, F64 x) { return float64::atan2_of(y, x); }
  static MEMBOUND_ALWAYS_INLINE auto is_special(F32 y, F32 x, F32) {
    return ~(is_number_but_zero(y) & is_number_but_zero(x));
  }
  static MEMBOUND_ALWAYS_INLINE auto is_special(F64 y, F64 x, F64) {
    const F64 one = absolute(y), other = absolute(x);
    const F64 least = one < other ? one : other, most = one < other ? other : one;
    return ~((least > 0x1p-1000) & (most < 0x1p1000));
  }
};
struct VectorPow : functors::Pow {
  static MEMBOUND_ALWAYS_INLINE F32 vector(F32 x, F32 y) {
    return by_doubles([](F64 a, F64 b) MEMBOUND_INLINED { return pow_of(a, b); }, x, y);
  }
  static MEMBOUND_ALWAYS_INLINE F64 vector(F64 x, F64 y) { return float64::pow_of(x, y); }
  static MEMBOUND_ALWAYS_INLINE auto is_special(F32 x, F32 y, F32) {
    return ~((x > 0) & (x - x == 0) & (y - y == 0));
  }
  static MEMBOUND_ALWAYS_INLINE auto is_special(F64 x, F64, F64 power) {
    return ~((x >= 0x1p-1022) & (x - x == 0) & (power > 0x1p-1000) & (power < 0x1p1000));
  }
};

// The result may be one of the inputs.
template <class F, class A>
MEMBOUND_ALWAYS_INLINE void run_vector(const A* x, const A* y, A* result) {
  typedef A V __attribute__((vector_size(kVectorBytes)));
  const V a = load<V>(x), b = load<V>(y), found = F::vector(a, b);
  const auto special = F::is_special(a, b, found);
  if (!is_any(special)) [[likely]]
    return store(result, found);
  A values[kVectorBytes / sizeof(A)];
  store(values, found);
  for (std::size_t i = 0; i < kVectorBytes / sizeof(A); ++i) {
    if (special[i] != 0) values[i] = F::apply(x[i], y[i]);
  }
  __builtin_memcpy(result, values, sizeof(values));
}
template <class F, class A>
void run_vectors(const A* x, const A* y, A* result, std::int64_t count) {
  constexpr std::int64_t kLanes = kVectorBytes / sizeof(A);
  std::int64_t at = 0;
  for (; at + kLanes <= count; at += kLanes) run_vector<F>(x + at, y + at, result + at);
  if (at == count) return;
  A values[3][kLanes];
  for (std::int64_t i = 0; i < kLanes; ++i) {
    values[0][i] = at + i < count ? x[at + i] : 1;
    values[1][i] = at + i < count ? y[at + i] : 1;
  }
  run_vector<F>(values[0], values[1], values[2]);
  for (std::int64_t i = 0; at + i < count; ++i) result[at + i] = values[2][i];
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
