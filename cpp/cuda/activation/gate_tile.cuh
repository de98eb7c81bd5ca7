// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Common parts of the gated-activation kernels: the units of a thread and the options of a call.
#include <algorithm>
#include <limits>

#include "core/layout.hpp"
#include "cuda/activation/activation.cuh"
#include "cuda/activation/gated_activation_config.hpp"
#include "cuda/launch/cache_hint.cuh"
#include "cuda/launch/launch.hpp"
#include "cuda/row/cluster.cuh"
#include "cuda/row/offset.cuh"

namespace membound::cuda {

// What a thread loads and stores at once: a 16-byte vector if all rows are aligned, otherwise one
// element, so that a warp's accesses are coalesced at any alignment.
template <class T, bool kVectors>
struct Unit {
  static constexpr int kWidth = kVectors ? kPack<T> : 1;
  static constexpr int kCount = kVectors ? tuning::kVectorsPerThread : tuning::kElementsPerThread;
  using A = accumulate_t<T>;
  using Raw = std::conditional_t<kVectors, uint4, T>;
  struct Values {
    A at[kWidth];
  };

  static __device__ Values unpacked(const Raw& raw) {
    if constexpr (kVectors) {
      const Numbers<T> numbers = unpack<T>(raw);
      Values values;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) values.at[i] = numbers.at[i];
      return values;
    } else {
      return {{to_number(raw)}};
    }
  }
  static __device__ Raw packed(const Values& values) {
    if constexpr (kVectors) {
      Numbers<T> numbers;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) numbers.at[i] = values.at[i];
      return pack<T>(numbers);
    } else {
      return from_number<T>(values.at[0]);
    }
  }
};

__device__ inline std::int64_t token_offset(const RowLayout& tokens, std::int64_t token) {
  return tokens.rank <= 1 ? token * tokens.strides[0] : looped_row_offset(tokens, token);
}

// One matrix as a kernel sees it; data is null if it is absent. Multi-axis row layouts are stored
// at the end of the kernel parameters, so that a block with common rows waits for few
// constant-cache lines.
template <class Pointer>
struct GateArray {
  Pointer data;
  std::int64_t row_stride;  // if the rows have at most one axis
  std::int64_t col_stride;
  int row_axes;

  __device__ std::int64_t offset(const RowLayout& rows, std::int64_t row) const {
    return row_axes <= 1 ? row * row_stride : looped_row_offset(rows, row);
  }
  template <class T>
  __device__ auto* row(const RowLayout& rows, std::int64_t row) const {
    using Element = std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const T, T>;
    return static_cast<Element*>(data) + offset(rows, row);
  }
  // Unit `unit` of the row that starts at `offset`.
  template <class T, bool kVectors>
  __device__ auto* at(std::int64_t offset, std::int64_t unit) const {
    using Raw = typename Unit<T, kVectors>::Raw;
    using To = std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const Raw, Raw>;
    using Element = std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const T, T>;
    Element* row = static_cast<Element*>(data) + offset;
    if constexpr (kVectors && std::is_const_v<To>) {
      return with_evict_last(reinterpret_cast<To*>(row) + unit);
    } else if constexpr (kVectors) {
      return reinterpret_cast<To*>(row) + unit;
    } else {
      return row + unit * col_stride;
    }
  }
};

template <class Pointer>
GateArray<Pointer> gate_array(Pointer data, const RowLayout& rows, std::int64_t col_stride) {
  if (data == nullptr) return {};
  return {data, rows.strides[0], col_stride, rows.rank};
}

// Factor of all results of a row.
template <class A>
__device__ inline A scale_of_row(const GateArray<const void*>& row_scale, const RowLayout& rows,
                                 std::int64_t row) {
  return row_scale.data != nullptr
             ? static_cast<const A*>(row_scale.data)[row_scale.offset(rows, row)]
             : A(1);
}

// True if a matrix can be accessed in 16-byte vectors. float64 uses half-vector elements instead.
template <class T>
bool is_vectorisable(const void* data, const RowLayout& rows, std::int64_t col_stride,
                     std::int64_t cols) {
  if (data == nullptr) return sizeof(T) < 8;
  bool fits = sizeof(T) < 8 && col_stride == 1 && cols % kPack<T> == 0 &&
              reinterpret_cast<std::uintptr_t>(data) % kVectorBytes == 0;
  for (int axis = 0; axis < rows.rank; ++axis) fits = fits && rows.strides[axis] % kPack<T> == 0;
  return fits;
}

// Per-call constants of the elementwise arithmetic.
template <class A>
struct GateNumbers {
  Alpha<A> alpha;
  A limit, up_offset;
  A up_cap;  // for kSitu: soft cap of up, 0 for none; limit is infinite then
  Activation kind;
  bool plain;  // up is given; no limit, offset or row scale

  // The factor of the activation, for results of type T.
  template <class T>
  __device__ A factor(A up) const {
    if (up_cap > 0) return soft_capped_for<T>(up, up_cap).value + up_offset;
    return not_above(not_below(up, -limit), limit) + up_offset;
  }
  // Gradient of up from the gradient of the factor.
  template <class T>
  __device__ A gradient_of_up(A up, A gradient) const {
    if (up_cap > 0) return product(gradient, soft_capped_for<T>(up, up_cap).slope);
    return fabs(up) > limit ? A(0) : gradient;
  }
};

template <class T>
GateNumbers<accumulate_t<T>> gate_numbers(const GatedActivationOptions& options, bool plain) {
  using A = accumulate_t<T>;
  const double largest = std::numeric_limits<A>::max(), smallest = std::numeric_limits<A>::min();
  const bool situ = options.kind == Activation::kSitu, caps = situ && options.limit <= largest;
  const A alpha = static_cast<A>(situ ? std::max(options.alpha, smallest) : options.alpha);
  const double exponent = std::max(-1.4426950408889634 * options.alpha, -largest);
  return {{alpha, static_cast<A>(options.alpha - static_cast<double>(alpha)),
           static_cast<A>(std::max(kLowestArgument<A> / options.alpha, -largest)),
           static_cast<A>(std::min(kHighestArgument<A> / options.alpha, largest)),
           static_cast<A>(exponent),
           static_cast<A>(exponent - static_cast<double>(static_cast<A>(exponent))),
           static_cast<A>(std::min(-kUnderflowArgument<A> / options.alpha, largest))},
          situ ? std::numeric_limits<A>::infinity() : static_cast<A>(options.limit),
          static_cast<A>(options.up_offset),
          caps ? static_cast<A>(std::max(options.limit, smallest)) : A(0),
          options.kind,
          plain && options.limit > largest && options.up_offset == 0.0};
}

// Units of a thread: up to `count` units of one row, `lanes` apart.
struct GatePosition {
  std::int64_t row;
  std::int64_t first;  // unit
  int lanes;
  int count;  // units, at most

  __device__ explicit GatePosition(const tuning::GatedActivationConfig& config) {
    lanes = config.lanes;
    count = config.per_thread;
    const unsigned group = config.tiles == 1 ? blockIdx.x : blockIdx.x / config.tiles;
    const unsigned tile = blockIdx.x - group * config.tiles;
    const int shift = 31 - __clz(lanes);
    const int thread = static_cast<int>(threadIdx.x);
    row = std::int64_t{group} * (config.threads >> shift) + (thread >> shift);
    first = std::int64_t{tile} * config.tile_units + (thread & (lanes - 1));
  }
};

// Calls body.operator()<kKind>(); the branch is uniform over all threads.
template <class Body>
__device__ inline void dispatch_activation(Activation kind, Body body) {
  switch (kind) {
    case Activation::kSilu: return body.template operator()<Activation::kSilu>();
    case Activation::kGelu: return body.template operator()<Activation::kGelu>();
    case Activation::kGeluTanh: return body.template operator()<Activation::kGeluTanh>();
    case Activation::kSigmoid: return body.template operator()<Activation::kSigmoid>();
    case Activation::kRelu: return body.template operator()<Activation::kRelu>();
    case Activation::kSitu: return body.template operator()<Activation::kSitu>();
    default: return body.template operator()<Activation::kRelu2>();
  }
}

// up * scale for a gate that is not far below 0, where scale is 1 except for relu2.
template <Activation kKind, class A>
__device__ inline A scaled_in_range(A up, A scale) {
  return kKind == Activation::kRelu2 ? product(up, scale) : up;
}

// out = activation(gate) * up.
template <Activation kKind, class T, class Values>
__device__ inline void activate(Values& out, const Values& gate, const Values& up,
                                const Alpha<accumulate_t<T>>& alpha) {
  constexpr int kWidth = sizeof(out.at) / sizeof(out.at[0]);
  DetectUnderflow underflow;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const auto found = ActivationOf<kKind, T>::of(gate.at[i], alpha, underflow);
    out.at[i] = product(found.value, scaled_in_range<kKind>(up.at[i], found.scale));
  }
  if (!underflow.any) [[likely]]
    return;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const auto found = activated<kKind, T>(gate.at[i], alpha);
    out.at[i] = product(found.value, product(up.at[i], found.scale));
  }
}

}  // namespace membound::cuda
