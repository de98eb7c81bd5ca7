// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "membound/ndarray.hpp"

// Reductions over any axes. Sums are added in a tree that depends on the number of elements alone:
// the bits are the same for any number of threads.
namespace membound::array {

enum class Reduction : std::uint8_t {
  kSum,
  kProd,
  kMin,
  kMax,
  kArgMin,
  kArgMax,
  kAny,
  kAll,
  kMean,
  kVar,
  kCountNonzero,
};

struct ReduceOptions {
  std::optional<NDArray::Dims> axes;  // none: all
  bool keepdims = false;
  std::optional<DType> dtype;  // of sum and prod; default: floats their own, integers 64 bits
  double correction = 0;       // of var
};

MEMBOUND_API NDArray reduce(Reduction op, const NDArray& x, const ReduceOptions& options = {});

inline NDArray sum(const NDArray& x, const ReduceOptions& options = {}) {
  return reduce(Reduction::kSum, x, options);
}
inline NDArray mean(const NDArray& x, const ReduceOptions& options = {}) {
  return reduce(Reduction::kMean, x, options);
}
inline NDArray max(const NDArray& x, const ReduceOptions& options = {}) {
  return reduce(Reduction::kMax, x, options);
}
inline NDArray min(const NDArray& x, const ReduceOptions& options = {}) {
  return reduce(Reduction::kMin, x, options);
}

// Sums and products of each prefix along an axis; with include_initial also of the empty one.
MEMBOUND_API NDArray cumulative_sum(const NDArray& x, int axis, std::optional<DType> dtype = {},
                                    bool include_initial = false);
MEMBOUND_API NDArray cumulative_prod(const NDArray& x, int axis, std::optional<DType> dtype = {},
                                     bool include_initial = false);

}  // namespace membound::array
