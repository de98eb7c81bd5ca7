// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/kernels/rms_norm_backward_rows.hpp"

// Rows of up to eight steps in one pass: a row stays in registers from read to write, as do the
// weight and the column sums across all rows; what does not fit spills to the stack. The bits are
// those of the two passes (LayerNorm of 4096 x 48 float32: 160 -> 82 us).
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

// The most steps with such a kernel; 0: none. float16 would take twice the steps, and float64 is
// rare.
template <class S>
constexpr int register_steps() {
  constexpr bool kCommon =
      sizeof(typename S::T) < 8 && sizeof(typename Lanes<typename S::T>::V) == kVectorBytes;
  return S::kDot && kCommon && kVectorBytes >= 32 ? 8 : 0;
}

template <class S, bool kAdd, int kSteps>
class RegisterRows {
  using T = typename S::T;
  using Row = Lanes<T>;
  using A = typename Row::A;
  using V = typename Row::V;
  using Values = Pair<V>[kSteps];
  static constexpr int kLaneSteps = kSteps < kPairs<T> ? kSteps : kPairs<T>;
  using LaneSums = Pair<V>[kLaneSteps];

 public:
  explicit RegisterRows(const RmsNormBackwardRows& rows)
      : rows_(rows), left_(rows.cols - (kSteps - 1) * Row::kStep) {}

  void run() const {
    auto* const weight_sum = static_cast<A*>(rows_.weight_sum);
    auto* const bias_sum = static_cast<A*>(rows_.bias_sum);
    Values weight, weight_sums, bias_sums;
    each_step([&](int step, std::int64_t at, std::int64_t count) MEMBOUND_INLINED {
      weight[step] = weight_of<T>(static_cast<const A*>(rows_.weight), at, count);
      if constexpr (S::kDweight) weight_sums[step] = load_pair<V>(weight_sum + at);
      if constexpr (kDbias) bias_sums[step] = load_pair<V>(bias_sum + at);
    });
    for (std::int64_t row = 0; row < rows_.rows; ++row) {
      one_row(row, weight, weight_sums, bias_sums);
    }
    each_step([&](int step, std::int64_t at, std::int64_t) MEMBOUND_INLINED {
      if constexpr (S::kDweight) store_pair(weight_sum + at, weight_sums[step]);
      if constexpr (kDbias) store_pair(bias_sum + at, bias_sums[step]);
    });
  }

 private:
  static constexpr bool kDbias = S::kDweight && S::kCentred;

  template <class Body>
  MEMBOUND_ALWAYS_INLINE void each_step(Body body) const {
#pragma GCC unroll 8
    for (int step = 0; step < kSteps; ++step) {
      body(step, step * Row::kStep, step + 1 < kSteps ? Row::kStep : left_);
    }
  }
  MEMBOUND_ALWAYS_INLINE A mean_of(const LaneSums& sums) const {
    return sum_of_steps<T>(sums) / static_cast<A>(rows_.cols);
  }

  MEMBOUND_ALWAYS_INLINE void one_row(std::int64_t row, const Values& weight, Values& weight_sums,
                                      Values& bias_sums) const {
    const T* const dy = row_of<T>(rows_.dy, rows_.dy_row_stride, row);
    const T* const x = row_of<T>(rows_.x, rows_.x_row_stride, row);
    const A rstd = plain_nan(*row_of<A>(rows_.rstd, rows_.rstd_row_stride, row));
    A mean{}, mean_g{};
    if constexpr (S::kCentred) mean = plain_nan(*row_of<A>(rows_.mean, rows_.mean_row_stride, row));
    Values g, h;
    LaneSums dots = {}, sums = {};
    each_step([&](int step, std::int64_t at, std::int64_t count) MEMBOUND_INLINED {
      const Pair<V> own = read_some(dy + at, count);
      h[step] = normalised<T, S::kCentred>(x + at, count, mean, rstd);
      g[step] = product(own, weight[step]);
      const int lane = step % kLaneSteps;
      dots[lane] = added(dots[lane], Factors<V>{g[step], h[step]}, true);
      if constexpr (S::kCentred) sums[lane] = added(sums[lane], Factors<V>{g[step], {}}, false);
      if constexpr (S::kDweight) {
        Pair<V> seen = h[step];
        if constexpr (S::kRoundFirst) seen = Row::round(seen);
        weight_sums[step] = added(weight_sums[step], Factors<V>{own, seen}, true);
      }
      if constexpr (kDbias) {
        bias_sums[step] = added(bias_sums[step], Factors<V>{own, {}}, false);
      }
    });
    const A mean_gh = mean_of(dots);
    if constexpr (S::kCentred) mean_g = mean_of(sums);
    const T* const dsum = row_of<T>(rows_.dsum, rows_.dsum_row_stride, row);
    T* const dx = const_cast<T*>(row_of<T>(rows_.dx, rows_.dx_row_stride, row));
    each_step([&](int step, std::int64_t at, std::int64_t count) MEMBOUND_INLINED {
      Pair<V> more;
      if constexpr (kAdd) more = read_some(dsum + at, count);
      const Pair<V> value =
          gradient_of<S::kCentred, kAdd>(g[step], h[step], rstd, mean_gh, mean_g, more);
      count == Row::kStep ? Row::write(dx + at, value) : write_partial(dx + at, value, count);
    });
  }

  const RmsNormBackwardRows& rows_;
  const std::int64_t left_;  // elements of the last step
};

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
