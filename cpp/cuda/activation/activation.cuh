// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Activation functions of a gate and their slopes. Both take their limits at infinite gates and
// propagate NaN.
#include "core/gelu.hpp"
#include "cuda/activation/logistic.cuh"
#include "cuda/softmax/soft_cap.cuh"
#include "membound/ops/gated_activation.hpp"

namespace membound::cuda {

// Value and slope of the activation, each with a scale that it is to be multiplied by. The scale is
// 1 unless the value may be subnormal while its product with another factor would be normal. A
// value that would itself round to 0 is 0.
template <class A>
struct Activated {
  A value, slope, scale, slope_scale;
  __device__ Activated(A value, A slope, A scale) : Activated(value, slope, scale, scale) {}
  __device__ Activated(A value, A slope, A scale, A slope_scale)
      : value(value), slope(slope), scale(scale), slope_scale(slope_scale) {}
};

// Policies for gates so far below 0 that the scales are not 1. DetectUnderflow only detects them,
// and the caller redoes the unit with HandleUnderflow if there were any: a branch per element would
// serialise them (bfloat16 16384 x 4096: 109 us).
struct HandleUnderflow {
  static constexpr bool handles = true;
  __device__ bool operator()(bool underflows) const { return underflows; }
};
struct DetectUnderflow {
  static constexpr bool handles = false;
  bool any = false;
  __device__ bool operator()(bool underflows) {
    any = any || underflows;
    return false;
  }
};

// False for float16, whose results are 0 well before that range.
template <class T>
inline constexpr bool kMayUnderflow = kDTypeOf<T> != DType::kFloat16;

// sqrt(exp(z + rest)) for z far below 0; 0 where exp(z) itself would count as 0.
template <class A>
__device__ __noinline__ A sqrt_of_exp(A z, A rest) {
  if (z <= kLowestArgument<A>) return 0;
  const A root = exp(z / 2);
  return fma(root, rest / 2, root);
}

// x * logistic(z). steep is x * dz/dx; x and steep are finite where z is far below 0.
template <class T, class UnderflowPolicy>
__device__ inline Activated<accumulate_t<T>> times_logistic(accumulate_t<T> x, accumulate_t<T> z,
                                                            accumulate_t<T> rest,
                                                            accumulate_t<T> steep,
                                                            UnderflowPolicy& underflow) {
  using A = accumulate_t<T>;
  if constexpr (kMayUnderflow<T>) {
    if (underflow(z < kUnderflowArgument<A>)) [[unlikely]] {
      const A root = sqrt_of_exp(z, rest);
      return {product(x, root), product(1 + steep, root), root};
    }
  }
  const Logistic<A> at = logistic<T>(z, rest);
  return {product(x, at.s), product(at.s, fma(steep, at.complement, A(1))), A(1)};
}

// alpha, and for float32 and float64 its rounding error.
template <class A>
struct Alpha {
  A value, rest;
  A lowest, highest;  // range of a gate: beyond it the logistic function is 0 or 1
  // For float32: -alpha * log2(e), its rounding error, and -kUnderflowArgument / alpha.
  A exponent, exponent_rest, underflow_limit;
};
// exp(-alpha * gate), compensated for rounding; the exponent takes a single product.
__device__ inline float power_of_alpha(float gate, const Alpha<float>& alpha) {
  const float exponent = product(gate, alpha.exponent);
  const float left = fmaf(gate, alpha.exponent_rest, fmaf(gate, alpha.exponent, -exponent));
  const float power = power_of_two(exponent);
  return fmaf(power, product(left, 0.6931471806f), power);
}

template <class T, class A>
__device__ inline A rest_of_argument(A gate, A z, const Alpha<A>& alpha) {
  if constexpr (sizeof(T) == 2) return A(0);
  return fma(gate, alpha.rest, fma(gate, alpha.value, -z));
}

template <Activation kKind, class T>
struct ActivationOf;

template <class T>
struct ActivationOf<Activation::kSilu, T> {
  using A = accumulate_t<T>;
  template <class UnderflowPolicy>
  static __device__ Activated<A> of(A gate, const Alpha<A>& alpha, UnderflowPolicy& underflow) {
    if constexpr (sizeof(T) == 4) {
      if (!underflow(fabsf(gate) > alpha.underflow_limit)) [[likely]] {
        const Logistic<A> at = logistic_of_exponential(power_of_alpha(gate, alpha));
        const A z = product(gate, alpha.value);
        return {product(gate, at.s), product(at.s, fmaf(z, at.complement, 1.0f)), 1.0f};
      }
    }
    const A lower = underflow.handles || !kMayUnderflow<T> ? not_below(gate, alpha.lowest) : gate;
    const A clamped = not_above(lower, alpha.highest), z = product(clamped, alpha.value);
    return times_logistic<T>(lower, z, rest_of_argument<T>(clamped, z, alpha), z, underflow);
  }
};

template <class T>
struct ActivationOf<Activation::kSigmoid, T> {
  using A = accumulate_t<T>;
  template <class UnderflowPolicy>
  static __device__ Activated<A> of(A gate, const Alpha<A>& alpha, UnderflowPolicy& underflow) {
    // Computed at -|z|, so that neither the function nor its complement cancels.
    const A below = not_below(gate > 0 ? -gate : gate, alpha.lowest);
    const A z = product(below, alpha.value), rest = rest_of_argument<T>(below, z, alpha);
    if constexpr (kMayUnderflow<T>) {
      if (underflow(z < kUnderflowArgument<A>)) [[unlikely]] {
        const A root = sqrt_of_exp(z, rest), slope = product(alpha.value, root);
        if (gate > 0) return {A(1), slope, A(1), root};
        return {root, slope, root};
      }
    }
    const Logistic<A> at = logistic<T>(z, rest);
    const A complement = 1 - at.s;
    return {gate > 0 ? complement : at.s, product(alpha.value, product(at.s, complement)), A(1)};
  }
};

// x * logistic(w(x)).
template <class T>
struct ActivationOf<Activation::kGeluTanh, T> {
  using A = accumulate_t<T>;
  using G = Gelu<A>;
  template <class UnderflowPolicy>
  static __device__ Activated<A> of(A gate, const Alpha<A>&, UnderflowPolicy& underflow) {
    const A lower = not_below(gate, -G::kTanhEdge), x = not_above(lower, G::kTanhEdge);
    const A square = product(x, x);
    const A steep = product(x, fma(square, 3 * G::kCubic, G::kLinear));
    if constexpr (sizeof(T) == 2) {
      const A w = product(x, fma(square, G::kCubic, G::kLinear));
      return times_logistic<T>(lower, not_above(w, kHighestArgument<A>), 0, steep, underflow);
    } else {
      // Far below 0, rounding w would cost w ulps of exp(w): w is computed in two parts.
      const A grown = product(square, G::kCubic), factor = G::kLinear + grown;
      const A added = factor - G::kLinear;
      A rest = (G::kLinear - (factor - added)) + (grown - added) + G::kLinearRest;
      rest += fma(square, G::kCubic, -grown);
      rest = fma(fma(x, x, -square), G::kCubic, rest);
      rest = fma(square, G::kCubicRest, rest);
      const A w = product(x, factor);
      rest = fma(x, rest, fma(x, factor, -w));
      return times_logistic<T>(lower, not_above(w, kHighestArgument<A>), rest, steep, underflow);
    }
  }
};

// value = max(x, -0) - |x| * Phi(-|x|); slope = Phi(-|x|) - |x| * density, or 1 minus that if x >
// 0.
template <class A>
__device__ inline Activated<A> gelu_of(A gate, A t, A below, A lower_slope) {
  return {fma(-t, below, not_below(gate, A(-0.0))), gate > 0 ? 1 - lower_slope : lower_slope, A(1)};
}

// gelu with Phi from core/gelu.hpp.
template <class T>
struct ActivationOf<Activation::kGelu, T> {
  using A = accumulate_t<T>;
  using G = Gelu<A>;
  template <class UnderflowPolicy>
  static __device__ Activated<A> of(A gate, const Alpha<A>&, UnderflowPolicy& underflow) {
    const A t = not_above(A(fabs(gate)), G::kEdge);
    const A half = t / 2, h = product(half, t), rest = fma(half, t, -h);
    const A d = inverse_of_sum(t + G::kCentre), u = fma(d, -2 * G::kCentre, A(1));
    const A tail = product(d, sum_from<0>(u));
    const A slope = fma(t, -G::kDensity, tail);  // divided by the exponential; negative
    if (underflow(gate < -G::kSubnormalEdge)) [[unlikely]] {
      const A root = gate < -G::kEdge ? A(0) : sqrt_of_exp(-h, -rest);
      return {product(product(-t, tail), root), product(slope, root), root};
    }
    const A power = power_of_minus(h, rest);
    return gelu_of(gate, t, product(power, tail), product(power, slope));
  }

 private:
  template <int k>
  static __device__ A sum_from(A u) {
    constexpr A kTerm = G::kTail[k];  // a constant, because device code cannot index the host array
    if constexpr (k + 1 < sizeof(G::kTail) / sizeof(kTerm)) {
      return fma(sum_from<k + 1>(u), u, kTerm);
    } else {
      return kTerm;
    }
  }
};

// For 16-bit storage Phi(-t) is 2^polynomial(t), within 2^-17 up to kFar; beyond, float32's code is
// used.
template <class T>
  requires(sizeof(T) == 2)
struct ActivationOf<Activation::kGelu, T> {
  static constexpr float kFar = 9, kMinusHalfLog2E = -0.7213475204f;
  template <class UnderflowPolicy>
  static __device__ Activated<float> of(float gate, const Alpha<float>& alpha,
                                        UnderflowPolicy& underflow) {
    if (underflow(gate < -kFar)) [[unlikely]]
      return ActivationOf<Activation::kGelu, float>::of(gate, alpha, underflow);
    const float t = not_above(fabsf(gate), kFar);
    const float below = power_of_two(exponent_from<0>(t));
    const float density = power_of_two(fmaf(product(t, t), kMinusHalfLog2E, kDensityExponent));
    return gelu_of(gate, t, below, fmaf(-t, density, below));
  }

 private:
  static constexpr float kDensityExponent = -1.3257480647f;  // log2(1 / sqrt(2 * pi))
  template <int k>
  static __device__ float exponent_from(float t) {
    constexpr float kTerms[] = {-0x1.ffff7ep-1f, -0x1.26b70ep+0f,  -0x1.d592c6p-2f, -0x1.b8622cp-5f,
                                0x1.104a88p-7f,  -0x1.ae8934p-11f, 0x1.b0bd58p-16f, 0x1.5cad74p-18f,
                                -0x1.adb83p-21f, 0x1.98b53ap-25f,  -0x1.2cadaap-30f};
    constexpr float kTerm = kTerms[k];
    if constexpr (k + 1 < static_cast<int>(sizeof(kTerms) / sizeof(kTerm))) {
      return fmaf(exponent_from<k + 1>(t), t, kTerm);
    } else {
      return kTerm;
    }
  }
};

template <class T>
struct ActivationOf<Activation::kRelu2, T> {
  using A = accumulate_t<T>;
  template <class UnderflowPolicy>
  static __device__ Activated<A> of(A gate, const Alpha<A>&, UnderflowPolicy&) {
    const A positive = not_below(gate, A(0));
    return {positive, A(2), positive};
  }
};

template <class T>
struct ActivationOf<Activation::kRelu, T> {
  using A = accumulate_t<T>;
  template <class UnderflowPolicy>
  static __device__ Activated<A> of(A gate, const Alpha<A>&, UnderflowPolicy&) {
    return {not_below(gate, A(0)), gate > 0 ? A(1) : A(0), A(1)};
  }
};

template <class T>
struct ActivationOf<Activation::kSitu, T> {
  using A = accumulate_t<T>;
  template <class UnderflowPolicy>
  static __device__ Activated<A> of(A gate, const Alpha<A>& alpha, UnderflowPolicy& underflow) {
    const SoftCapped<A> capped = soft_capped_for<T>(gate, alpha.value);
    // The float32 logistic even for 16-bit storage, because its complement keeps digits near 0.
    A z = not_above(gate, -kUnderflowArgument<A>);
    if constexpr (kMayUnderflow<T>) {
      if (underflow(z < kUnderflowArgument<A>)) [[unlikely]] {
        const A root = sqrt_of_exp(z, A(0));
        return {product(capped.value, root), product(capped.slope + capped.value, root), root};
      }
    } else {
      z = not_below(z, kUnderflowArgument<A>);
    }
    const Logistic<A> at = logistic<A>(z, 0);
    const A complement = gate > -kUnderflowArgument<A> ? A(0) : at.complement;
    return {product(capped.value, at.s), product(at.s, fma(capped.value, complement, capped.slope)),
            A(1)};
  }
};

// Out of line: it is rarely called, and the code for such gates is long.
template <Activation kKind, class T>
__device__ __noinline__ Activated<accumulate_t<T>> activated(accumulate_t<T> gate,
                                                             Alpha<accumulate_t<T>> alpha) {
  HandleUnderflow underflow;
  return ActivationOf<kKind, T>::of(gate, alpha, underflow);
}

}  // namespace membound::cuda
