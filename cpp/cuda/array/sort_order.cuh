// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/dtype.hpp"

namespace membound::cuda {

// Unsigned numbers in the order of the elements: NaNs last, and both zeros the same.
__device__ inline std::uint64_t ordered_bits(std::uint64_t bits, DType dtype, int bytes,
                                             bool descending) {
  const int top = 8 * bytes - 1;
  const std::uint64_t sign = std::uint64_t{1} << top;
  const std::uint64_t all = bytes == 8 ? ~std::uint64_t{0} : (sign << 1) - 1;
  switch (dtype) {
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kFloat32:
    case DType::kFloat64: {
      const int mantissa = dtype == DType::kFloat16    ? 10
                           : dtype == DType::kBFloat16 ? 7
                           : dtype == DType::kFloat32  ? 23
                                                       : 52;
      const std::uint64_t infinity = (sign - 1) >> mantissa << mantissa;
      if ((bits & (sign - 1)) > infinity) return all;
      if ((bits & (sign - 1)) == 0) bits = 0;
      bits = (bits & sign) != 0 ? ~bits & all : bits | sign;
      break;
    }
    case DType::kInt8:
    case DType::kInt16:
    case DType::kInt32:
    case DType::kInt64: bits ^= sign; break;
    default: break;
  }
  return descending ? ~bits & all : bits;
}

}  // namespace membound::cuda
