// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/gelu.hpp"
#include "cpu/exponential.hpp"
#include "cpu/kernels/gated_activation.hpp"
#include "cpu/tanh.hpp"

// Values and slopes of the activation functions, one gate per vector lane. Infinite gates give the
// limits of both; a NaN stays a NaN.
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

// The rounding error of a product: a * b - p, where p is a * b rounded.
template <class V>
MEMBOUND_ALWAYS_INLINE V product_error(V a, V b, V p) {
#if defined(__AVX2__) || defined(__aarch64__)
  return multiply_add(a, b, -p);
#else  // Dekker (1971): halves of the digits, whose products are exact
  typedef decltype(a < a) Bits;
  constexpr auto kUpper = sizeof(a[0]) == 4 ? ~0xfffLL : ~0x7ffffffLL;
  const auto upper = [](V value) MEMBOUND_INLINED {
    typedef decltype(value < value) Mask;
    return bit_copy<V>(bit_copy<Mask>(value) & static_cast<decltype(Mask{}[0] + 0)>(kUpper));
  };
  static_assert(sizeof(Bits) == sizeof(V));
  const V a_high = upper(a), b_high = upper(b), a_low = a - a_high, b_low = b - b_high;
  return ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low;
#endif
}

// Value and slope of the function. Both must still be multiplied by `scale`, which is 1 unless they
// are too small for a normal number while their product with up may not be. A value that would
// round to 0 by itself is 0. 16-bit results cannot tell the difference: for them only relu2 uses
// the scale (kScales).
template <class V>
struct Activated {
  V value, slope, scale;
};

// kPlain: alpha is 1, so the multiplication is left out.
template <ActivationKind kKind, class A, bool kExact, bool kPlain, class V>
struct ActivationOf;

template <ActivationKind kKind, bool kExact>
constexpr bool kScales = kExact || kKind == ActivationKind::kRelu2;

// `factor` undoes the 1 / kScale by which values come in. Lanes marked `subnormal` stay scaled up,
// and `scale` holds what they lack; lanes marked `zero` become 0.
template <class A, bool kExact, class V>
struct Scaling {
  V factor, scale;
  template <class Mask>
  MEMBOUND_ALWAYS_INLINE Scaling(Mask subnormal, Mask zero) {
    using E = Exponential<A>;
    factor = V{} + E::kScale;
    if constexpr (kExact) {
      factor = subnormal ? V{} + E::kScale / E::kSubnormalScale : factor;
      factor = zero ? V{} : factor;
      scale = subnormal ? V{} + E::kSubnormalScale : V{} + 1;
    }
  }
};

// exp(-z) and 1 + exp(-z) for z = alpha * gate, with the gate clamped to where it matters.
template <class V>
struct GateOdds {
  V gate, z, exp_minus, sum;
};
template <class A, bool kExact, bool kPlain, class V>
MEMBOUND_ALWAYS_INLINE GateOdds<V> odds_of_gate(V gate, const ActivationNumbers& numbers) {
  if constexpr (kPlain) {
    const Odds<V> odds = odds_of<A>(gate);
    return {odds.z, odds.z, odds.exp_minus, odds.sum};
  } else {
    const V lowest = V{} + static_cast<A>(numbers.lowest);
    const V g = at_most(at_least(gate, lowest), V{} + static_cast<A>(numbers.highest));
    const V alpha = V{} + static_cast<A>(numbers.alpha), z = g * alpha;
    const auto with = [g](Odds<V> odds) MEMBOUND_INLINED {
      return GateOdds<V>{g, odds.z, odds.exp_minus, odds.sum};
    };
    if constexpr (!kExact) return with(odds_of<A>(z));
    const A alpha_rest = static_cast<A>(numbers.alpha - static_cast<A>(numbers.alpha));
    return with(odds_of<A>(z, multiply_add(g, V{} + alpha_rest, product_error(g, alpha, z))));
  }
}

template <class A, bool kExact, bool kPlain, class V>
struct ActivationOf<ActivationKind::kSilu, A, kExact, kPlain, V> {
  template <bool kSlope>
  static MEMBOUND_ALWAYS_INLINE Activated<V> of(V gate, const ActivationNumbers& numbers) {
    using E = Exponential<A>;
    const auto odds = odds_of_gate<A, kExact, kPlain>(gate, numbers);
    const Scaling<A, kExact, V> scaling(odds.z < E::kSubnormalEdge, odds.z <= E::kLowest);
    const A highest = kPlain ? E::kHighest : static_cast<A>(numbers.highest);
    if constexpr (!kSlope) {
      const V within = odds.gate / odds.sum * scaling.factor;
      return {gate > highest ? gate : within, V{}, scaling.scale};
    } else {
      const V inverse = 1 / odds.sum, complement = odds.exp_minus * inverse;
      return {gate > highest ? gate : odds.gate * inverse * scaling.factor,
              inverse * multiply_add(odds.z, complement, V{} + 1) * scaling.factor, scaling.scale};
    }
  }
};

template <class A, bool kExact, bool kPlain, class V>
struct ActivationOf<ActivationKind::kSigmoid, A, kExact, kPlain, V> {
  template <bool kSlope>
  static MEMBOUND_ALWAYS_INLINE Activated<V> of(V gate, const ActivationNumbers& numbers) {
    using E = Exponential<A>;
    // The slope uses -|z|: 1 - sigmoid would lose digits for positive gates.
    V below = gate;
    if constexpr (kSlope) below = gate > 0 ? -gate : gate;
    const auto odds = odds_of_gate<A, kExact, kPlain>(below, numbers);
    const Scaling<A, kExact, V> scaling(odds.z < E::kSubnormalEdge, odds.z <= E::kLowest);
    const V inverse = 1 / odds.sum, s = inverse * scaling.factor;
    if constexpr (!kSlope) return {s, V{}, scaling.scale};
    const V complement = odds.exp_minus * inverse;
    const V of_open = kExact ? complement / scaling.scale : complement;
    const A alpha = kPlain ? 1 : static_cast<A>(numbers.alpha);
    return {gate > 0 ? of_open : s, s * complement * alpha, scaling.scale};
  }
};

// x * sigmoid(w(x)), w from core/gelu.hpp.
template <class A, bool kExact, bool kPlain, class V>
struct ActivationOf<ActivationKind::kGeluTanh, A, kExact, kPlain, V> {
  template <bool kSlope>
  static MEMBOUND_ALWAYS_INLINE Activated<V> of(V gate, const ActivationNumbers&) {
    using E = Exponential<A>;
    using G = Gelu<A>;
    const V x = at_most(at_least(gate, V{} - G::kTanhEdge), V{} + G::kTanhEdge);
    const V square = x * x;
    const Odds<V> odds = odds_of_argument(x, square);
    const Scaling<A, kExact, V> scaling(odds.z < E::kSubnormalEdge, odds.z <= E::kLowest);
    if constexpr (!kSlope) {
      const V within = x / odds.sum * scaling.factor;
      return {gate > G::kTanhEdge ? gate : within, V{}, scaling.scale};
    } else {
      const V inverse = 1 / odds.sum, complement = odds.exp_minus * inverse;
      // x * w'(x)
      const V steep = x * multiply_add(square, V{} + 3 * G::kCubic, V{} + G::kLinear);
      return {gate > G::kTanhEdge ? gate : x * inverse * scaling.factor,
              inverse * multiply_add(steep, complement, V{} + 1) * scaling.factor, scaling.scale};
    }
  }

 private:
  // At very negative x, one rounding error in w costs w ulps of exp(w): w is computed in two parts.
  static MEMBOUND_ALWAYS_INLINE Odds<V> odds_of_argument(V x, V square) {
    using G = Gelu<A>;
    const V linear = V{} + G::kLinear, cubic = V{} + G::kCubic;
    if constexpr (!kExact) {
      return odds_of<A>(x * multiply_add(square, cubic, linear));
    } else {
      const V grown = square * cubic, factor = linear + grown;
      const V added = factor - linear;
      V rest = (linear - (factor - added)) + (grown - added) + (V{} + G::kLinearRest);
      rest += product_error(square, cubic, grown);
      rest = multiply_add(product_error(x, x, square), cubic, rest);
      rest = multiply_add(square, V{} + G::kCubicRest, rest);
      const V w = x * factor;
      return odds_of<A>(w, multiply_add(x, rest, product_error(x, factor, w)));
    }
  }
};

template <class G, int k, class V>
MEMBOUND_ALWAYS_INLINE V tail_from(V u) {
  const V term = V{} + G::kTail[k];
  if constexpr (k + 1 < sizeof(G::kTail) / sizeof(G::kTail[0])) {
    return multiply_add(tail_from<G, k + 1>(u), u, term);
  } else {
    return term;
  }
}

template <class A, bool kExact>
struct GeluNumbers {
  using type = Gelu<A>;
};
template <>
struct GeluNumbers<float, false> {
  using type = GeluOf16Bits;
};

// x * Phi(x), with the lower tail Phi(-|x|) from core/gelu.hpp.
template <class A, bool kExact, bool kPlain, class V>
struct ActivationOf<ActivationKind::kGelu, A, kExact, kPlain, V> {
  template <bool kSlope>
  static MEMBOUND_ALWAYS_INLINE Activated<V> of(V gate, const ActivationNumbers&) {
    using E = Exponential<A>;
    using G = typename GeluNumbers<A, kExact>::type;
    const V x = at_least(gate, V{} - G::kEdge);
    const V t = at_most(gate > 0 ? gate : -gate, V{} + G::kEdge);
    const V half = t * static_cast<A>(0.5), h = half * t;
    const V power = exp_of_minus(half, t, h);  // times 1 / kScale
    const V d = 1 / (t + G::kCentre);
    const V tail = d * tail_from<G, 0>(multiply_add(d, V{} - 2 * G::kCentre, V{} + 1));
    const Scaling<A, kExact, V> scaling(gate < -G::kSubnormalEdge, gate < -G::kEdge);
    const V below = power * tail, above = 1 - below * E::kScale;
    const V value = gate > 0 ? gate * above : x * below * scaling.factor;
    if constexpr (!kSlope) return {value, V{}, scaling.scale};
    const V slope = power * multiply_add(t, V{} - G::kDensity, tail);
    return {value, gate > 0 ? 1 - slope * E::kScale : slope * scaling.factor, scaling.scale};
  }

 private:
  static MEMBOUND_ALWAYS_INLINE V exp_of_minus(V half, V t, V h) {
    constexpr int kShift = -Exponential<A>::kShift;
    if constexpr (kExact) {
      const auto [growth, power] = power_of_minus<A, kShift>(h, product_error(half, t, h));
      return multiply_add(growth, power, power);
    } else {
      const auto [growth, power] = power_of_minus<A, kShift>(h, NoRest{});
      return multiply_add(growth, power, power);
    }
  }
};

template <class A, bool kExact, bool kPlain, class V>
struct ActivationOf<ActivationKind::kRelu2, A, kExact, kPlain, V> {
  template <bool kSlope>
  static MEMBOUND_ALWAYS_INLINE Activated<V> of(V gate, const ActivationNumbers&) {
    const V positive = at_least(gate, V{});
    return {positive, V{} + 2, positive};
  }
};

template <class A, bool kExact, bool kPlain, class V>
struct ActivationOf<ActivationKind::kRelu, A, kExact, kPlain, V> {
  template <bool kSlope>
  static MEMBOUND_ALWAYS_INLINE Activated<V> of(V gate, const ActivationNumbers&) {
    return {at_least(gate, V{}), gate > 0 ? V{} + 1 : V{}, V{} + 1};
  }
};

// cap * tanh(x / cap) * sigmoid(x).
template <class A, bool kExact, bool kPlain, class V>
struct ActivationOf<ActivationKind::kSitu, A, kExact, kPlain, V> {
  template <bool kSlope>
  static MEMBOUND_ALWAYS_INLINE Activated<V> of(V gate, const ActivationNumbers& numbers) {
    using E = Exponential<A>;
    const A cap = static_cast<A>(numbers.alpha);
    const Tanh<V> tanh = tanh_of<A>(gate / cap);
    const V capped = tanh.value * cap;
    const auto odds = odds_of<A>(gate);
    const Scaling<A, kExact, V> scaling(odds.z < E::kSubnormalEdge, odds.z <= E::kLowest);
    const V inverse = 1 / odds.sum, s = inverse * scaling.factor;
    if constexpr (!kSlope) return {capped * s, V{}, scaling.scale};
    // s * (1 - s). The clamped z would hold it constant above kHighest: tanh gives it there.
    const V steep =
        gate > E::kHighest ? tanh_of<A>(gate / 2).slope / 4 : s * (odds.exp_minus * inverse);
    return {capped * s, multiply_add(capped, steep, tanh.slope * s), scaling.scale};
  }
};

// Calls body.operator()<kKind, kPlain>() for the kind. Code without alpha, limit and offset is up
// to 27 % faster in cache; relu and relu2 are bound by memory and have one version.
template <class Body>
MEMBOUND_ALWAYS_INLINE void dispatch_activation(const ActivationNumbers& numbers, Body body) {
  using enum ActivationKind;
  const auto with = [&]<ActivationKind kKind>() {
    numbers.plain ? body.template operator()<kKind, true>()
                  : body.template operator()<kKind, false>();
  };
  switch (numbers.kind) {
    case kSilu: return with.template operator()<kSilu>();
    case kGelu: return with.template operator()<kGelu>();
    case kGeluTanh: return with.template operator()<kGeluTanh>();
    case kSigmoid: return with.template operator()<kSigmoid>();
    case kRelu2: return body.template operator()<kRelu2, false>();
    case kRelu: return body.template operator()<kRelu, false>();
    case kSitu: return body.template operator()<kSitu, false>();
  }
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
