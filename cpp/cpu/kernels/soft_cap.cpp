// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/elementwise.hpp"
#include "cpu/tanh.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

template <class T>
struct SoftCap {
  using A = typename Lanes<T>::A;
  using V = typename Lanes<T>::V;
  // Below this, tanh(u) is u to the last bit; and x / cap may be subnormal.
  static constexpr A kLinear = sizeof(A) == 4 ? A(0x1p-13) : A(0x1p-28);
  A cap;

  MEMBOUND_ALWAYS_INLINE V operator()(V x) const {
    return (x < 0 ? -x : x) < kLinear * cap ? x : cap * tanh_of<A>(x / cap).value;
  }
};

template <class T>
struct SoftCapGradient {
  using A = typename Lanes<T>::A;
  using V = typename Lanes<T>::V;
  A cap;

  MEMBOUND_ALWAYS_INLINE V operator()(V x, V dy) const { return dy * tanh_of<A>(x / cap).slope; }
};

}  // namespace

void soft_cap(const ElementwiseRows& rows, double cap) {
  if (rows.inputs[1].data == nullptr) {
    elementwise<SoftCap>(rows, cap);
  } else {
    elementwise<SoftCapGradient>(rows, cap);
  }
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
