// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/dtype.hpp"

// The seam between cpu/rms_norm.cpp and the units per instruction set: plain data and function
// names. Nothing with an inline function may be used here: the linker could keep the copy that was
// compiled for a wider instruction set for everybody.
namespace membound::cpu {

// Elements that a prepared weight needs beyond its columns: kernels read whole steps.
inline constexpr std::int64_t kPreparedPadding = 64;

// How the kernel finds the weight.
enum class WeightForm : std::uint8_t {
  kNone,
  kNative,    // x's dtype, contiguous, no offset: read as it is
  kPrepared,  // written by rms_norm_weight: the accumulate dtype, offset added
};

// Evenly spaced rows. All strides count elements.
struct RmsNormRows {
  const void* x;
  const void* weight;
  void* out;
  void* rstd;  // null: not wanted
  DType dtype;
  WeightForm weight_form;
  bool round_before_weight;
  bool bypass_cache;  // non-temporal stores, and the next rows are asked for ahead
  std::int64_t rows, cols;
  std::int64_t x_row_stride, x_col_stride;
  std::int64_t out_row_stride, out_col_stride;
  std::int64_t rstd_row_stride;
  double eps;
  // core/safe_scale.hpp, handed over because this unit may not compile its inline functions.
  double safe_low, safe_high;
  int (*safe_exponent)(double largest, double eps);
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

#define MEMBOUND_DECLARE_RMS_NORM(isa)        \
  namespace isa {                             \
  void rms_norm(const RmsNormRows& rows);     \
  void rms_norm_weight(const RmsNormWeight&); \
  }
MEMBOUND_DECLARE_RMS_NORM(baseline)
MEMBOUND_DECLARE_RMS_NORM(avx2)
MEMBOUND_DECLARE_RMS_NORM(avx512)
MEMBOUND_DECLARE_RMS_NORM(neon)
#undef MEMBOUND_DECLARE_RMS_NORM

}  // namespace membound::cpu
