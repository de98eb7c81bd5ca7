// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/rms_norm_backward.hpp"

#include "cpu/kernels/rms_norm_backward_kernel.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

template <class S>
void run_added(const RmsNormBackwardRows& rows) {
  rows.dsum != nullptr ? Kernel<S, true>{rows}.run() : Kernel<S, false>{rows}.run();
}

template <class T, bool kRoundFirst>
void run_rounded(const RmsNormBackwardRows& rows) {
  if (rows.dx == nullptr) return Kernel<Sums<T, false, true, kRoundFirst>, false>{rows}.run();
  run_added<Sums<T, true, true, kRoundFirst>>(rows);
}

template <class T>
void run_wanted(const RmsNormBackwardRows& rows) {
  if (rows.weight_sum == nullptr) return run_added<Sums<T, true, false, false>>(rows);
  // Rounding to x's dtype first changes nothing where sums have that dtype.
  if constexpr (sizeof(T) == 2) {
    if (rows.round_before_weight) return run_rounded<T, true>(rows);
  }
  run_rounded<T, false>(rows);
}

// Columns read at once, beyond the last one too: a multiple of every kernel's step.
constexpr std::int64_t kColumns = 64;

template <class A>
void join_block(const RmsNormBackwardBlock& block) {
  const auto* sums = static_cast<const A*>(block.sums);
  const std::int64_t count = (block.cols + kColumns - 1) / kColumns * kColumns;
  if (block.first) {
    for (std::int64_t i = 0; i < count; ++i) block.total[i] = sums[i];
  } else {
    for (std::int64_t i = 0; i < count; ++i) block.total[i] += sums[i];
  }
}

// Converts kColumns contiguous numbers.
MEMBOUND_ALWAYS_INLINE void narrow(const double* from, double* to) {
  for (std::int64_t i = 0; i < kColumns; ++i) to[i] = from[i];
}
MEMBOUND_ALWAYS_INLINE void narrow(const double* from, float* to) {
  for (std::int64_t i = 0; i < kColumns; ++i) to[i] = static_cast<float>(from[i]);
}
template <class W>
MEMBOUND_ALWAYS_INLINE void narrow(const double* from, W* to) {
  using Row = Lanes<W>;
  using V = typename Row::V;
  float single[kColumns];
  narrow(from, single);
  for (std::int64_t i = 0; i < kColumns; ++i) single[i] = plain_nan(single[i]);
  for (std::int64_t i = 0; i < kColumns; i += Row::kStep) {
    Pair<V> value{load<V>(single + i), load<V>(single + i + Row::kStep / 2)};
    if constexpr (Row::kEvenOdd) value = deinterleave(value);
    Row::write(to + i, value);
  }
}

// Reorders sums from the even/odd steps of the bfloat16 kernel into sequence.
MEMBOUND_ALWAYS_INLINE void bring_into_sequence(double* sums) {
  constexpr std::int64_t kHalf = Lanes<BFloat16>::kStep / 2;
  double order[kColumns];
  for (std::int64_t step = 0; step < kColumns; step += 2 * kHalf) {
    for (std::int64_t i = 0; i < kHalf; ++i) {
      order[step + 2 * i] = sums[step + i];
      order[step + 2 * i + 1] = sums[step + kHalf + i];
    }
  }
  __builtin_memcpy(sums, order, sizeof(order));
}

template <class W>
void write_weight(const RmsNormBackwardWeight& weight) {
  static_assert(kColumns % Lanes<BFloat16>::kStep == 0 && kPreparedPadding >= kColumns);
  const std::int64_t total_size = weight.cols + kPreparedPadding;
  for (std::int64_t first = 0; first < weight.cols; first += kColumns) {
    const std::int64_t count = weight.cols - first < kColumns ? weight.cols - first : kColumns;
    double sums[kColumns] = {};
    for (std::int64_t total = 0; total < weight.count; ++total) {
      const double* from = weight.totals + total * total_size + first;
      for (std::int64_t i = 0; i < kColumns; ++i) sums[i] += from[i];
    }
    if (weight.x_dtype == DType::kBFloat16) bring_into_sequence(sums);
    W* to = static_cast<W*>(weight.gradient) + first * weight.stride;
    if (weight.accumulate) {
      for (std::int64_t i = 0; i < count; ++i) sums[i] += widen(to[i * weight.stride]);
    }
    W results[kColumns];
    narrow(sums, results);
    if (weight.stride == 1) {
      __builtin_memcpy(to, results, count * sizeof(W));
    } else {
      for (std::int64_t i = 0; i < count; ++i) to[i * weight.stride] = results[i];
    }
  }
}

}  // namespace

void rms_norm_backward(const RmsNormBackwardRows& rows) {
  switch (rows.dtype) {
    case DType::kFloat16: return run_wanted<Float16>(rows);
    case DType::kBFloat16: return run_wanted<BFloat16>(rows);
    case DType::kFloat32: return run_wanted<float>(rows);
    default: return run_wanted<double>(rows);
  }
}

void rms_norm_backward_block(const RmsNormBackwardBlock& block) {
  block.dtype == DType::kFloat64 ? join_block<double>(block) : join_block<float>(block);
}

void rms_norm_backward_weight(const RmsNormBackwardWeight& weight) {
  switch (weight.dtype) {
    case DType::kFloat16: return write_weight<Float16>(weight);
    case DType::kBFloat16: return write_weight<BFloat16>(weight);
    case DType::kFloat32: return write_weight<float>(weight);
    default: return write_weight<double>(weight);
  }
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
