// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/array/functors.hpp"
#include "cuda/array/index.cuh"
#include "cuda/array/unit.cuh"
#include "cuda/launch/launch.hpp"
#include "cuda/row/cluster.cuh"

namespace membound::cuda {

inline constexpr int kElementwiseThreads = 256;
inline constexpr int kElementwiseUnits = 2;  // per thread

template <class A, functors::Types kTypes>
constexpr bool kTakes = functors::takes<A>(kTypes);

template <int kOperands>
struct ElementwiseParams {
  ElementwiseOp op;
  bool is_narrow;  // items of 2 bytes at most, but for numbers
  // Loads are of two units, one after another: of the vectors, then, and of a row of them.
  bool pairs;
  // Units below `whole` are vectors of the result, one after another. Operands are so too, or one
  // number, or repeat a row of `row_units` units or the elements of a column.
  std::int64_t whole;
  Divider row_loads;
  std::int64_t inner;  // extent of the last dimension in elements; `index` has it in units
  ArrayIndex index;
  UnitArray arrays[kOperands + 1];  // the result is the last
  std::int64_t strides[kOperands + 1][kMaxRank];
};

// Functions of many instructions: compiled for one unit of 16-bit floats, and for one double.
constexpr bool is_long(ElementwiseOp op) {
  switch (op) {
    case ElementwiseOp::kAbs:
    case ElementwiseOp::kAdd:
    case ElementwiseOp::kClip:
    case ElementwiseOp::kCopySign:
    case ElementwiseOp::kEqual:
    case ElementwiseOp::kIsFinite:
    case ElementwiseOp::kIsInf:
    case ElementwiseOp::kIsNan:
    case ElementwiseOp::kLess:
    case ElementwiseOp::kLessEqual:
    case ElementwiseOp::kMaximum:
    case ElementwiseOp::kMinimum:
    case ElementwiseOp::kMultiply:
    case ElementwiseOp::kNegative:
    case ElementwiseOp::kNotEqual:
    case ElementwiseOp::kSignBit:
    case ElementwiseOp::kSquare:
    case ElementwiseOp::kSubtract:
    case ElementwiseOp::kWhere: return false;
    default: return true;
  }
}
template <ElementwiseOp kOp>
constexpr bool kIsLong = is_long(kOp);
template <class A, ElementwiseOp kOp>
constexpr int kAtOnce = kIsLong<kOp> && scalar::kSameType<A, double> ? 1 : kUnitItems;

// One case of the switch: F of all items, kAtOnce of them in one turn of a loop. Predicates write a
// byte of `flags` per element.
template <class F, int kAtOnce, class A, int kOperands, int kItems>
__device__ inline void evaluate(A (&x)[kOperands][kItems], A (&values)[kItems],
                                RawUnit<A, kItems>& flags) {
#pragma unroll 1
  for (int done = 0; done < kItems; done += kAtOnce) {
#pragma unroll
    for (int i = 0; i + kAtOnce < kItems; ++i) {  // room for the results of the next items
      values[i] = values[i + kAtOnce];
      flags.words[i / 4] = flags.words[i / 4 + kAtOnce / 4];
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int to = kItems - kAtOnce + i;
      auto result = [&] {
        if constexpr (kOperands == 1) return F::apply(x[0][i]);
        if constexpr (kOperands == 2) return F::apply(x[0][i], x[1][i]);
        if constexpr (kOperands == 3) return F::apply(x[0][i], x[1][i], x[2][i]);
      }();
      if constexpr (scalar::kSameType<decltype(result), bool>) {
        static_assert(kAtOnce % kUnitItems == 0, "a word has the flags of a unit");
        set_item(flags, to, 1, result ? 1 : 0);
      } else {
        values[to] = result;
      }
    }
#pragma unroll
    for (int k = 0; k < kOperands; ++k) {
#pragma unroll
      for (int i = 0; i + kAtOnce < kItems; ++i) x[k][i] = x[k][i + kAtOnce];
    }
  }
}

// The loads of a thread, all below `whole`. The size of the items is asked once for all of them.
template <class A, int kLoads>
__device__ inline void load_dense(const UnitArray& array, const Divider& row_loads, bool pairs,
                                  std::int64_t first, RawUnit<A> (&raw)[kLoads]) {
  std::int64_t at[kLoads];
#pragma unroll
  for (int load = 0; load < kLoads; ++load) {
    at[load] = first + load * kElementwiseThreads;
    if (array.repeat != Repeat::kNone) {
      const std::int64_t row = row_loads.quotient(at[load]);
      at[load] = array.repeat == Repeat::kRow ? at[load] - row * row_loads.extent : row;
    }
  }
  const auto each = [&](auto load) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) raw[i] = load(at[i]);
  };
  const auto vectors = [&](int bytes) {
    each([&](std::int64_t unit) {
      return load_vectors<A>(array.data + unit * (kUnitItems * bytes), bytes);
    });
  };
  if (array.is_scalar) return each([&](std::int64_t) { return scalar_unit<A>(array); });
  if (array.repeat == Repeat::kColumn) {
    return each([&](std::int64_t row) {
      return repeated_item<A>(array.data + row * array.row_bytes, array.item_bytes);
    });
  }
  const int bytes = array.item_bytes << (pairs ? 1 : 0);  // two units are one of wider items
  if constexpr (sizeof(A) == 8) {
    if (bytes == 8) return vectors(8);
  }
  if constexpr (sizeof(A) >= 4) {
    if (bytes == 4) return vectors(4);
    if (bytes == 2) return vectors(2);
  }
  vectors(1);
}

// A thread loads kElementwiseUnits units of each operand before it computes the first. The switch
// is outside the loop over elements, so each function is compiled once per arithmetic type.
// Memory-bound.
template <class A, int kOperands>
__global__ void __launch_bounds__(kElementwiseThreads, sizeof(A) == 8 ? 3 : 4)
    elementwise_kernel(const __grid_constant__ ElementwiseParams<kOperands> p) {
  constexpr int kUnits = kElementwiseUnits;
  pdl_wait_and_launch();
  const std::int64_t first =
      std::int64_t{blockIdx.x} * (kUnits * kElementwiseThreads) + threadIdx.x;
  const auto locate = [&](std::int64_t linear, std::int64_t (&at)[kOperands + 1]) {
    const std::int64_t col = kUnitItems * p.index.offsets(linear, p.strides, at);
    return static_cast<int>(min(p.inner - col, std::int64_t{kUnitItems}));
  };
  RawUnit<A> raw[kOperands][kUnits];
  if (first + (kUnits - 1) * kElementwiseThreads < p.whole) {
#pragma unroll
    for (int k = 0; k < kOperands; ++k)
      load_dense<A, kUnits>(p.arrays[k], p.row_loads, false, first, raw[k]);
  } else {
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const std::int64_t linear = first + unit * kElementwiseThreads;
      if (linear >= p.index.size) continue;
      std::int64_t at[kOperands + 1];
      const int count = locate(linear, at);
#pragma unroll
      for (int k = 0; k < kOperands; ++k) raw[k][unit] = load_unit<A>(p.arrays[k], at[k], count);
    }
  }
  const UnitArray& result = p.arrays[kOperands];
#pragma unroll 1
  for (std::int64_t linear = first; linear < first + kUnits * kElementwiseThreads;
       linear += kElementwiseThreads) {
    if (linear >= p.index.size) break;
    A x[kOperands][kUnitItems], values[kUnitItems] = {};
#pragma unroll
    for (int k = 0; k < kOperands; ++k) unpack_unit(raw[k][0], p.arrays[k].dtype, x[k]);
    RawUnit<A> packed = {};
    switch (p.op) {
#define MEMBOUND_CASE(Name_, operands_, types_, result_)                                 \
  case ElementwiseOp::k##Name_:                                                          \
    if constexpr (operands_ == kOperands && kTakes<A, functors::Types::types_>)          \
      evaluate<functors::Name_, kAtOnce<A, ElementwiseOp::k##Name_>>(x, values, packed); \
    break;
      MEMBOUND_ARRAY_FUNCTORS(MEMBOUND_CASE)
#undef MEMBOUND_CASE
      default: break;
    }
    if (result.dtype != DType::kBool) packed = pack_unit(values, result.dtype, result.item_bytes);
    if (linear < p.whole) {
      store_vectors(result.data + linear * result.unit_bytes, result.item_bytes, packed);
    } else {
      std::int64_t at[kOperands + 1];
      const int count = locate(linear, at);
      store_unit(result, at[kOperands], count, packed);
    }
#pragma unroll
    for (int unit = 0; unit + 1 < kUnits; ++unit) {  // the next unit moves to the front
#pragma unroll
      for (int k = 0; k < kOperands; ++k) raw[k][unit] = raw[k][unit + 1];
    }
  }
}

template <int kOperands>
ElementwiseParams<kOperands> elementwise_params(ElementwiseOp op, const ArrayDims& dims,
                                                const ArrayOperand& result,
                                                const ArrayOperand* operands,
                                                bool may_be_narrow = false) {
  ElementwiseParams<kOperands> p;
  p.op = op;
  const int last = dims.rank - 1;
  p.inner = last < 0 ? 1 : dims.shape[last];
  std::int64_t shape[kMaxRank] = {1};
  for (int axis = 0; axis < last; ++axis) shape[axis] = dims.shape[axis];
  if (last >= 0) shape[last] = (p.inner + kUnitItems - 1) / kUnitItems;
  p.index = array_index(shape, last < 0 ? 1 : dims.rank);
  // Rows of whole units, one after another, are walked as one dimension.
  const bool rows = last == 1 && p.inner % kUnitItems == 0;
  bool dense = last <= 0 || rows;
  p.is_narrow = may_be_narrow;
  p.pairs = !rows || p.inner % (2 * kUnitItems) == 0;
  for (int k = 0; k <= kOperands; ++k) {
    const ArrayOperand& operand = k == kOperands ? result : operands[k];
    const bool is_scalar = operand.data == nullptr;
    const std::int64_t inner = last < 0 || is_scalar ? 0 : operand.strides[last];
    p.arrays[k] = unit_array(operand, inner, operand.strides, last);
    for (int axis = 0; axis < last; ++axis)
      p.strides[k][axis] = is_scalar ? 0 : operand.strides[axis];
    p.strides[k][last < 0 ? 0 : last] = kUnitItems * inner;
    UnitArray& array = p.arrays[k];
    if (is_scalar) continue;
    p.is_narrow &= array.item_bytes <= 2;
    const std::int64_t apart = last == 1 ? operand.strides[0] : 0;
    if (k < kOperands && inner == 0) {
      array.repeat = Repeat::kColumn;
      array.row_bytes = apart * array.item_bytes;
      continue;
    }
    p.pairs &= is_aligned(array.data, 2 * array.unit_bytes);
    if (k < kOperands && rows && apart == 0 && array.vectors) {
      array.repeat = Repeat::kRow;
    } else {
      dense = dense && array.vectors && (last <= 0 || apart == p.inner);
    }
  }
  const std::int64_t units = p.inner / kUnitItems;
  p.whole = dense ? (rows ? dims.shape[0] * units : units) : 0;
  p.pairs &= dense && p.is_narrow;
  p.row_loads = divider_of(p.pairs ? units / 2 : units);
  return p;
}

template <class A, int kOperands>
void launch_elementwise(const ElementwiseParams<kOperands>& p, StreamView stream) {
  constexpr int kPerBlock = kElementwiseUnits * kElementwiseThreads;
  launch<elementwise_kernel<A, kOperands>>(
      {(p.index.size + kPerBlock - 1) / kPerBlock, kElementwiseThreads}, stream, current_device(),
      p);
}

}  // namespace membound::cuda
