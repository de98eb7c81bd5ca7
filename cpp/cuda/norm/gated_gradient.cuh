// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Gradient of a gated norm without options, element by element: a branch between the passes over a
// vector would keep all of its elements in registers. The bits match GateOf and GradientRow.
#include "cuda/activation/silu.cuh"
#include "cuda/norm/rms_norm_backward_row.cuh"

namespace membound::cuda {

// One vector of each array. kNormFirst: the norm comes before the gate.
template <class T, bool kNormFirst>
struct GatedVector {
  using Accumulate = accumulate_t<T>;
  Numbers<T> dy, x, gate, weight;

  __device__ GatedVector(const uint4& dy_, const uint4& x_, const uint4& gate_,
                         const uint4& weight_)
      : dy(unpack<T>(dy_)), x(unpack<T>(x_)), gate(unpack<T>(gate_)), weight(unpack<T>(weight_)) {}

  // Sigmoid of the gate. Callers with registers to spare keep it between the passes.
  __device__ Accumulate gate_sigmoid(int i) const { return sigmoid<T>(gate.at[i]); }

  // Terms of element i: dy as the norm alone would have received it, g = dy * weight, h = the
  // normalised x; s and gate_silu: sigmoid and silu of the gate.
  struct Terms {
    Accumulate s, gate_silu, dy, g, h;
  };
  __device__ Terms terms(int i, Accumulate rstd, Accumulate s) const {
    Terms of;
    of.s = s;
    of.gate_silu = silu<T>(gate.at[i], of.s);
    of.dy = kNormFirst ? product(dy.at[i], of.gate_silu) : dy.at[i];
    of.g = product(of.dy, weight.at[i]);
    of.h = product(kNormFirst ? x.at[i] : product(x.at[i], of.gate_silu), rstd);
    return of;
  }

  // Sum of g * h in the order of row_sum. keep(i, sigmoid of the gate): saves it for gradients().
  template <class Keep>
  __device__ Accumulate sum(Accumulate rstd, Keep keep) const {
    const auto kept = [&](int i) {
      const Accumulate s = gate_sigmoid(i);
      keep(i, s);
      return terms(i, rstd, s);
    };
    Accumulate even = 0, odd = 0;
#pragma unroll
    for (int i = 0; i < kPack<T>; i += 2) {
      const Terms a = kept(i), b = kept(i + 1);
      even = fma(a.g, a.h, even);
      odd = fma(b.g, b.h, odd);
    }
    return even + odd;
  }

  __device__ Accumulate sum(Accumulate rstd) const {
    return sum(rstd, [](int, Accumulate) {});
  }

  // Gradients of x and the gate; also adds to the sums of dweight. gate_sigmoid_(i): what keep()
  // saved.
  struct Gradients {
    uint4 dx, dgate;
  };
  template <class GateSigmoid>
  __device__ Gradients gradients(Accumulate rstd, Accumulate mean, Numbers<T>& sums,
                                 GateSigmoid gate_sigmoid_) const {
    Numbers<T> dx, dgate;
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      const Terms of = terms(i, rstd, gate_sigmoid_(i));
      sums.at[i] = fma(of.dy, of.h, sums.at[i]);
      const Accumulate of_norm = product(rstd, fma(-of.h, mean, of.g));
      const Accumulate of_gate =
          kNormFirst ? product(product(of.h, weight.at[i]), dy.at[i]) : product(of_norm, x.at[i]);
      dgate.at[i] = product(of_gate, silu_slope(gate.at[i], of.s));
      dx.at[i] = kNormFirst ? of_norm : product(of_norm, of.gate_silu);
    }
    return {pack<T>(dx), pack<T>(dgate)};
  }
  __device__ Gradients gradients(Accumulate rstd, Accumulate mean, Numbers<T>& sums) const {
    return gradients(rstd, mean, sums, [&](int i) { return gate_sigmoid(i); });
  }
};

}  // namespace membound::cuda
