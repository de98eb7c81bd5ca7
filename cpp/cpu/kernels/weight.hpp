// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/dtype.hpp"

// Plain data only, as in all headers between cpu/*.cpp and the units per instruction set: of an
// inline function, the linker could keep the copy that was compiled for a wider set.
namespace membound::cpu {

// Padding of a prepared weight: kernels read whole steps.
inline constexpr std::int64_t kPreparedPadding = 64;

// The form in which kernels read the weight.
enum class WeightForm : std::uint8_t {
  kNone,
  kNative,    // x's dtype, contiguous, no offset: read in place
  kPrepared,  // written by rms_norm_weight: the accumulate dtype, offset added
};

// Converts weight + offset to the accumulate dtype of x_dtype, in the order in which kernels read
// it.
struct RmsNormWeight {
  const void* weight;
  DType dtype;
  std::int64_t stride;
  std::int64_t cols;
  double offset;
  DType x_dtype;
  void* prepared;
};

}  // namespace membound::cpu
