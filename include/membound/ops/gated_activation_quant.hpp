// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>

#include "membound/ops/gated_activation.hpp"

namespace membound {

struct GatedActivationQuantOptions {
  GatedActivationOptions activation;
  // Columns that share a dynamic scale: 64 or 128 (the last group of a row may be shorter), or 0,
  // all of a row.
  std::int64_t group_size = 0;
  double scale_upper_bound =
      std::numeric_limits<double>::infinity();  // of a dynamic scale; above 0
};

// gated_activation with a quantised result. Bit for bit as below, where y is what gated_activation
// writes for gate and up converted to float32 (for float64 as they are), which is not rounded to
// their dtype in between; the arithmetic is float32 (float64 where they are), but scale is float32:
//
//   dynamic   scale = min(max(largest |y| of the row or group / limit, 2^-126), scale_upper_bound),
//             NaN where some y is NaN
//   static    scale is given
//   out = round(clamp(y * (1 / scale), -limit, limit))
//
// limit is 448 for float8_e4m3fn, 57344 for float8_e5m2, 127 for int8. round: to the nearest, ties
// to even. NaN stays NaN; in int8 it becomes 0, and the scale of its row or group says so.
//
// gate, up, row_scale, stream: as in gated_activation
// out           gate's shape and device; float8_e4m3fn, float8_e5m2 or int8; any strides without
//               overlap; it may not overlap an input
// static_scale  one float32 number, of shape () or (1,), on gate's device; or nullptr: dynamic
// scale         float32; gate's shape without its last axis, or with group_size with
//               ceil(cols / group_size) in its place; any strides; nullptr with a static scale
//
// Throws InvalidArgument, TypeMismatch, CudaError. A call that throws before its launch has written
// nothing.
MEMBOUND_API void gated_activation_quant(const ConstTensorView& gate, const ConstTensorView* up,
                                         const ConstTensorView* row_scale,
                                         const GatedActivationQuantOptions& options,
                                         const TensorView& out, const ConstTensorView* static_scale,
                                         const TensorView* scale, StreamView stream);

}  // namespace membound
