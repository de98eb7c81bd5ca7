// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/cross_entropy.hpp"

#include "cpu/kernels/cross_entropy_gradient.hpp"
#include "cpu/kernels/cross_entropy_logits.hpp"
#include "cpu/logarithm.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

// For each block of a row: find the largest logit, then sum the powers from the cache. The row is
// read again for the gradient. Block sums are combined in double.
template <class T>
class CrossEntropy {
  using A = typename Lanes<T>::A;
  using V = typename Lanes<T>::V;
  static constexpr std::int64_t kStep = Lanes<T>::kStep;
  static constexpr std::int64_t kMost = CrossEntropyRows::kMost, kTogether = sizeof(F64) / 8;
  static_assert(kMost % kTogether == 0);
  // Registers suffice for rows of three and four steps.
  static constexpr bool kFourStepsFit = kVectorBytes > 16 && sizeof(A) == 4;

 public:
  explicit CrossEntropy(CrossEntropyRows& rows)
      : rows_(rows),
        capped_(rows.numbers.softcap < static_cast<double>(kInfinity<double>)),
        smooths_(rows.numbers.label_smoothing != 0),
        cap_(static_cast<A>(rows.numbers.softcap)),
        inverse_cap_(static_cast<A>(1 / rows.numbers.softcap)) {}

  void run() {
    if (!rows_.lse_known) compute_losses();
    if (rows_.wants_predictions) compute_predictions();
    if (rows_.dlogits != nullptr) capped_ ? compute_gradients<true>() : compute_gradients<false>();
  }

 private:
  // The sums behind a row's loss: the largest logit, the sum of powers, and the weighted sum of
  // distances from the largest logit, with the sum of those weights.
  struct Sums {
    A top = -kInfinity<A>;
    double powers = 0, distances = 0, weight = 0;
    double entropy = 0;  // of powers times distances from the largest logit
  };

  const A* class_weights() const { return static_cast<const A*>(rows_.numbers.class_weights); }

  const T* logits_of(std::int64_t row) const {
    return row_of<T>(rows_.logits, rows_.logits_row_stride, row);
  }
  T* dlogits_of(std::int64_t row) const {
    return static_cast<T*>(rows_.dlogits) + row * rows_.dlogits_row_stride;
  }
  template <bool kCapped>
  MEMBOUND_ALWAYS_INLINE auto logits_in(const T* x) const {
    if constexpr (kCapped) {
      return CappedLogits<T>{x, cap_, inverse_cap_};
    } else {
      return PlainLogits<T>{x, A{1}};
    }
  }
  template <bool kCapped>
  MEMBOUND_ALWAYS_INLINE double logit_at(const T* row, std::int64_t col) const {
    const V x = read_partial(row + col * rows_.logits_col_stride, 1).first;
    return static_cast<double>((kCapped ? tanh_of<A>(x * inverse_cap_).value * cap_ : x)[0]);
  }

  // Takes the logarithms of several rows at once: one by one they are a third of a narrow row's
  // time.
  void compute_losses() {
    capped_ ? compute_sums<true>() : compute_sums<false>();
    for (std::int64_t row = rows_.rows; row % kTogether != 0; ++row) set(row, {}, 0);
    const double smoothing = rows_.numbers.label_smoothing, z_loss = rows_.numbers.z_loss;
    const double share = smoothing / static_cast<double>(rows_.cols);
    const double all = rows_.numbers.class_weights_sum;
    for (std::int64_t row = 0; row < rows_.rows; row += kTogether) {
      const F64 low = log_of(load<F64>(powers_ + row)), top = load<F64>(rows_.top + row);
      const F64 weight = load<F64>(rows_.weight + row), lse = top + low;
      const F64 z = z_loss * weight * lse * lse;
      F64 loss = (1 - smoothing) * weight * (low + (top - load<F64>(at_label_ + row)));
      if (smooths_) loss += share * (all * low + load<F64>(distances_ + row));
      store(rows_.low + row, low);
      store(rows_.z_loss + row, z_loss != 0 ? z : F64{});
      store(rows_.loss + row, z_loss != 0 ? loss + z : loss);
      if (!rows_.wants_entropy) continue;
      store(rows_.entropy + row, low + load<F64>(entropies_ + row) / load<F64>(powers_ + row));
    }
  }
  template <bool kCapped>
  void compute_sums() {
    if (class_weights() != nullptr || rows_.wants_entropy) return sum_blocks<kCapped>();
    if (rows_.cols <= kStep) return sum_narrow<1, kCapped>();
    if constexpr (!kCapped) {
      if (rows_.cols <= 2 * kStep) return sum_narrow<2, false>();
      if constexpr (kFourStepsFit) {
        if (rows_.cols <= 3 * kStep) return sum_narrow<3, false>();
        if (rows_.cols <= 4 * kStep) return sum_narrow<4, false>();
      }
    }
    sum_blocks<kCapped>();
  }
  // Ignored rows give zeros; rows whose label is no column give NaN.
  MEMBOUND_ALWAYS_INLINE void set(std::int64_t row, const Sums& sums, double at_label) {
    const bool counts = row < rows_.rows && rows_.label[row] >= 0;
    powers_[row] = counts ? sums.powers : 1;
    rows_.top[row] = counts ? static_cast<double>(sums.top) : absent(row);
    at_label_[row] = counts ? at_label : 0;
    distances_[row] = counts ? sums.distances : 0;
    entropies_[row] = counts ? sums.entropy : absent(row);
    if (!counts) rows_.weight[row] = 0;
  }
  MEMBOUND_ALWAYS_INLINE double absent(std::int64_t row) const {
    const bool outside = row < rows_.rows && rows_.label[row] == CrossEntropyRows::kOutside;
    return outside ? __builtin_nan("") : 0;
  }
  // Rows of few steps stay in registers. Several are interleaved: their dependency chains are too
  // long for out-of-order execution to reach the next row (92 -> 71 us).
  template <int kSteps, bool kCapped>
  [[gnu::noinline]] void sum_narrow() {
    constexpr int kGroup = kCapped ? 1 : kVectorBytes == 64 && kSteps <= 2 ? 4 : 2;
    constexpr std::int64_t kLast = (kSteps - 1) * kStep;
    const std::int64_t cols = rows_.cols, left = cols - kLast;
    for (std::int64_t first = 0; first < rows_.rows; first += kGroup) {
      Pair<V> l[kGroup][kSteps], powers[kGroup][kSteps];
      Sums sums[kGroup];
      double at_label[kGroup];
#pragma GCC unroll 4
      for (int i = 0; i < kGroup; ++i) {
        const std::int64_t row = first + i < rows_.rows ? first + i : rows_.rows - 1;
        const std::int64_t label = rows_.label[row];
        at_label[i] = logit_at<kCapped>(logits_of(row), label < 0 ? 0 : label);
        const T* const x =
            gather(logits_of(row), rows_.logits_col_stride, 0, cols, copy_ + i * kSteps * kStep);
        const auto logits = logits_in<kCapped>(x);
#pragma GCC unroll 3
        for (int step = 0; step + 1 < kSteps; ++step) l[i][step] = logits.whole(step * kStep);
        l[i][kSteps - 1] = left == kStep ? logits.whole(kLast) : logits.partial(kLast, left);
      }
#pragma GCC unroll 4
      for (int i = 0; i < kGroup; ++i) {
        V largest = at_least(l[i][0].first, l[i][0].second);
#pragma GCC unroll 3
        for (int step = 1; step < kSteps; ++step) {
          largest = at_least(largest, at_least(l[i][step].first, l[i][step].second));
        }
        const A highest = horizontal_largest<A>(largest);
        sums[i].top = highest > -kInfinity<A> ? highest : -kInfinity<A>;
      }
#pragma GCC unroll 4
      for (int i = 0; i < kGroup; ++i) {
        const A base = base_of(sums[i].top);
#pragma GCC unroll 4
        for (int step = 0; step < kSteps; ++step) {
          powers[i][step] = {power_of_logit<A>(l[i][step].first, base),
                             power_of_logit<A>(l[i][step].second, base)};
        }
      }
#pragma GCC unroll 4
      for (int i = 0; i < kGroup; ++i) {
        sums[i].powers = static_cast<double>(sum_of_steps<T>(powers[i])) * kUnshift;
        if (!smooths_) continue;
        const A base = base_of(sums[i].top);
#pragma GCC unroll 4
        for (int step = 0; step < kSteps; ++step) {
          l[i][step] = {base - l[i][step].first, base - l[i][step].second};
        }
        l[i][kSteps - 1] = first_of_step<T>(l[i][kSteps - 1], left, A{0});
        sums[i].distances = static_cast<double>(sum_of_steps<T>(l[i]));
      }
#pragma GCC unroll 4
      for (int i = 0; i < kGroup; ++i) set(first + i, sums[i], at_label[i]);
    }
  }
  template <bool kCapped>
  void sum_blocks() {
    for (std::int64_t row = 0; row < rows_.rows; ++row) {
      if (rows_.label[row] < 0) {
        set(row, {}, 0);
        continue;
      }
      const T* const from = logits_of(row);
      // Read first: the cache line it fetches is used soon after.
      const double at_label = logit_at<kCapped>(from, rows_.label[row]);
      Sums sums;
      each_block<T>(rows_.cols, [&](std::int64_t first, std::int64_t count) {
        const T* x = gather(from, rows_.logits_col_stride, first, count, copy_);
        const auto logits = logits_in<kCapped>(x);
        if constexpr (kCapped) {  // computes each tanh once
          each_step(logits, count);
          join(sums, BufferedLogits<T>{values_}, first, count);
        } else {
          join(sums, logits, first, count, x + count);
        }
      });
      set(row, sums, at_label);
    }
  }
  template <class Logits>
  MEMBOUND_ALWAYS_INLINE void each_step(const Logits& logits, std::int64_t count) {
    for (std::int64_t at = 0; at < count; at += kStep) {
      const std::int64_t left = count - at;
      store_pair(values_ + at, left < kStep ? logits.partial(at, left) : logits.whole(at));
    }
  }
  // The shift of the exponentials: the largest logit, or a finite number where all are -infinity.
  static MEMBOUND_ALWAYS_INLINE A base_of(A top) {
    constexpr A kLowest = sizeof(A) == 8 ? -0x1.fffffffffffffp1023 : -0x1.fffffep127f;
    return top > kLowest ? top : kLowest;
  }
  // Adds a block to the sums so far.
  template <class Logits>
  MEMBOUND_ALWAYS_INLINE void join(Sums& sums, const Logits& logits, std::int64_t first,
                                   std::int64_t count, const T* later = nullptr) const {
    const A highest = largest_logit<T>(logits, count);
    const A top = highest > sums.top ? highest : sums.top;
    if (smooths_) add_distances(sums, logits, first, count, top);
    if (rows_.wants_entropy) add_entropy(sums, logits, count, top);
    add(sums, top,
        sum_of_powers<T>(Powers<T, Logits>{logits, base_of(top), nullptr}, count,
                         rows_.prefetch_distance != 0 ? later : nullptr));
  }
  MEMBOUND_ALWAYS_INLINE void add(Sums& sums, A top, A powers) const {
    const double before =
        sums.powers == 0 ? 0 : sums.powers * __builtin_exp(static_cast<double>(sums.top - top));
    sums.powers = before + static_cast<double>(powers) * kUnshift;
    sums.top = top;
  }
  // To be called before `top` becomes that of the sums.
  template <class Logits>
  MEMBOUND_ALWAYS_INLINE void add_distances(Sums& sums, const Logits& logits, std::int64_t first,
                                            std::int64_t count, A top) const {
    const A* const weights = class_weights() == nullptr ? nullptr : class_weights() + first;
    const A base = base_of(top);
    if (sums.weight != 0) {
      sums.distances += sums.weight * (static_cast<double>(base) - base_of(sums.top));
    }
    sums.distances += static_cast<double>(
        sum_of_terms<T>(DistanceTerms<T, Logits>{logits, base, weights}, count));
    sums.weight += weights == nullptr
                       ? static_cast<double>(count)
                       : static_cast<double>(sum_of_class_weights<T>(weights, count));
  }
  // To be called before `top` becomes that of the sums.
  template <class Logits>
  MEMBOUND_ALWAYS_INLINE void add_entropy(Sums& sums, const Logits& logits, std::int64_t count,
                                          A top) const {
    if (sums.powers != 0) {
      const double higher = static_cast<double>(top) - static_cast<double>(sums.top);
      sums.entropy = (sums.entropy + sums.powers * higher) * __builtin_exp(-higher);
    }
    const EntropyTerms<T, Logits> terms{logits, base_of(top)};
    sums.entropy += static_cast<double>(sum_of_terms<T>(terms, count)) * kUnshift;
  }
  // The column of the largest logit, the first of several; NaN counts as larger than any, as in
  // NumPy.
  void compute_predictions() {
    for (std::int64_t row = 0; row < rows_.rows; ++row) {
      const bool counts = rows_.label[row] >= 0;
      rows_.prediction[row] = counts ? prediction(row) : -1;
    }
  }
  std::int64_t prediction(std::int64_t row) {
    const T* const from = logits_of(row);
    A top = -kInfinity<A>;
    std::int64_t block = 0;
    each_block<T>(rows_.cols, [&](std::int64_t first, std::int64_t count) {
      const T* x = gather(from, rows_.logits_col_stride, first, count, copy_);
      const A highest = largest_logit<T>(PlainLogits<T>{x, A{1}}, count);
      if (highest > top) top = highest, block = first;
    });
    const bool may_have_nan = rows_.low[row] != rows_.low[row];  // or an infinite logit
    for (std::int64_t col = 0; may_have_nan && col < rows_.cols; ++col) {
      const double logit = logit_at<false>(from, col);
      if (logit != logit) return col;
    }
    for (std::int64_t col = block; col < rows_.cols; ++col) {
      if (logit_at<false>(from, col) == static_cast<double>(top)) return col;
    }
    return 0;
  }
  template <bool kCapped>
  void compute_gradients() {
    compute_shares();
    const bool general = class_weights() != nullptr || rows_.has_dentropy;
    if (!general && rows_.logits_col_stride == 1 && rows_.dlogits_col_stride == 1) {
      if (rows_.cols <= kStep) return write_narrow<1, kCapped>();
      if (!kCapped && rows_.cols <= 2 * kStep) return write_narrow<2, false>();
    }
    each_gradient([&](const GradientNumbers<A>& numbers, std::int64_t row) {
      general ? write_blocks<kCapped, true>(numbers, row)
              : write_blocks<kCapped, false>(numbers, row);
    });
    if (rows_.bypass_cache) stream_fence();
  }
  // The share of the largest logit, 1 / sum of powers: several rows at once, as for the logarithms.
  void compute_shares() {
    for (std::int64_t row = 0; row < rows_.rows; row += kTogether) {
      for (std::int64_t i = row; i < row + kTogether; ++i) {
        low_[i] = i < rows_.rows ? static_cast<double>(static_cast<A>(rows_.low[i])) : 0;
      }
      const F64 low = load<F64>(low_ + row);
      const F64 share = power_of_logit<double>(-low, 0.0) * kUnshiftOfDouble;
      store(shares_ + row, low - low == 0 ? share : low - low);  // NaN if it is not finite
    }
  }
  template <class Write>
  MEMBOUND_ALWAYS_INLINE void each_gradient(Write write) const {
    for (std::int64_t row = 0; row < rows_.rows; ++row) {
      rows_.label[row] < 0 ? clear(row) : write(numbers_of(row), row);
    }
  }
  MEMBOUND_ALWAYS_INLINE GradientNumbers<A> numbers_of(std::int64_t row) const {
    const double smoothing = rows_.numbers.label_smoothing, dloss = rows_.dloss[row];
    const double cols = static_cast<double>(rows_.cols), weight = rows_.weight[row];
    const A top = static_cast<A>(rows_.top[row]);
    const double lse = static_cast<double>(static_cast<A>(static_cast<double>(top) + low_[row]));
    const double all =
        smooths_ ? (1 - smoothing) * weight + smoothing / cols * rows_.numbers.class_weights_sum
                 : weight;
    const double less = dloss * smoothing / cols;
    const double of_label = class_weights() == nullptr ? less : less * weight;
    const double dentropy = rows_.has_dentropy ? rows_.dentropy[row] : 0;
    const double excess = rows_.has_dentropy ? rows_.entropy[row] - low_[row] : 0;
    const double factor = dloss * (all + 2 * rows_.numbers.z_loss * weight * lse);
    return {static_cast<A>((factor - dentropy * excess) * shares_[row] * kUnshift),
            static_cast<A>(less),
            static_cast<A>(of_label + dloss * (1 - smoothing) * weight),
            top,
            cap_,
            inverse_cap_,
            static_cast<A>(dentropy * shares_[row] * kUnshift),
            class_weights()};
  }
  // Rows of one or two steps: the label's column is selected within the vector.
  template <int kSteps, bool kCapped>
  [[gnu::noinline]] void write_narrow() const {
    const auto indices = load_pair<V>(kIndices<T>.at);
    each_gradient([&](const GradientNumbers<A>& numbers, std::int64_t row) MEMBOUND_INLINED {
      const V other = V{} + numbers.less, at_label = V{} + numbers.at_label_less;
#pragma GCC unroll 2
      for (int step = 0; step < kSteps; ++step) {
        const std::int64_t at = step * kStep, left = rows_.cols - at;
        const V label = V{} + static_cast<A>(rows_.label[row] - at);
        const auto of = [&](V x, V column) MEMBOUND_INLINED {
          return gradient<T, kCapped>(numbers, x, column == label ? at_label : other);
        };
        const T* const from = logits_of(row) + at;
        T* const to = dlogits_of(row) + at;
        const bool whole = step + 1 < kSteps || left == kStep;
        const auto x = whole ? Lanes<T>::read(from) : read_partial(from, left);
        const Pair<V> dx{of(x.first, indices.first), of(x.second, indices.second)};
        whole ? Lanes<T>::write(to, dx) : write_partial(to, dx, left);
      }
    });
  }
  // Writes all columns as if none were the label's, then overwrites that one.
  template <bool kCapped, bool kGeneral>
  MEMBOUND_ALWAYS_INLINE void write_blocks(const GradientNumbers<A>& numbers, std::int64_t row) {
    const T* const from = logits_of(row);
    T* const out = dlogits_of(row);
    const std::int64_t label = rows_.label[row];
    // Read before it is overwritten: dlogits may be logits.
    const V at_label = read_partial(from + label * rows_.logits_col_stride, 1).first;
    each_block<T>(rows_.cols, [&](std::int64_t first, std::int64_t count) {
      const T* x = gather(from, rows_.logits_col_stride, first, count, copy_);
      T* const to = rows_.dlogits_col_stride == 1 ? out + first : out_copy_;
      const CacheHints hints{rows_.bypass_cache && to != out_copy_ && to_boundary(to) == 0,
                             rows_.prefetch_distance};
      write_gradients<T, kCapped, kGeneral>(numbers, x, first, count, to, hints);
      if (to == out_copy_) scatter(out, rows_.dlogits_col_stride, first, count, out_copy_);
    });
    const V dx = gradient<T, kCapped, kGeneral>(numbers, at_label, V{} + numbers.at_label_less);
    write_partial(out + label * rows_.dlogits_col_stride, Pair<V>{dx, dx}, 1);
  }
  void clear(std::int64_t row) const {
    T* const out = dlogits_of(row);
    if (rows_.dlogits_col_stride == 1 && rows_.label[row] == CrossEntropyRows::kIgnored) {
      __builtin_memset(static_cast<void*>(out), 0, rows_.cols * sizeof(T));
      return;
    }
    const V value = V{} + static_cast<A>(absent(row));
    for (std::int64_t col = 0; col < rows_.cols; ++col) {
      write_partial(out + col * rows_.dlogits_col_stride, Pair<V>{value, value}, 1);
    }
  }

  static constexpr double kUnshift = sizeof(A) == 8 ? 0x1p-128 : 0x1p-32;
  static constexpr double kUnshiftOfDouble = 0x1p-128;
  static_assert(kPowerShift<double> == 128 && kPowerShift<A> == (sizeof(A) == 8 ? 128 : 32));

  CrossEntropyRows& rows_;
  const bool capped_, smooths_;
  const A cap_, inverse_cap_;
  double powers_[kMost], at_label_[kMost], distances_[kMost], entropies_[kMost];  // of each row
  double low_[kMost], shares_[kMost];  // of each row: lse less the largest logit, as stored
  alignas(kVectorBytes) A values_[kBlock<T>];
  T copy_[kBlock<T>], out_copy_[kBlock<T>];
};

}  // namespace

void cross_entropy(CrossEntropyRows& rows) {
  switch (rows.dtype) {
    case DType::kFloat16: return CrossEntropy<Float16>(rows).run();
    case DType::kBFloat16: return CrossEntropy<BFloat16>(rows).run();
    case DType::kFloat32: return CrossEntropy<float>(rows).run();
    default: return CrossEntropy<double>(rows).run();
  }
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
