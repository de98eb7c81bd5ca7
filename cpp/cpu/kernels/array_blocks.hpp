// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/array/functors.hpp"
#include "cpu/kernels/array.hpp"
#include "cpu/kernels/array_types.hpp"

// The loops of element-wise functions of arrays.
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

template <class F, class A, int kOperands>
struct BlockLoop {
  using R = decltype([] {
    if constexpr (kOperands == 1) return F::apply(A());
    if constexpr (kOperands == 2) return F::apply(A(), A());
    if constexpr (kOperands == 3) return A();
  }());
  static constexpr bool kIsWhere = scalar::kSameType<F, functors::Where>;
  static constexpr bool kIsClip = scalar::kSameType<F, functors::Clip>;

  // The result may be one of the inputs: each element is read before it is written.
  static void run(const ArrayBlocks& blocks) {
    R* result = static_cast<R*>(blocks.result);
    const A* x = static_cast<const A*>(blocks.inputs[0]);
    const A* y = static_cast<const A*>(blocks.inputs[1]);
    const A* z = static_cast<const A*>(blocks.inputs[2]);
    // Not as bool, of which compilers make no vectors.
    const auto* which = static_cast<const std::uint8_t*>(blocks.inputs[0]);
    if constexpr (kIsClip) {
      const bool by_numbers = blocks.advance[1] == 0 && blocks.advance[2] == 0;
      if (by_numbers && blocks.advance[0] != 0 && *y == *y && *z == *z)
        return clip(x, *y, *z, result, blocks.count);
    }
    for (std::int64_t done = 0; done < blocks.count; done += blocks.block) {
      const std::int64_t left = blocks.count - done;
      const std::int64_t count = left < blocks.block ? left : blocks.block;
#pragma GCC ivdep
      for (std::int64_t i = 0; i < count; ++i) {
        if constexpr (kOperands == 1) {
          result[i] = F::apply(x[i]);
        } else if constexpr (kOperands == 2) {
          result[i] = F::apply(x[i], y[i]);
        } else if constexpr (kIsWhere) {
          // By masks: compilers would jump.
          result[i] = static_cast<A>(z[i] ^ ((y[i] ^ z[i]) & static_cast<A>(-A(which[i]))));
        } else {
          result[i] = F::apply(x[i], y[i], z[i]);
        }
      }
      result += count;
      x += blocks.advance[0];
      which += blocks.advance[0];
      if (kOperands > 1) y += blocks.advance[1];
      if (kOperands > 2) z += blocks.advance[2];
    }
  }
  static void clip(const A* x, A low, A high, R* result, std::int64_t count) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) result[i] = F::between(x[i], low, high);
  }
};

template <class F, functors::Types kTypes, int kOperands>
void run_types(const ArrayBlocks& blocks) {
  with_type(blocks.dtype, [&]<class T>(TypeTag<T>) MEMBOUND_INLINED {
    if constexpr (functors::takes<T>(kTypes)) BlockLoop<F, T, kOperands>::run(blocks);
  });
}

// Runs the functions of `kOperands` operands.
template <int kOperands>
MEMBOUND_ALWAYS_INLINE void run_blocks(const ArrayBlocks& blocks) {
  switch (blocks.op) {
#define MEMBOUND_CASE(Name_, operands_, types_, result_)                             \
  case ElementwiseOp::k##Name_:                                                      \
    if constexpr (operands_ == kOperands)                                            \
      return run_types<functors::Name_, functors::Types::types_, kOperands>(blocks); \
    return;
    MEMBOUND_ARRAY_FUNCTORS(MEMBOUND_CASE)
#undef MEMBOUND_CASE
    default: return;
  }
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
