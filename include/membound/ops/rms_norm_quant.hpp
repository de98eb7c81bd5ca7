// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>

#include "membound/ops/rms_norm.hpp"

namespace membound {

struct RmsNormQuantOptions {
  double eps = 1e-6;
  double weight_offset = 0.0;
  Rounding rounding = Rounding::kOnce;
  // Columns that share a dynamic scale: 64 or 128 (the last group of a row may be shorter), or 0,
  // all of a row.
  std::int64_t group_size = 0;
  double scale_upper_bound =
      std::numeric_limits<double>::infinity();  // of a dynamic scale; above 0
};

// rms_norm with a quantised result. Bit for bit as below, where y is what rms_norm writes for the
// same arguments (in x's dtype); the arithmetic is float32 (float64 where x is float64), but scale
// is float32:
//
//   dynamic   scale = min(max(largest |y| of the row or group / limit, 2^-126), scale_upper_bound),
//             NaN where some y is NaN
//   static    scale is given
//   out = round(clamp(y * (1 / scale), -limit, limit))
//
// limit is 448 for float8_e4m3fn, 57344 for float8_e5m2, 127 for int8. round: to the nearest, ties
// to even. NaN stays NaN; in int8 it becomes 0, and the scale of its row or group says so.
//
// x, weight, stream: as in rms_norm
// out           x's shape and device; float8_e4m3fn, float8_e5m2 or int8; any strides without
//               overlap; it may not overlap an input
// static_scale  one float32 number, of shape () or (1,), on x's device; or nullptr: dynamic
// scale         float32; x's shape without its last axis, or with group_size with
//               ceil(cols / group_size) in its place; any strides; nullptr with a static scale
//
// Throws InvalidArgument, TypeMismatch, CudaError. A call that throws before its launch has written
// nothing.
MEMBOUND_API void rms_norm_quant(const ConstTensorView& x, const ConstTensorView* weight,
                                 const RmsNormQuantOptions& options, const TensorView& out,
                                 const ConstTensorView* static_scale, const TensorView* scale,
                                 StreamView stream);

}  // namespace membound
