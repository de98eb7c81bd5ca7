// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/dtype.hpp"

// Plain data only, as everything between cpu/*.cpp and the units per instruction set: the linker
// could keep the copy of an inline function that was compiled for a wider set for everybody.
namespace membound::cpu {

// Elements that a prepared weight needs beyond its columns: kernels read whole steps.
inline constexpr std::int64_t kPreparedPadding = 64;

// How the kernel finds the weight.
enum class WeightForm : std::uint8_t {
  kNone,
  kNative,    // x's dtype, contiguous, no offset: read as it is
  kPrepared,  // written by rms_norm_weight: the accumulate dtype, offset added
};

// weight + offset in the accumulate dtype of x_dtype, in the order in which the kernel reads.
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
