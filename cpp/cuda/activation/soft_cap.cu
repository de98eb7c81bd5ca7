// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "cuda/row/elementwise.cuh"
#include "cuda/softmax/soft_cap.cuh"
#include "ops/soft_cap.hpp"

namespace membound::cuda {

namespace {

// Below this, tanh(u) is u to the last bit; and x / cap may be subnormal.
template <class A>
constexpr A kLinear = sizeof(A) == 4 ? A(0x1p-13) : A(0x1p-28);

template <class T>
struct SoftCap {
  using A = accumulate_t<T>;
  A cap, inverse;

  explicit SoftCap(double number)
      : cap(static_cast<A>(number)), inverse(std::min(1 / cap, std::numeric_limits<A>::max())) {}

  __device__ A operator()(A x) const {
    if (fabs(x) < product(cap, kLinear<A>)) return x;
    if constexpr (sizeof(T) == 2) return product(cap, approximate_tanh(product(x, inverse)).value);
    return product(cap, tanh(x / cap));
  }
};

template <class T>
struct SoftCapGradient : SoftCap<T> {
  using A = accumulate_t<T>;
  using SoftCap<T>::SoftCap;

  // 4 e / (1 + e)^2 with e = exp(-2 |x / cap|) is exact where 1 - tanh^2 cancels.
  __device__ A operator()(A x, A dy) const {
    if constexpr (sizeof(T) == 2)
      return product(dy, approximate_tanh(product(x, this->inverse)).slope);
    const A power = exp(-2 * fabs(x / this->cap)), half = 2 / (1 + power);
    return product(dy, product(power, product(half, half)));
  }
};

}  // namespace

void soft_cap(const SoftCapProblem& problem, StreamView stream) {
  if (problem.arrays.has_two_inputs()) {
    elementwise<SoftCapGradient>(problem.arrays, "soft_cap_backward", stream, problem.cap);
  } else {
    elementwise<SoftCap>(problem.arrays, "soft_cap", stream, problem.cap);
  }
}

}  // namespace membound::cuda
