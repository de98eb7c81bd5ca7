// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// cos and sin of a token's pairs, arranged for the rotation, and the gradient of their angles.
#include "core/sincos.hpp"
#include "cpu/kernels/rope.hpp"
#include "cpu/weight.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

// Drops the payload of a NaN: rounding to bfloat16 relies on a lower half of zeros.
template <class A>
MEMBOUND_ALWAYS_INLINE A without_payload(A value) {
  return value == value ? value : static_cast<A>(__builtin_nan(""));
}

template <class A, class Table>
void read_table(const RopeAngleRun& run) {
  const auto* cos = static_cast<const Table*>(run.cos);
  const auto* sin = static_cast<const Table*>(run.sin);
  auto* cos_out = static_cast<A*>(run.cos_out);
  auto* sin_out = static_cast<A*>(run.sin_out);
  const A sign = run.inverse ? -1 : 1;
  const auto read = [&](std::int64_t j, std::int64_t cos_at, std::int64_t sin_at) MEMBOUND_INLINED {
    cos_out[j] = without_payload(static_cast<A>(widen(cos[cos_at])));
    sin_out[j] = without_payload(static_cast<A>(widen(sin[sin_at]))) * sign;
  };
  if (run.step == 1 && run.cos_col_stride == 1 && run.sin_col_stride == 1) {
    for (std::int64_t j = run.first; j < run.last; ++j) read(j, j, j);
    return;
  }
  for (std::int64_t j = run.first; j < run.last; j += run.step) {
    read(j, j * run.cos_col_stride, j * run.sin_col_stride);
  }
}

template <class A, class F>
void make_angles(const RopeAngleRun& run) {
  const auto* freqs = static_cast<const F*>(run.freqs);
  auto* cos_out = static_cast<A*>(run.cos_out);
  auto* sin_out = static_cast<A*>(run.sin_out);
  const A scaling = static_cast<A>(run.scaling);
  const A sin_scaling = run.inverse ? -scaling : scaling;
  const auto make = [&](std::int64_t j, double frequency) MEMBOUND_INLINED {
    A sine, cosine;
    sincos_of(run.position * frequency, sine, cosine);
    cos_out[j] = cosine * scaling;
    sin_out[j] = sine * sin_scaling;
  };
  if (run.step == 1 && run.freqs_stride == 1) {
    for (std::int64_t j = run.first; j < run.last; ++j) make(j, widen(freqs[j]));
    return;
  }
  for (std::int64_t j = run.first; j < run.last; j += run.step) {
    make(j, widen(freqs[j * run.freqs_stride]));
  }
}

template <class A>
void angles(const RopeAngleRun& run) {
  if (run.cos == nullptr) {
    switch (run.table_dtype) {
      case DType::kFloat16: return make_angles<A, Float16>(run);
      case DType::kBFloat16: return make_angles<A, BFloat16>(run);
      case DType::kFloat32: return make_angles<A, float>(run);
      default: return make_angles<A, double>(run);
    }
  }
  switch (run.table_dtype) {
    case DType::kFloat16: return read_table<A, Float16>(run);
    case DType::kBFloat16: return read_table<A, BFloat16>(run);
    case DType::kFloat32: return read_table<A, float>(run);
    default: return read_table<A, double>(run);
  }
}

// Writes every number twice, with the sign of its term in sin.
template <class A>
void arrange_duplicated(const RopeArrangement& arranged) {
  auto* cos_out = static_cast<A*>(arranged.cos_out);
  auto* sin_out = static_cast<A*>(arranged.sin_out);
  const auto* cos = static_cast<const A*>(arranged.cos[0]);
  const auto* sin = static_cast<const A*>(arranged.sin[0]);
  const auto* second_cos = static_cast<const A*>(arranged.cos[1]);
  const auto* second_sin = static_cast<const A*>(arranged.sin[1]);
  for (std::int64_t j = 0; j < arranged.pairs; ++j) {
    cos_out[2 * j] = cos[j];
    cos_out[2 * j + 1] = second_cos[j];
    sin_out[2 * j] = -sin[j];
    sin_out[2 * j + 1] = second_sin[j];
  }
}

// Puts the even elements of each step before the odd ones.
void arrange_even_odd(std::int64_t pairs, const float* from, float* to) {
  constexpr std::int64_t kStep = Lanes<BFloat16>::kStep;
  std::int64_t j = 0;
  for (; j + kStep <= pairs; j += kStep) {
    store_pair(to + j, deinterleave(load_pair<F32>(from + j)));
  }
  if (j == pairs) return;
  float padded[kStep] = {};
  __builtin_memcpy(padded, from + j, (pairs - j) * sizeof(float));
  store_pair(to + j, deinterleave(load_pair<F32>(padded)));
}

template <class T>
void add_gradient(const RopeAngleGradient& token) {
  const std::int64_t apart = token.interleaved ? 1 : token.rotary_dim / 2;
  const std::int64_t step = token.interleaved ? 2 : 1;
  const std::int64_t first = token.rotary_offset + step * token.first_pair;
  for (std::int64_t head = 0; head < token.heads; ++head) {
    const T* x = static_cast<const T*>(token.x) + head * token.x_head_stride;
    const T* dx = static_cast<const T*>(token.dx) + head * token.dx_head_stride;
    for (std::int64_t j = 0; j < token.pairs; ++j) {
      const std::int64_t one = first + step * j, other = one + apart;
      const double x1 = widen(x[one * token.x_dim_stride]);
      const double x2 = widen(x[other * token.x_dim_stride]);
      const double dx1 = widen(dx[one * token.dx_dim_stride]);
      const double dx2 = widen(dx[other * token.dx_dim_stride]);
      token.sums[j] += x1 * dx2 - x2 * dx1;
    }
  }
}

}  // namespace

void rope_angles(const RopeAngleRun& run) {
  run.dtype == DType::kFloat64 ? angles<double>(run) : angles<float>(run);
}

void rope_arrange(const RopeArrangement& arranged) {
  const bool wide = arranged.dtype == DType::kFloat64;
  const bool apart = arranged.dtype == DType::kBFloat16;
  if (arranged.interleaved && !apart) {
    return wide ? arrange_duplicated<double>(arranged) : arrange_duplicated<float>(arranged);
  }
  const std::int64_t size = wide ? sizeof(double) : sizeof(float);
  const auto put = [&](const void* from, void* to, int element) {
    to = static_cast<char*>(to) + element * arranged.second * size;
    if (!arranged.interleaved && apart) {
      arrange_even_odd(arranged.pairs, static_cast<const float*>(from), static_cast<float*>(to));
    } else {
      __builtin_memcpy(to, from, arranged.pairs * size);
    }
  };
  for (int element = 0; element < (arranged.second == 0 ? 1 : 2); ++element) {
    put(arranged.cos[element], arranged.cos_out, element);
    put(arranged.sin[element], arranged.sin_out, element);
  }
}

void rope_angle_gradient(const RopeAngleGradient& token) {
  switch (token.dtype) {
    case DType::kFloat16: return add_gradient<Float16>(token);
    case DType::kBFloat16: return add_gradient<BFloat16>(token);
    case DType::kFloat32: return add_gradient<float>(token);
    default: return add_gradient<double>(token);
  }
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
