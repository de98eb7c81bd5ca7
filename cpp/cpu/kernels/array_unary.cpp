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

// Functions with a vector form: apply(v) for the arithmetic type A. Where is_special(v), the scalar
// function is called instead.
template <class F, class A>
struct VectorForm {
  static constexpr bool kExists = false;
};
struct WithoutSpecial {
  static constexpr bool kExists = true;
  template <class V>
  static MEMBOUND_ALWAYS_INLINE auto is_special(V x) {
    return x < x;
  }
};
template <class A>
struct VectorForm<functors::Exp, A> : WithoutSpecial {
  template <class V>
  static MEMBOUND_ALWAYS_INLINE V apply(V x) {
    return exp_of<A>(x);
  }
};
template <class A>
struct VectorForm<functors::Tanh, A> : WithoutSpecial {
  // Below kLinear, tanh(x) is x to the last bit; and the quotient may be subnormal.
  static constexpr A kLinear = sizeof(A) == 4 ? A(0x1p-13) : A(0x1p-28);
  template <class V>
  static MEMBOUND_ALWAYS_INLINE V apply(V x) {
    return (x < 0 ? -x : x) < kLinear ? x : tanh_of<A>(x).value;
  }
};
template <>
struct VectorForm<functors::Log, double> {
  static constexpr bool kExists = true;
  static MEMBOUND_ALWAYS_INLINE F64 apply(F64 x) { return log_of(x); }
  // Zeros, subnormal and negative numbers and infinities.
  template <class V>
  static MEMBOUND_ALWAYS_INLINE auto is_special(V x) {
    return (x < 0x1p-1022) | (x > 0x1.fffffffffffffp1023);
  }
};

// A function of float32 by one of float64, half a vector at a time.
template <class Function, class... Floats>
MEMBOUND_ALWAYS_INLINE F32 by_doubles(Function function, Floats... x) {
  typedef float Half __attribute__((vector_size(kVectorBytes / 2)));
  const auto half = [&](auto... part) MEMBOUND_INLINED {
    return __builtin_convertvector(function(__builtin_convertvector(part, F64)...), Half);
  };
  return bit_copy<F32>(
      Pair<Half>{half(bit_copy<Pair<Half>>(x).first...), half(bit_copy<Pair<Half>>(x).second...)});
}

// Within 2^-35 before rounding, so that exact powers stay exact.
struct LogOfFloats {
  static constexpr bool kExists = true;
  static constexpr std::uint32_t kMantissa = (1u << 23) - 1, kOne = 0x3f800000;
  static constexpr std::uint32_t kRootOfHalf = 0x3f3504f3;
  // As Logarithm::kCurve.
  static constexpr double kCurve[] = {0x1.5555554bb2b2cp-1, 0x1.9999eb5d84f14p-2,
                                      0x1.245c438323e9ap-2, 0x1.ddced7078dd3ap-3};
  static MEMBOUND_ALWAYS_INLINE F32 scaled(F32 x, double scale) {
    // x = 2^n * (1 + f) with 1 + f in [sqrt(1 / 2), sqrt(2)]. In a float below 2^23, n is in the
    // lowest bits.
    const U32 shifted = bit_copy<U32>(x) + (kOne - kRootOfHalf);
    const F32 power =
        bit_copy<F32>((shifted >> 23) | bit_copy<std::uint32_t>(0x1p23f)) - (0x1p23f + 127);
    const F32 rest = bit_copy<F32>((shifted & kMantissa) + kRootOfHalf);
    return by_doubles(
        [&](F64 n, F64 m) MEMBOUND_INLINED {
          // log(m) = 2 * atanh(s).
          const F64 s = (m - 1) / (m + 1), square = s * s;
          const F64 curve = multiply_add(square, curve_from<0, LogOfFloats>(square), F64{} + 2.0);
          return multiply_add(s * scale, curve, n * (0x1.62e42fefa39efp-1 * scale));
        },
        power, rest);
  }
  // All but normal positive numbers.
  template <class V>
  static MEMBOUND_ALWAYS_INLINE auto is_special(V x) {
    return (x < 0x1p-126f) | (x > 0x1.fffffep127f) | (x != x);
  }
};
template <>
struct VectorForm<functors::Log, float> : LogOfFloats {
  static MEMBOUND_ALWAYS_INLINE F32 apply(F32 x) { return scaled(x, 1); }
};
template <>
struct VectorForm<functors::Log2, float> : LogOfFloats {
  static MEMBOUND_ALWAYS_INLINE F32 apply(F32 x) { return scaled(x, 0x1.71547652b82fep0); }
};
template <>
struct VectorForm<functors::Log10, float> : LogOfFloats {
  static MEMBOUND_ALWAYS_INLINE F32 apply(F32 x) { return scaled(x, 0x1.bcb7b1526e50ep-2); }
};

struct HalfTurn {
  // (sin(r) / r - 1) / r^2 in r^2 for |r| <= pi / 2, interpolated at Chebyshev nodes: sin(r) within
  // 2^-33 of itself.
  static constexpr double kCurve[] = {-0x1.555555545de10p-3, 0x1.11110fd836a07p-7,
                                      -0x1.a019043a2fae2p-13, 0x1.719648f903ff1p-19,
                                      -0x1.9da9693ee0fc4p-26};
};
// sin(angle + phase * pi) = (-1)^n sin(r) with angle + phase * pi = n * pi + r.
MEMBOUND_ALWAYS_INLINE F64 sine_of(F64 angle, double phase) {
  typedef std::uint64_t Bits __attribute__((vector_size(kVectorBytes)));
  constexpr double kWhole = 0x1.8p52;  // adding it rounds to an integer
  constexpr double kInversePi = 0x1.45f306dc9c883p-2;
  const F64 shifted = phase == 0 ? multiply_add(angle, F64{} + kInversePi, F64{} + kWhole)
                                 : multiply_add(angle, F64{} + kInversePi, F64{} + phase) + kWhole;
  const F64 turns = (shifted - kWhole) - phase;
  const F64 high_part = multiply_add(turns, F64{} - 2 * kRightAngleHighPart, angle);
  const F64 r = multiply_add(turns, F64{} - 2 * kRightAngleLowPart, high_part);
  const F64 square = r * r;
  const F64 sine = r * multiply_add(square, curve_from<0, HalfTurn>(square), F64{} + 1.0);
  return bit_copy<F64>(bit_copy<Bits>(sine) ^ (bit_copy<Bits>(shifted) << 63));
}
struct SineOfFloats {
  static constexpr bool kExists = true;
  // Large angles, whose turns no longer are exact, and what is no number.
  template <class V>
  static MEMBOUND_ALWAYS_INLINE auto is_special(V x) {
    return (x < -1e7f) | (x > 1e7f) | (x != x);
  }
};
template <>
struct VectorForm<functors::Sin, float> : SineOfFloats {
  static MEMBOUND_ALWAYS_INLINE F32 apply(F32 x) {
    return by_doubles([](F64 part) MEMBOUND_INLINED { return sine_of(part, 0); }, x);
  }
};
template <>
struct VectorForm<functors::Cos, float> : SineOfFloats {
  static MEMBOUND_ALWAYS_INLINE F32 apply(F32 x) {
    return by_doubles([](F64 part) MEMBOUND_INLINED { return sine_of(part, 0.5); }, x);
  }
};

template <class Mask>
MEMBOUND_ALWAYS_INLINE bool is_any(Mask mask) {
  std::uint64_t words[sizeof(Mask) / 8], all = 0;
  __builtin_memcpy(words, &mask, sizeof(Mask));
  for (std::uint64_t word : words) all |= word;
  return all != 0;
}

// Vectors of a part of the elements, then what is special among them. If the result is the input, a
// part is copied first, and so is the last one, which is padded with ones.
template <class F, class A>
void run_vectors(const A* x, A* y, std::int64_t count) {
  typedef A V __attribute__((vector_size(kVectorBytes)));
  using Form = VectorForm<F, A>;
  constexpr std::int64_t kLanes = kVectorBytes / sizeof(A), kPart = 16 * kLanes;
  A values[kPart], last[kLanes];
  for (std::int64_t at = 0; at < count; at += kPart) {
    const std::int64_t part = count - at < kPart ? count - at : kPart;
    const std::int64_t whole = part / kLanes * kLanes;
    const bool copies = x == y || part < kPart;
    const A* const from = copies ? values : x + at;
    decltype(Form::is_special(V{})) special{};
    const auto apply = [&](std::int64_t i) MEMBOUND_INLINED {
      const V value = load<V>(from + i);
      special |= Form::is_special(value);
      return Form::apply(value);
    };
    for (std::int64_t i = part; i < whole + kLanes && i < kPart; ++i) values[i] = 1;
    if (copies) __builtin_memcpy(values, x + at, part * sizeof(A));
    for (std::int64_t i = 0; i < whole; i += kLanes) store(y + at + i, apply(i));
    if (whole < part) store(last, apply(whole));
    for (std::int64_t i = whole; i < part; ++i) y[at + i] = last[i - whole];
    if (!is_any(special)) continue;
    for (std::int64_t i = 0; i < part; ++i) {
      if (Form::is_special(from[i]) != 0) y[at + i] = F::apply(from[i]);
    }
  }
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
      if (ran_vectors<functors::Sin>(blocks)) return;
      break;
    case ElementwiseOp::kCos:
      if (ran_vectors<functors::Cos>(blocks)) return;
      break;
    default: break;
  }
  run_blocks<1>(blocks);
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
