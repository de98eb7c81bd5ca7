// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/rms_norm_quant.hpp"

#include "cpu/reduce.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

// What a comparison of two vectors yields: signed integers of the same size.
template <class V>
using SignedOf = decltype(V{} < V{});

constexpr std::int32_t bits_of(float value) { return __builtin_bit_cast(std::int32_t, value); }

// Signed comparisons of magnitudes agree with unsigned ones, and are single instructions in SSE2.
constexpr std::int32_t kMagnitude = 0x7fffffff;
constexpr std::int32_t kInfinity = 0x7f800000;

// float32 to float8 codes in the low byte of each lane: rounded to nearest even, saturating at the
// limit.
template <int kMantissaBits, int kBias, int kLargest>
struct Float8 {
  static constexpr float kLimit = kLargest;

  template <class V>
  static MEMBOUND_ALWAYS_INLINE SignedOf<V> codes(V value) {
    using I = SignedOf<V>;
    constexpr int kDropped = 23 - kMantissaBits;
    constexpr std::int32_t kNormal = (128 - kBias) << 23;  // the smallest normal number
    // The spacing of floats at this number is that of subnormal codes: adding it rounds to them.
    constexpr std::int32_t kRounds = kNormal + (kDropped << 23);
    const I bits = bit_copy<I>(value);
    const I magnitude = bits & kMagnitude;
    const I largest = I{} + bits_of(kLimit);
    const I clamped = magnitude < largest ? magnitude : largest;
    const I odd = (clamped >> kDropped) & 1;
    const I normal =
        (clamped + odd + ((1 << (kDropped - 1)) - 1 - ((127 - kBias) << 23))) >> kDropped;
    const V rounds = bit_copy<V>(I{} + kRounds);
    const I subnormal = bit_copy<I>(bit_copy<V>(clamped) + rounds) - kRounds;
    const I code = clamped < kNormal ? subnormal : normal;
    return magnitude > kInfinity ? I{} + 0x7f : code | ((bits >> 24) & 0x80);
  }
};
using E4M3 = Float8<3, 7, 448>;
using E5M2 = Float8<2, 15, 57344>;

// The same for int8; NaN becomes 0.
struct Int8 {
  static constexpr float kLimit = 127;

  template <class V>
  static MEMBOUND_ALWAYS_INLINE SignedOf<V> codes(V value) {
    using I = SignedOf<V>;
    const V largest = V{} + kLimit;
    V clamped = value > largest ? largest : value;
    clamped = clamped < -largest ? -largest : clamped;
    constexpr float kRounds = 0x1.8p23f;  // floats here have a spacing of 1
    return bit_copy<I>(clamped + kRounds) & (value == value) & 0xff;
  }
};

// float64 to float32 with round-to-odd: lost digits leave a trace in the last bit, so that rounding
// again gives the result of a single rounding. Subnormals need no care: their code is 0.
MEMBOUND_ALWAYS_INLINE F32 narrow_to_odd(Pair<F64> value) {
  typedef float Half __attribute__((vector_size(kVectorBytes / 2)));
  using I = SignedOf<F64>;
  constexpr std::int64_t kLost = (std::int64_t{1} << 29) - 1;
  const auto narrow = [](F64 wide) MEMBOUND_INLINED {
    const I bits = bit_copy<I>(wide);
    const I trace = ((bits & kLost) != 0) & (kLost + 1);
    return __builtin_convertvector(bit_copy<F64>((bits & ~kLost) | trace), Half);
  };
  const Pair<Half> narrowed{narrow(value.first), narrow(value.second)};
  return bit_copy<F32>(narrowed);
}

// Vectors with the lanes of I in a half and a quarter of its size.
template <class I>
struct Narrow {
  typedef std::uint16_t Half __attribute__((vector_size(sizeof(I) / 2)));
  typedef std::uint8_t Quarter __attribute__((vector_size(sizeof(I) / 4)));
};

template <class I>
MEMBOUND_ALWAYS_INLINE typename Narrow<I>::Half to_half(I values) {
  return __builtin_convertvector(values, typename Narrow<I>::Half);
}
template <class I>
MEMBOUND_ALWAYS_INLINE typename Narrow<I>::Quarter to_quarter(I values) {
  using Quarter = typename Narrow<I>::Quarter;
  if constexpr (kVectorBytes == 64) {
    return __builtin_convertvector(values, Quarter);
  } else {  // GCC 12 would extract the lanes one by one in a single conversion
    return __builtin_convertvector(to_half(values), Quarter);
  }
}

// Stores the codes of one step in sequence.
template <class T, class Code>
MEMBOUND_ALWAYS_INLINE void store_codes(std::uint8_t* to, Pair<typename Lanes<T>::V> value) {
  if constexpr (sizeof(typename Lanes<T>::A) == 8) {
    store(to, to_quarter(Code::codes(narrow_to_odd(value))));
  } else if constexpr (Lanes<T>::kEvenOdd) {
    store(to, to_half(Code::codes(value.first) | (Code::codes(value.second) << 8)));
  } else {
    store(to, to_quarter(Code::codes(value.first)));
    store(to + Lanes<T>::kStep / 2, to_quarter(Code::codes(value.second)));
  }
}

// Writes the codes of y * factor, `stride` apart.
template <class T, class Code>
MEMBOUND_ALWAYS_INLINE void write_codes(const T* y, std::int64_t count, typename Lanes<T>::A factor,
                                        std::uint8_t* out, std::int64_t stride) {
  constexpr std::int64_t kStep = Lanes<T>::kStep;
  const auto scaled = [factor](Pair<typename Lanes<T>::V> value) MEMBOUND_INLINED {
    return Pair<typename Lanes<T>::V>{value.first * factor, value.second * factor};
  };
  std::int64_t col = 0;
  if (stride == 1) {
    for (; col + kStep <= count; col += kStep)
      store_codes<T, Code>(out + col, scaled(Lanes<T>::read(y + col)));
  }
  for (; col < count; col += kStep) {
    const std::int64_t some = count - col < kStep ? count - col : kStep;
    std::uint8_t codes[kStep];
    store_codes<T, Code>(codes, scaled(read_partial(y + col, some)));
    if (stride == 1) {
      copy_few_bytes(reinterpret_cast<char*>(codes), reinterpret_cast<char*>(out + col), some);
      return;
    }
#pragma GCC unroll 1
    for (std::int64_t i = 0; i < some; ++i) out[(col + i) * stride] = codes[i];
  }
}

MEMBOUND_ALWAYS_INLINE float widened(BFloat16 value) {
  return bit_copy<float>(static_cast<std::uint32_t>(value.bits) << 16);
}
MEMBOUND_ALWAYS_INLINE float widened(Float16 value) {
  U16 first = {value.bits};
  return load_halves<HalfRowF32>(&first).first[0];
}
MEMBOUND_ALWAYS_INLINE float widened(float value) { return value; }
MEMBOUND_ALWAYS_INLINE double widened(double value) { return value; }

template <int kBytes>
struct SignedOfSize;
template <>
struct SignedOfSize<2> {
  using type = std::int16_t;
};
template <>
struct SignedOfSize<4> {
  using type = std::int32_t;
};
template <>
struct SignedOfSize<8> {
  using type = std::int64_t;
};

// The largest magnitude, NaN if there is one: as integers, bits without the sign are ordered like
// magnitudes, with NaN above infinity. So nothing needs widening.
template <class T>
MEMBOUND_ALWAYS_INLINE typename Lanes<T>::A largest_magnitude(const T* y, std::int64_t count) {
  using Bits = typename SignedOfSize<sizeof(T)>::type;
  typedef Bits V __attribute__((vector_size(kVectorBytes)));
  constexpr std::int64_t kCount = kVectorBytes / sizeof(T);
  constexpr Bits kNoSign = static_cast<Bits>(~(std::uint64_t{1} << (8 * sizeof(T) - 1)));
  const auto larger = [](V found, V bits) MEMBOUND_INLINED {
    const V magnitude = bits & kNoSign;
    return magnitude > found ? magnitude : found;
  };
  V found[2] = {};
  std::int64_t i = 0;
  for (; i + 2 * kCount <= count; i += 2 * kCount) {
    found[0] = larger(found[0], load<V>(y + i));
    found[1] = larger(found[1], load<V>(y + i + kCount));
  }
  for (; i + kCount <= count; i += kCount) found[1] = larger(found[1], load<V>(y + i));
  if (i < count) {
    const std::int64_t bytes = (count - i) * static_cast<std::int64_t>(sizeof(T));
    found[0] = larger(found[0], load_bytes<V>(y + i, bytes));
  }
  return widened(bit_copy<T>(horizontal_largest<Bits>(larger(found[0], found[1]))));
}

// A NaN fails every comparison and is kept.
template <class A>
MEMBOUND_ALWAYS_INLINE float scale_for(A largest, float limit, float upper_bound) {
  constexpr float kSmallest = 0x1p-126f;
  float scale = static_cast<float>(largest / static_cast<A>(limit));
  // A float32 scale cannot follow a float64 row: its codes saturate.
  if (sizeof(A) == 8 && scale > __FLT_MAX__ && largest <= static_cast<A>(__DBL_MAX__))
    scale = __FLT_MAX__;
  scale = scale < kSmallest ? kSmallest : scale;
  return scale > upper_bound ? upper_bound : scale;
}

template <class T, class Code>
void quantise(const RmsNormQuantRows& rows) {
  using A = typename Lanes<T>::A;
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    const T* y = static_cast<const T*>(rows.y) + row * rows.y_row_stride;
    auto* out = static_cast<std::uint8_t*>(rows.out) + row * rows.out_row_stride;
    if (rows.static_scale != nullptr) {
      const A factor = 1 / static_cast<A>(*rows.static_scale);
      write_codes<T, Code>(y, rows.cols, factor, out, rows.out_col_stride);
      continue;
    }
    float* scales = static_cast<float*>(rows.scale) + row * rows.scale_row_stride;
    for (std::int64_t col = 0; col < rows.cols; col += rows.group_size) {
      const std::int64_t left = rows.cols - col;
      const std::int64_t count = left < rows.group_size ? left : rows.group_size;
      const float scale =
          scale_for(largest_magnitude(y + col, count), Code::kLimit, rows.scale_upper_bound);
      *scales = scale;
      scales += rows.scale_col_stride;
      write_codes<T, Code>(y + col, count, 1 / static_cast<A>(scale),
                           out + col * rows.out_col_stride, rows.out_col_stride);
    }
  }
}

template <class T>
void quantise_to(const RmsNormQuantRows& rows) {
  switch (rows.out_dtype) {
    case DType::kFloat8E4M3: return quantise<T, E4M3>(rows);
    case DType::kFloat8E5M2: return quantise<T, E5M2>(rows);
    default: return quantise<T, Int8>(rows);
  }
}

}  // namespace

void rms_norm_quant(const RmsNormQuantRows& rows) {
  switch (rows.dtype) {
    case DType::kFloat16: return quantise_to<Float16>(rows);
    case DType::kBFloat16: return quantise_to<BFloat16>(rows);
    case DType::kFloat32: return quantise_to<float>(rows);
    default: return quantise_to<double>(rows);
  }
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
