// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/elementary_float64.hpp"
#include "cpu/kernels/array_blocks.hpp"
#include "cpu/tanh.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

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

#define MEMBOUND_VECTOR_FORM(Name_, A_, V_, exists_, result_, special_)    \
  template <>                                                              \
  struct VectorForm<functors::Name_, A_> {                                 \
    static constexpr bool kExists = exists_;                               \
    static MEMBOUND_ALWAYS_INLINE V_ apply(V_ x) { return result_; }       \
    static MEMBOUND_ALWAYS_INLINE auto is_special([[maybe_unused]] V_ x) { \
      [[maybe_unused]] const V_ size = absolute(x);                        \
      [[maybe_unused]] constexpr A_ kInfinity = __builtin_inff();          \
      return special_;                                                     \
    }                                                                      \
  };
#define MEMBOUND_FLOAT32(Name_, function_, special_) \
  MEMBOUND_VECTOR_FORM(Name_, float, F32, true, function_, special_)
#define MEMBOUND_FLOAT64(Name_, function_, special_) \
  MEMBOUND_VECTOR_FORM(Name_, double, F64, kFusesProducts, float64::function_, special_)
MEMBOUND_FLOAT32(Acos, acos_of(x), x < x)
MEMBOUND_FLOAT32(Acosh, acosh_of(x), (x < 1) | (x >= 0x1p60f))
MEMBOUND_FLOAT32(Asin, asin_of(x), x < x)
MEMBOUND_FLOAT32(Asinh, asinh_of(x), size >= 0x1p60f)
MEMBOUND_FLOAT32(Atan, atan_of(x), x < x)
MEMBOUND_FLOAT32(Atanh, atanh_of(x), size >= 1)
MEMBOUND_FLOAT32(Cosh, cosh_of(x), x < x)
MEMBOUND_FLOAT32(Expm1, expm1_of(x), x < x)
MEMBOUND_FLOAT32(Log, log_of<Natural>(x), ~((x >= 0x1p-126f) & (x < kInfinity)))
MEMBOUND_FLOAT32(Log10, log_of<Decimal>(x), ~((x >= 0x1p-126f) & (x < kInfinity)))
MEMBOUND_FLOAT32(Log1p, log1p_of(x), (x <= -1) | (x >= 0x1p125f))
MEMBOUND_FLOAT32(Log2, log_of<Binary>(x), ~((x >= 0x1p-126f) & (x < kInfinity)))
MEMBOUND_FLOAT32(Sinh, sinh_of(x), x < x)
// Turns of large angles are no longer exact.
MEMBOUND_FLOAT32(Cos, cos_of(x), ~(size <= 1e7f))
MEMBOUND_FLOAT32(Sin, sin_of(x), ~(size <= 1e7f))
MEMBOUND_FLOAT32(Tan, tan_of(x), ~(size <= kMostOfTangent))
MEMBOUND_FLOAT64(Acos, acos_of(x), x < x)
MEMBOUND_FLOAT64(Acosh, acosh_of(x), (x < 1) | (x >= 0x1p28) | (x != x))
MEMBOUND_FLOAT64(Asin, asin_of(x), x < x)
MEMBOUND_FLOAT64(Asinh, asinh_of(x), (size >= 0x1p28) | (x != x))
MEMBOUND_FLOAT64(Atan, atan_of(x), x < x)
MEMBOUND_FLOAT64(Atanh, atanh_of(x), (size >= 1) | (x != x))
MEMBOUND_FLOAT64(Cosh, cosh_of(x), (size >= 700) | (x != x))
MEMBOUND_FLOAT64(Expm1, expm1_of(x), x < x)
MEMBOUND_FLOAT64(Log10, log10_of(x), (x < 0x1p-1022) | (x == kInfinity) | (x != x))
MEMBOUND_FLOAT64(Log1p, log1p_of(x), (x <= -1) | (x == kInfinity) | (x != x))
MEMBOUND_FLOAT64(Log2, log2_of(x), (x < 0x1p-1022) | (x == kInfinity) | (x != x))
MEMBOUND_FLOAT64(Sinh, sinh_of(x), (size >= 700) | (x != x))
MEMBOUND_FLOAT64(Cos, sine_of(x, 1), (size >= 0x1p20) | (x != x))
MEMBOUND_FLOAT64(Sin, sine_of(x, 0), (size >= 0x1p20) | (x != x))
MEMBOUND_FLOAT64(Tan, tan_of(x), (size >= 0x1p20) | (x != x))
#undef MEMBOUND_FLOAT64
#undef MEMBOUND_FLOAT32
#undef MEMBOUND_VECTOR_FORM

// `x` is padded to whole vectors.
template <class F, class A>
[[gnu::noinline]] void apply_to_special(const A* x, A* y, std::int64_t count) {
  typedef A V __attribute__((vector_size(kVectorBytes)));
  constexpr std::int64_t kLanes = kVectorBytes / sizeof(A);
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const V value = load<V>(x + i);
    const auto special = VectorForm<F, A>::is_special(value);
    if (!is_any(special)) continue;
    [[maybe_unused]] V far{};
    constexpr bool kIsTan = scalar::kSameType<F, functors::Tan> && sizeof(A) == 4;
    if constexpr (kIsTan) far = far_tan_of(value);
    for (std::int64_t at = i; at < i + kLanes && at < count; ++at) {
      if (special[at - i] == 0) continue;
      y[at] = kIsTan && absolute(value)[at - i] <= 1e7f ? far[at - i] : F::apply(x[at]);
    }
  }
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
    if (is_any(special)) [[unlikely]]
      apply_to_special<F>(from, y + at, part);
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
#define MEMBOUND_CASE(Name_, operands_, types_, result_)         \
  case ElementwiseOp::k##Name_:                                  \
    if constexpr (VectorForm<functors::Name_, float>::kExists) { \
      if (ran_vectors<functors::Name_>(blocks)) return;          \
    }                                                            \
    break;
    MEMBOUND_ARRAY_FUNCTORS(MEMBOUND_CASE)
#undef MEMBOUND_CASE
    default: break;
  }
  run_blocks<1>(blocks);
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
