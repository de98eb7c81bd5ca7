// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Access to single numbers of a floating dtype that is known at run time.
#include "cuda/row/convert.cuh"

namespace membound::cuda {

template <class A>
__device__ inline A read_number(const void* from, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::kFloat16: return to_number(static_cast<const Float16*>(from)[index]);
    case DType::kBFloat16: return to_number(static_cast<const BFloat16*>(from)[index]);
    case DType::kFloat32: return static_cast<A>(static_cast<const float*>(from)[index]);
    default: return static_cast<A>(static_cast<const double*>(from)[index]);
  }
}

template <class A>
__device__ inline void write_number(void* to, DType dtype, std::int64_t index, A value) {
  switch (dtype) {
    case DType::kFloat16:
      static_cast<Float16*>(to)[index] = from_number<Float16>(static_cast<float>(value));
      break;
    case DType::kBFloat16:
      static_cast<BFloat16*>(to)[index] = from_number<BFloat16>(static_cast<float>(value));
      break;
    case DType::kFloat32: static_cast<float*>(to)[index] = static_cast<float>(value); break;
    default: static_cast<double*>(to)[index] = static_cast<double>(value);
  }
}

// Copies bits, so that a NaN keeps its payload.
__device__ inline void copy_number(void* to, std::int64_t to_index, const void* from,
                                   std::int64_t from_index, DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      static_cast<std::uint64_t*>(to)[to_index] =
          static_cast<const std::uint64_t*>(from)[from_index];
      break;
    case DType::kFloat32:
      static_cast<std::uint32_t*>(to)[to_index] =
          static_cast<const std::uint32_t*>(from)[from_index];
      break;
    default:
      static_cast<std::uint16_t*>(to)[to_index] =
          static_cast<const std::uint16_t*>(from)[from_index];
  }
}

}  // namespace membound::cuda
