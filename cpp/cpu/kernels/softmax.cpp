// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/softmax.hpp"

#include "cpu/logits.hpp"
#include "cpu/thread_memory.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

// The numbers to add to logits: the mask's, or 0 and -infinity for true and false.
template <class A>
[[gnu::noinline]] void read_mask(DType dtype, const void* row, std::int64_t stride,
                                 std::int64_t first, std::int64_t count, A* to) {
  if (dtype == DType::kBool) {
    const auto* unmasked = static_cast<const unsigned char*>(row) + first * stride;
    for (std::int64_t i = 0; i < count; ++i) to[i] = unmasked[i * stride] ? A{0} : -kInfinity<A>;
    return;
  }
  widen_any(dtype, row, stride, first, count, to);
  // The payload of a NaN is dropped, so that it stays a NaN in bfloat16.
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = to[i] == to[i] ? to[i] : static_cast<A>(__builtin_nan(""));
  }
}

// scale * x + mask, from rows of one dtype.
template <class T>
struct MaskedLogits {
  using A = typename Lanes<T>::A;
  using V = typename Lanes<T>::V;
  const T* x;
  const T* mask;
  A scale;

  MEMBOUND_ALWAYS_INLINE Pair<V> of(Pair<V> value, Pair<V> added) const {
    return {multiply_add(value.first, V{} + scale, added.first),
            multiply_add(value.second, V{} + scale, added.second)};
  }
  MEMBOUND_ALWAYS_INLINE Pair<V> whole(std::int64_t col) const {
    return of(Lanes<T>::read(x + col), Lanes<T>::read(mask + col));
  }
  MEMBOUND_ALWAYS_INLINE Pair<V> partial(std::int64_t col, std::int64_t count) const {
    return first_of_step<T>(of(read_partial(x + col, count), read_partial(mask + col, count)),
                            count, -kInfinity<A>);
  }
};

// One row after the other. The powers of up to kBuffered columns are kept for the result; wider
// rows compute them again. Strided or masked rows go through a buffer, wide ones once per pass.
template <class T>
class SoftmaxRowsOf {
  using A = typename Lanes<T>::A;
  using V = typename Lanes<T>::V;
  static constexpr std::int64_t kStep = Lanes<T>::kStep;
  static constexpr std::int64_t kBuffered = 16 * kBlock<T>;

 public:
  explicit SoftmaxRowsOf(const SoftmaxRows& rows)
      : rows_(rows), scale_(static_cast<A>(rows.scale)) {}

  void run() {
    const bool plain = rows_.mask == nullptr && rows_.x_col_stride == 1;
    const bool one_column = rows_.cols == 1 && rows_.x_row_stride == 1 &&
                            rows_.out_row_stride == 1 && rows_.first_unmasked > 0 &&
                            rows_.unmasked_step >= 0;
    if (plain && one_column) return run_column();
    if (rows_.out_col_stride == 1) {
      if (rows_.cols <= kStep && run_steps<1>(plain)) return;
      if constexpr (sizeof(T) < 8) {
        const bool two = rows_.cols > kStep && rows_.cols <= 2 * kStep && !rows_.bypass_cache;
        if (two && run_steps<2>(plain)) return;
      }
    }
    for (std::int64_t row = 0; row < rows_.rows; ++row) {
      x_ = row_of<T>(rows_.x, rows_.x_row_stride, row);
      out_ = out_row(row);
      mask_row_ = row * rows_.mask_row_stride;
      const std::int64_t unmasked = unmasked_of(row);
      plain ? run_plain(unmasked) : run_buffered(unmasked);
      if (unmasked < rows_.cols) clear(unmasked);
    }
    if (rows_.bypass_cache) stream_fence();
  }

 private:
  // True if the mask is contiguous and has x's dtype.
  bool has_mask_of_x() const {
    return rows_.mask != nullptr && rows_.mask_dtype == rows_.dtype && rows_.mask_col_stride == 1;
  }
  T* out_row(std::int64_t row) const {
    return static_cast<T*>(rows_.out) + row * rows_.out_row_stride;
  }
  MEMBOUND_ALWAYS_INLINE std::int64_t unmasked_of(std::int64_t row) const {
    const std::int64_t wanted = rows_.first_unmasked + row * rows_.unmasked_step;
    return wanted < 0 ? 0 : wanted < rows_.cols ? wanted : rows_.cols;
  }

  // Rows of one element, contiguous with each other: the result is 1, or NaN for what is not
  // finite. Vectorised across rows (77 -> 1.8 us).
  void run_column() const {
    const PlainLogits<T> logits{static_cast<const T*>(rows_.x), scale_};
    T* const to = static_cast<T*>(rows_.out);
    for (std::int64_t row = 0; row < rows_.rows; row += kStep) {
      const std::int64_t left = rows_.rows - row;
      const Pair<V> l = left < kStep ? logits.partial(row, left) : logits.whole(row);
      const Pair<V> y{l.first - l.first + 1, l.second - l.second + 1};
      left < kStep ? write_partial(to + row, y, left) : Lanes<T>::write(to + row, y);
    }
  }

  // Rows of one or two steps stay in registers; false if the row does not qualify.
  template <int kSteps>
  bool run_steps(bool plain) const {
    if (plain) {
      each_in_steps<kSteps>([&](std::int64_t row) MEMBOUND_INLINED {
        return PlainLogits<T>{row_of<T>(rows_.x, rows_.x_row_stride, row), scale_};
      });
      return true;
    }
    if (rows_.x_col_stride != 1 || !has_mask_of_x()) return false;
    each_in_steps<kSteps>([&](std::int64_t row) MEMBOUND_INLINED {
      return MaskedLogits<T>{row_of<T>(rows_.x, rows_.x_row_stride, row),
                             row_of<T>(rows_.mask, rows_.mask_row_stride, row), scale_};
    });
    return true;
  }
  template <int kSteps, class LogitsOf>
  MEMBOUND_ALWAYS_INLINE void each_in_steps(LogitsOf logits_of) const {
    for (std::int64_t row = 0; row < rows_.rows; ++row) {
      const auto logits = logits_of(row);
      const std::int64_t unmasked = unmasked_of(row);
      Pair<V> l[kSteps];
#pragma GCC unroll 2
      for (int step = 0; step < kSteps; ++step) {
        const std::int64_t left = unmasked - step * kStep;
        l[step] = left >= kStep ? logits.whole(step * kStep)
                                : logits.partial(step * kStep, left < 0 ? 0 : left);
      }
      V highest = at_least(l[0].first, l[0].second);
      if constexpr (kSteps > 1) highest = at_least(highest, at_least(l[1].first, l[1].second));
      const A top = horizontal_largest<A>(highest);
#pragma GCC unroll 2
      for (int step = 0; step < kSteps; ++step) {
        l[step] = {power_of_logit<A>(l[step].first, top), power_of_logit<A>(l[step].second, top)};
      }
      const A factor = 1 / sum_of_steps<T>(l);
#pragma GCC unroll 2
      for (int step = 0; step < kSteps; ++step) {
        const std::int64_t at = step * kStep, left = rows_.cols - at, some = unmasked - at;
        Pair<V> y{l[step].first * factor, l[step].second * factor};
        if (unmasked < rows_.cols) y = first_of_step<T>(y, some < 0 ? 0 : some, A{0});
        left >= kStep ? Lanes<T>::write(out_row(row) + at, y)
                      : write_partial(out_row(row) + at, y, left);
      }
    }
  }

  void run_plain(std::int64_t unmasked) {
    const auto from = [&](std::int64_t first) { return PlainLogits<T>{x_ + first, scale_}; };
    const A top = largest_logit<T>(from(0), unmasked);
    BlockSum<A> sum;
    each_block<T>(unmasked, [&](std::int64_t first, std::int64_t count) {
      A* const stored = first < kBuffered ? values_ + first : nullptr;
      const T* const next_row = rows_.prefetch_ahead ? x_ + rows_.x_row_stride + first : nullptr;
      sum.add(
          sum_of_powers<T>(Powers<T, PlainLogits<T>>{from(first), top, stored}, count, next_row));
    });
    const A factor = 1 / sum.value();
    each_block<T>(unmasked, [&](std::int64_t first, std::int64_t count) {
      first < kBuffered ? write(first, count, values_ + first, factor)
                        : write_again(from(first), first, count, top, factor);
    });
  }

  void run_buffered(std::int64_t unmasked) {
    const bool fits = unmasked <= kBuffered;
    const auto buffer_at = [&](std::int64_t first) { return values_ + (fits ? first : 0); };
    const auto powers = [&](std::int64_t first, A top) {
      return Powers<T, BufferedLogits<T>>{{buffer_at(first)}, top, buffer_at(first)};
    };
    A top = -kInfinity<A>;
    each_block<T>(unmasked, [&](std::int64_t first, std::int64_t count) {
      read(first, count, buffer_at(first));
      const A found = largest_logit<T>(BufferedLogits<T>{buffer_at(first)}, count);
      top = found > top ? found : top;
    });
    BlockSum<A> sum;
    each_block<T>(unmasked, [&](std::int64_t first, std::int64_t count) {
      if (!fits) read(first, count, buffer_at(first));
      sum.add(sum_of_powers<T>(powers(first, top), count));
    });
    const A factor = 1 / sum.value();
    each_block<T>(unmasked, [&](std::int64_t first, std::int64_t count) {
      if (!fits) {
        read(first, count, buffer_at(first));
        sum_of_powers<T>(powers(first, top), count);
      }
      write(first, count, buffer_at(first), factor);
    });
  }

  // The logits of a block, padded with -infinity to a whole step.
  [[gnu::noinline]] void read(std::int64_t first, std::int64_t count, A* to) {
    const T* from = gather(x_, rows_.x_col_stride, first, count, copy_);
    if (has_mask_of_x()) {
      const MaskedLogits<T> logits{from, static_cast<const T*>(rows_.mask) + mask_row_ + first,
                                   scale_};
      for (std::int64_t at = 0; at < count; at += kStep) {
        const std::int64_t left = count - at;
        store_pair(to + at, left < kStep ? logits.partial(at, left) : logits.whole(at));
      }
      return;
    }
    const bool drops = rows_.mask != nullptr && rows_.mask_dtype == DType::kBool;
    const auto* mask = static_cast<const char*>(rows_.mask) +
                       mask_row_ * static_cast<std::int64_t>(dtype_size(rows_.mask_dtype));
    A more[kWidened];
    const std::int64_t read = count < kWidened ? count : kWidened;
    for (std::int64_t at = 0; at < read; at += kStep) store_pair(more + at, Pair<V>{});
    for (std::int64_t at = 0; at < count; at += kStep) {
      const std::int64_t left = count - at;
      if (rows_.mask != nullptr && at % kWidened == 0) {
        read_mask(rows_.mask_dtype, mask, rows_.mask_col_stride, first + at,
                  left < kWidened ? left : kWidened, more);
      }
      const auto x = left < kStep ? read_partial(from + at, left) : Lanes<T>::read(from + at);
      Pair<V> l{x.first * scale_, x.second * scale_};
      if (rows_.mask != nullptr) {
        auto added = load_pair<V>(more + at % kWidened);
        if constexpr (Lanes<T>::kEvenOdd) added = deinterleave(added);
        l = {multiply_add(x.first, V{} + scale_, added.first),
             multiply_add(x.second, V{} + scale_, added.second)};
        if (drops) {  // whatever x is, NaN included
          l.first = added.first < 0 ? added.first : l.first;
          l.second = added.second < 0 ? added.second : l.second;
        }
      }
      store_pair(to + at, left < kStep ? first_of_step<T>(l, left, -kInfinity<A>) : l);
    }
  }

  // Writes value(col) for each step of a block.
  template <class Value>
  MEMBOUND_ALWAYS_INLINE void write_steps(std::int64_t first, std::int64_t count, Value value) {
    T* const to = rows_.out_col_stride == 1 ? out_ + first : copy_;
    std::int64_t at = 0;
    if (rows_.bypass_cache && to != copy_ && to_boundary(to) == 0) {
      for (; at + kStep <= count; at += kStep) write_step<true>(to + at, value(at, kStep));
    }
    for (; at + kStep <= count; at += kStep) Lanes<T>::write(to + at, value(at, kStep));
    if (at < count) write_partial(to + at, value(at, count - at), count - at);
    if (to == copy_) scatter(out_, rows_.out_col_stride, first, count, copy_);
  }
  [[gnu::noinline]] void write(std::int64_t first, std::int64_t count, const A* powers, A factor) {
    write_steps(first, count, [&](std::int64_t at, std::int64_t) MEMBOUND_INLINED {
      const auto y = load_pair<V>(powers + at);
      return Pair<V>{y.first * factor, y.second * factor};
    });
  }
  [[gnu::noinline]] void write_again(PlainLogits<T> logits, std::int64_t first, std::int64_t count,
                                     A top, A factor) {
    const Powers<T, PlainLogits<T>> powers{logits, top, nullptr};
    write_steps(first, count, [&](std::int64_t at, std::int64_t some) MEMBOUND_INLINED {
      const auto y = powers.of(some < kStep ? logits.partial(at, some) : logits.whole(at));
      return Pair<V>{y.first * factor, y.second * factor};
    });
  }
  void clear(std::int64_t first) const {
    if (rows_.out_col_stride == 1) {
      __builtin_memset(static_cast<void*>(out_ + first), 0, (rows_.cols - first) * sizeof(T));
      return;
    }
    for (std::int64_t col = first; col < rows_.cols; ++col) out_[col * rows_.out_col_stride] = T{};
  }

  const SoftmaxRows rows_;
  const A scale_;
  const T* x_;
  T* out_;
  std::int64_t mask_row_;
  A* const values_ = thread_array<A, kBuffered>();
  T copy_[kBlock<T>];
};

template <class T>
void run(const SoftmaxRows& rows) {
  SoftmaxRowsOf<T>(rows).run();
}

}  // namespace

void softmax(const SoftmaxRows& rows) {
  switch (rows.dtype) {
    case DType::kFloat16: return run<Float16>(rows);
    case DType::kBFloat16: return run<BFloat16>(rows);
    case DType::kFloat32: return run<float>(rows);
    default: return run<double>(rows);
  }
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
