// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/cross_entropy.hpp"

#include "cpu/logits.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

// tanh(u) and its slope, accurate where either is small: with e = exp(-2 |u|) = power + growth *
// power they are (1 - e) / (1 + e) and 4 e / (1 + e)^2, and 1 - power is exact.
template <class V>
struct Tanh {
  V value, slope;
};
template <class A, class V>
MEMBOUND_ALWAYS_INLINE Tanh<V> tanh_of(V u) {
  const V twice = at_most((u < 0 ? -u : u) * 2, V{} + Exponential<A>::kHighest);
  const auto [growth, power] = power_of_minus<A, 0>(twice, NoRest{});
  const V rest = growth * power, inverse = 1 / ((1 + power) + rest);
  const V value = ((1 - power) - rest) * inverse;
  return {u < 0 ? -value : value, 4 * (power + rest) * inverse * inverse};
}

// softcap * tanh(x / softcap), from a row itself.
template <class T>
struct CappedLogits {
  using A = typename Lanes<T>::A;
  using V = typename Lanes<T>::V;
  const T* x;
  A cap, inverse_cap;

  MEMBOUND_ALWAYS_INLINE Pair<V> of(Pair<V> value) const {
    return {tanh_of<A>(value.first * inverse_cap).value * cap,
            tanh_of<A>(value.second * inverse_cap).value * cap};
  }
  MEMBOUND_ALWAYS_INLINE Pair<V> whole(std::int64_t col) const {
    return of(Lanes<T>::read(x + col));
  }
  MEMBOUND_ALWAYS_INLINE Pair<V> partial(std::int64_t col, std::int64_t count) const {
    return first_of_step<T>(of(read_partial(x + col, count)), count, -kInfinity<A>);
  }
};

// The terms of the sum of logits.
template <class T, class Logits>
struct LogitTerms {
  static constexpr int kSums = 1, kProducts = 0;
  using A = typename Lanes<T>::A;
  using V = typename Lanes<T>::V;
  Logits logits;

  MEMBOUND_ALWAYS_INLINE void whole(std::int64_t col, Factors<V>* term) const {
    term->left = logits.whole(col);
  }
  MEMBOUND_ALWAYS_INLINE void partial(std::int64_t col, std::int64_t count,
                                      Factors<V>* term) const {
    term->left = first_of_step<T>(logits.partial(col, count), count, A{0});
  }
};
template <class T, class Logits>
[[gnu::noinline]] typename Lanes<T>::A sum_of_logits(const Logits& logits, std::int64_t count) {
  typename Lanes<T>::A sum;
  sums_of_block<T>(LogitTerms<T, Logits>{logits}, 0, count, &sum);
  return sum;
}

// What the gradient of a row is made with: of logit l it is (factor * 2^kPowerShift * exp(l - lse)
// - less) * slope.
template <class A>
struct GradientNumbers {
  A factor, less, lse, cap, inverse_cap;
};

// One row: its blocks are read for their largest logit and the sum of their powers, from the cache
// the second time, and the row again for the gradient. The sums of blocks meet in double.
template <class T>
class CrossEntropy {
  using A = typename Lanes<T>::A;
  using V = typename Lanes<T>::V;
  static constexpr std::int64_t kStep = Lanes<T>::kStep;

 public:
  explicit CrossEntropy(CrossEntropyRow& row)
      : row_(row),
        x_(static_cast<const T*>(row.logits)),
        capped_(row.numbers.softcap < static_cast<double>(kInfinity<double>)),
        cap_(static_cast<A>(row.numbers.softcap)),
        inverse_cap_(static_cast<A>(1 / row.numbers.softcap)) {}

  void run() {
    if (row_.label < 0) {
      row_.loss = row_.lse = 0;
      if (row_.dlogits != nullptr) clear();
      return;
    }
    const T at_label = x_[row_.label * row_.logits_col_stride];  // before it is written over
    if (!row_.lse_known) take_loss(read_partial(x_ + row_.label * row_.logits_col_stride, 1).first);
    if (row_.dlogits != nullptr) take_gradient(at_label);
  }

 private:
  PlainLogits<T> plain(const T* x) const { return {x, A{1}}; }
  CappedLogits<T> capped(const T* x) const { return {x, cap_, inverse_cap_}; }

  // at_label: its first element is the logit there.
  void take_loss(V at_label) {
    double logits = 0;
    each_block<T>(row_.cols, [&](std::int64_t first, std::int64_t count) {
      const T* x = gather(x_, row_.logits_col_stride, first, count, copy_);
      if (!capped_) return logits += join(plain(x), count, x + count), void();
      // The hyperbolic tangents once.
      each_step(capped(x), count);
      logits += join(HeldLogits<T>{values_}, count);
    });
    const double log_of_sum = __builtin_log(sum_), top = static_cast<double>(top_);
    const double smoothing = row_.numbers.label_smoothing, cols = static_cast<double>(row_.cols);
    const double lse = top + log_of_sum;
    double loss = (1 - smoothing) * (log_of_sum + (top - logit_of(at_label)));
    if (smoothing != 0) loss += smoothing * (log_of_sum + (top - logits / cols));
    if (row_.numbers.z_loss != 0) loss += row_.numbers.z_loss * lse * lse;
    row_.lse = lse;
    row_.loss = loss;
  }
  template <class Logits>
  MEMBOUND_ALWAYS_INLINE void each_step(const Logits& logits, std::int64_t count) {
    for (std::int64_t at = 0; at < count; at += kStep) {
      const std::int64_t left = count - at;
      store_pair(values_ + at, left < kStep ? logits.partial(at, left) : logits.whole(at));
    }
  }
  // A block's powers to the sum so far; returns the sum of its logits where that is wanted.
  template <class Logits>
  MEMBOUND_ALWAYS_INLINE double join(const Logits& logits, std::int64_t count,
                                     const T* later = nullptr) {
    if (count <= kStep) return join_steps<1>(logits, count);
    if (count <= 2 * kStep) return join_two_steps(logits, count);
    const A highest = largest_logit<T>(logits, count);
    const A top = highest > top_ ? highest : top_;
    const A base = top > -kInfinity<A> ? top : A{0};  // of logits that are all -infinity
    add(top, sum_of_powers<T>(Powers<T, Logits>{logits, base, nullptr}, count,
                              row_.ask_distance != 0 ? later : nullptr));
    return row_.numbers.label_smoothing != 0 ? static_cast<double>(sum_of_logits<T>(logits, count))
                                             : 0;
  }
  // What is one step or two, without calls (16384 x 10 float32: 1155 to 810 us).
  template <int kSteps, class Logits>
  MEMBOUND_ALWAYS_INLINE double join_steps(const Logits& logits, std::int64_t count) {
    constexpr std::int64_t kLast = (kSteps - 1) * kStep;
    const std::int64_t left = count - kLast;
    Pair<V> l[kSteps], powers[kSteps];
    if constexpr (kSteps > 1) l[0] = logits.whole(0);
    l[kSteps - 1] = left == kStep ? logits.whole(kLast) : logits.partial(kLast, left);
    V largest = at_least(l[0].first, l[0].second);
    if constexpr (kSteps > 1) largest = at_least(largest, at_least(l[1].first, l[1].second));
    const A highest = horizontal_largest<A>(largest);
    const A top = highest > top_ ? highest : top_;
    const A base = top > -kInfinity<A> ? top : A{0};
#pragma GCC unroll 2
    for (int step = 0; step < kSteps; ++step) {
      powers[step] = Powers<T, Logits>{logits, base, nullptr}.of(l[step]);
    }
    add(top, sum_of_steps<T>(powers));
    if (row_.numbers.label_smoothing == 0) return 0;
    l[kSteps - 1] = first_of_step<T>(l[kSteps - 1], left, A{0});
    return static_cast<double>(sum_of_steps<T>(l));
  }
  template <class Logits>
  [[gnu::noinline]] double join_two_steps(const Logits& logits, std::int64_t count) {
    return join_steps<2>(logits, count);
  }
  MEMBOUND_ALWAYS_INLINE void add(A top, A powers) {
    const double before = sum_ == 0 ? 0 : sum_ * __builtin_exp(static_cast<double>(top_ - top));
    sum_ = before + static_cast<double>(powers) * kUnshift;
    top_ = top;
  }
  double logit_of(V x) const {
    return static_cast<double>((capped_ ? tanh_of<A>(x * inverse_cap_).value * cap_ : x)[0]);
  }

  void take_gradient(T at_label) {
    const double smoothing = row_.numbers.label_smoothing;
    const A lse = static_cast<A>(row_.lse);
    const double along = 1 + 2 * row_.numbers.z_loss * static_cast<double>(lse);
    const double less = row_.dloss * smoothing / static_cast<double>(row_.cols);
    GradientNumbers<A> numbers{static_cast<A>(row_.dloss * along * kUnshift), static_cast<A>(less),
                               lse, cap_, inverse_cap_};
    const A at_label_less = static_cast<A>(less + row_.dloss * (1 - smoothing));
    T* const out = static_cast<T*>(row_.dlogits);
    if (row_.cols <= kStep && row_.logits_col_stride == 1 && row_.dlogits_col_stride == 1) {
      return capped_ ? write_step<true>(numbers, at_label_less)
                     : write_step<false>(numbers, at_label_less);
    }
    each_block<T>(row_.cols, [&](std::int64_t first, std::int64_t count) {
      const T* x = gather(x_, row_.logits_col_stride, first, count, copy_);
      T* const to = row_.dlogits_col_stride == 1 ? out + first : out_copy_;
      const Traffic traffic{row_.bypass_cache && to != out_copy_ && to_boundary(to) == 0,
                            row_.ask_distance};
      capped_ ? write<true>(numbers, x, count, to, traffic)
              : write<false>(numbers, x, count, to, traffic);
      if (to == out_copy_) scatter(out, row_.dlogits_col_stride, first, count, out_copy_);
    });
    numbers.less = at_label_less;
    T* const to = out + row_.label * row_.dlogits_col_stride;
    const T step[kStep] = {at_label};
    capped_ ? write<true>(numbers, step, 1, to, {}) : write<false>(numbers, step, 1, to, {});
    if (row_.bypass_cache) stream_fence();
  }
  template <bool kCapped>
  static MEMBOUND_ALWAYS_INLINE V gradient(const GradientNumbers<A>& numbers, V x) {
    return gradient<kCapped>(numbers, x, V{} + numbers.less);
  }
  template <bool kCapped>
  static MEMBOUND_ALWAYS_INLINE V gradient(const GradientNumbers<A>& numbers, V x, V less) {
    V slope = V{} + 1;
    if constexpr (kCapped) {
      const Tanh<V> found = tanh_of<A>(x * numbers.inverse_cap);
      x = found.value * numbers.cap;
      slope = found.slope;
    }
    const V power = power_of_logit<A>(x, numbers.lse);
    const V dl = multiply_add(power, V{} + numbers.factor, -less);
    return kCapped ? dl * slope : dl;
  }
  // A row of one step, its label's column among the others.
  template <bool kCapped>
  MEMBOUND_ALWAYS_INLINE void write_step(const GradientNumbers<A>& numbers, A at_label_less) const {
    const auto place = load_pair<V>(kPlaces<T>.at);
    const V label = V{} + static_cast<A>(row_.label), other = V{} + numbers.less;
    const V less = V{} + at_label_less;
    const std::int64_t count = row_.cols;
    T* const to = static_cast<T*>(row_.dlogits);
    const auto x = count == kStep ? Lanes<T>::read(x_) : read_partial(x_, count);
    const Pair<V> dx{gradient<kCapped>(numbers, x.first, place.first == label ? less : other),
                     gradient<kCapped>(numbers, x.second, place.second == label ? less : other)};
    count == kStep ? Lanes<T>::write(to, dx) : write_partial(to, dx, count);
  }
  template <bool kCapped>
  [[gnu::noinline]] static void write(const GradientNumbers<A>& given, const T* x,
                                      std::int64_t count, T* to, Traffic traffic) {
    const GradientNumbers<A> numbers = given;
    const auto of = [&](Pair<V> value) MEMBOUND_INLINED {
      return Pair<V>{gradient<kCapped>(numbers, value.first),
                     gradient<kCapped>(numbers, value.second)};
    };
    std::int64_t at = 0;
    for (; at + kStep <= count; at += kStep) {
      ask_ahead(x + at, kStep * sizeof(T), traffic.ask_distance);
      const Pair<V> dx = of(Lanes<T>::read(x + at));
      traffic.around_cache ? Lanes<T>::write_around_cache(to + at, dx)
                           : Lanes<T>::write(to + at, dx);
    }
    if (at < count) write_partial(to + at, of(read_partial(x + at, count - at)), count - at);
  }
  void clear() const {
    T* const out = static_cast<T*>(row_.dlogits);
    if (row_.dlogits_col_stride == 1) {
      __builtin_memset(static_cast<void*>(out), 0, row_.cols * sizeof(T));
      return;
    }
    for (std::int64_t col = 0; col < row_.cols; ++col) out[col * row_.dlogits_col_stride] = T{};
  }

  static constexpr double kUnshift = sizeof(A) == 8 ? 0x1p-128 : 0x1p-32;
  static_assert(kPowerShift<A> == (sizeof(A) == 8 ? 128 : 32));

  CrossEntropyRow& row_;
  const T* x_;
  bool capped_;
  A cap_, inverse_cap_;
  A top_ = -kInfinity<A>;
  double sum_ = 0;
  alignas(kVectorBytes) A values_[kBlock<T>];
  T copy_[kBlock<T>], out_copy_[kBlock<T>];
};

}  // namespace

void cross_entropy(CrossEntropyRow& row) {
  switch (row.dtype) {
    case DType::kFloat16: return CrossEntropy<Float16>(row).run();
    case DType::kBFloat16: return CrossEntropy<BFloat16>(row).run();
    case DType::kFloat32: return CrossEntropy<float>(row).run();
    default: return CrossEntropy<double>(row).run();
  }
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
