// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/sincos.hpp"
#include "cpu/kernels/array_blocks.hpp"
#include "cpu/logarithm.hpp"
#include "cpu/tanh.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

// exp(x) within 1 ulp: 2^n * exp(r), scaled in two steps so that n may leave the exponent's range.
template <class A, class V>
MEMBOUND_ALWAYS_INLINE V exp_of(V x) {
  using E = Exponential<A>;
  typedef decltype(x < x) Bits;
  constexpr A kLowest = sizeof(A) == 4 ? A(-104) : A(-746);
  constexpr A kHighest = sizeof(A) == 4 ? A(89) : A(710);
  const V limited = at_most(at_least(x, V{} + kLowest), V{} + kHighest);
  const V shifted = multiply_add(limited, V{} + E::kLog2E, V{} + E::kWhole);
  const V n = shifted - E::kWhole;
  const V high_part = multiply_add(n, V{} - E::kLn2High, limited);
  const V r = multiply_add(n, V{} - E::kLn2Low, high_part);
  const V growth = multiply_add(r * r, curve_from<0, E>(r), r);
  const Bits whole = bit_copy<Bits>(shifted) - bit_copy<Bits>(V{} + E::kWhole);
  const Bits half = whole >> 1;
  const V first = bit_copy<V>((half + E::kBias) << E::kFraction);
  const V second = bit_copy<V>((whole - half + E::kBias) << E::kFraction);
  return (growth + 1) * first * second;
}

// Functions with a vector form: F::vectors(v) for the arithmetic type A.
template <class F, class A>
struct VectorForm {
  static constexpr bool kExists = false;
};
template <class A>
struct VectorForm<functors::Exp, A> {
  static constexpr bool kExists = true;
  template <class V>
  static MEMBOUND_ALWAYS_INLINE V apply(V x) {
    return exp_of<A>(x);
  }
};
template <class A>
struct VectorForm<functors::Tanh, A> {
  static constexpr bool kExists = true;
  // Below kLinear, tanh(x) is x to the last bit; and the quotient may be subnormal.
  static constexpr A kLinear = sizeof(A) == 4 ? A(0x1p-13) : A(0x1p-28);
  template <class V>
  static MEMBOUND_ALWAYS_INLINE V apply(V x) {
    return (x < 0 ? -x : x) < kLinear ? x : tanh_of<A>(x).value;
  }
};
// Zeros, subnormal and negative numbers and infinities go through the scalar function.
template <>
struct VectorForm<functors::Log, double> {
  static constexpr bool kExists = true;
  static MEMBOUND_ALWAYS_INLINE F64 apply(F64 x) {
    F64 result = log_of(x);
    const auto special = (x < 0x1p-1022) | (x > 0x1.fffffffffffffp1023);
    for (int i = 0; i < kVectorBytes / 8; ++i) {
      if (special[i]) result[i] = functors::Log::apply(x[i]);
    }
    return result;
  }
};

// Logarithms of float32 in float64: exact powers stay exact after rounding.
struct LogOfFloats {
  static constexpr bool kExists = true;
  typedef float Half __attribute__((vector_size(kVectorBytes / 2)));

  static MEMBOUND_ALWAYS_INLINE Half half(Half x, double scale) {
    return __builtin_convertvector(log_of(__builtin_convertvector(x, F64)) * scale, Half);
  }
  template <class F>
  static MEMBOUND_ALWAYS_INLINE F32 scaled(F32 x, double scale) {
    const auto halves = bit_copy<Pair<Half>>(x);
    F32 result = bit_copy<F32>(Pair<Half>{half(halves.first, scale), half(halves.second, scale)});
    const auto special = (x <= 0) | (x > 0x1.fffffep127f) | (x != x);
    for (int i = 0; i < kVectorBytes / 4; ++i) {
      if (special[i]) result[i] = F::apply(x[i]);
    }
    return result;
  }
};
template <>
struct VectorForm<functors::Log, float> : LogOfFloats {
  static MEMBOUND_ALWAYS_INLINE F32 apply(F32 x) { return scaled<functors::Log>(x, 1); }
};
template <>
struct VectorForm<functors::Log2, float> : LogOfFloats {
  static MEMBOUND_ALWAYS_INLINE F32 apply(F32 x) {
    return scaled<functors::Log2>(x, 0x1.71547652b82fep0);
  }
};
template <>
struct VectorForm<functors::Log10, float> : LogOfFloats {
  static MEMBOUND_ALWAYS_INLINE F32 apply(F32 x) {
    return scaled<functors::Log10>(x, 0x1.bcb7b1526e50ep-2);
  }
};

// Sine or cosine of float32 in float64, in loops that compilers vectorise; large angles by libm.
template <class F>
void run_waves(const ArrayBlocks& blocks) {
  constexpr std::int64_t kPart = 64;
  constexpr float kLarge = 1e7f;
  const float* x = static_cast<const float*>(blocks.inputs[0]);
  float* y = static_cast<float*>(blocks.result);
  for (std::int64_t at = 0; at < blocks.count; at += kPart) {
    const std::int64_t from = blocks.advance[0] == 0 ? 0 : at;
    const std::int64_t count = blocks.count - at < kPart ? blocks.count - at : kPart;
    float angles[kPart] = {};
    double waves[kPart];
    __builtin_memcpy(angles, x + from, count * sizeof(float));
    for (std::int64_t i = 0; i < kPart; ++i) {
      double sine, cosine;
      sincos_of<double>(angles[i], sine, cosine);
      waves[i] = scalar::kSameType<F, functors::Sin> ? sine : cosine;
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const bool large = scalar::fabs(angles[i]) > kLarge;
      y[at + i] = large ? F::apply(angles[i]) : static_cast<float>(waves[i]);
    }
  }
}

// The last vector passes through a padded copy.
template <class F, class A>
void run_vectors(const A* x, A* y, std::int64_t count) {
  typedef A V __attribute__((vector_size(kVectorBytes)));
  constexpr std::int64_t kLanes = kVectorBytes / sizeof(A);
  std::int64_t at = 0;
  for (; at + kLanes <= count; at += kLanes)
    store(y + at, VectorForm<F, A>::apply(load<V>(x + at)));
  if (at == count) return;
  A padded[kLanes] = {};
  for (std::int64_t i = at; i < count; ++i) padded[i - at] = x[i];
  const V last = VectorForm<F, A>::apply(load<V>(padded));
  for (std::int64_t i = at; i < count; ++i) y[i] = last[i - at];
}

template <class F>
bool ran_vectors(const ArrayBlocks& blocks) {
  const auto run = [&]<class A>(A) MEMBOUND_INLINED {
    if constexpr (VectorForm<F, A>::kExists) {
      const bool repeats = blocks.advance[0] == 0;
      for (std::int64_t at = 0; at < blocks.count; at += repeats ? blocks.block : blocks.count) {
        const std::int64_t left = blocks.count - at;
        run_vectors<F>(static_cast<const A*>(blocks.inputs[0]), static_cast<A*>(blocks.result) + at,
                       repeats && blocks.block < left ? blocks.block : left);
      }
      return true;
    } else {
      return false;
    }
  };
  return blocks.dtype == DType::kFloat32 ? run(float{}) : run(double{});
}

}  // namespace

void array_unary(const ArrayBlocks& blocks) {
  const bool is_float = blocks.dtype == DType::kFloat32;
  switch (blocks.op) {
    case ElementwiseOp::kExp:
      if (ran_vectors<functors::Exp>(blocks)) return;
      break;
    case ElementwiseOp::kTanh:
      if (ran_vectors<functors::Tanh>(blocks)) return;
      break;
    case ElementwiseOp::kLog:
      if (ran_vectors<functors::Log>(blocks)) return;
      break;
    case ElementwiseOp::kLog2:
      if (ran_vectors<functors::Log2>(blocks)) return;
      break;
    case ElementwiseOp::kLog10:
      if (ran_vectors<functors::Log10>(blocks)) return;
      break;
    case ElementwiseOp::kSin:
      if (is_float) return run_waves<functors::Sin>(blocks);
      break;
    case ElementwiseOp::kCos:
      if (is_float) return run_waves<functors::Cos>(blocks);
      break;
    default: break;
  }
  run_blocks<1>(blocks);
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
