// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "core/check.hpp"
#include "membound/device.hpp"
#include "membound/tensor_view.hpp"

// Checks that several ops share. They look at metadata only; every text names op and argument.
namespace membound {

std::string shape_text(const ConstTensorView& view);

// What has to hold before anything of a view is read: at most kMaxRank axes, no negative extent,
// sizes and strides that 64 bits hold, memory where there are elements. Every array comes through
// here: the first of a call by check_rows or by itself, the others by check_same_device, ahead of
// what looks at their shape.
void check_view(const ConstTensorView& view, const char* op, const char* argument);
void check_floating(const ConstTensorView& view, const char* op, const char* argument);
// int32 or int64.
void check_integers(const ConstTensorView& view, const char* op, const char* argument);
// extent of the last axis at least 1, rank 1 to kMaxRank.
void check_rows(const ConstTensorView& view, const char* op, const char* argument);
// Also check_view.
void check_same_device(const ConstTensorView& view, const ConstTensorView& reference,
                       const char* op, const char* argument, const char* reference_name);
void check_dtype(const ConstTensorView& view, DType expected, const char* op, const char* argument);
// view's shape equals the first `axes` extents of reference.
void check_leading_shape(const ConstTensorView& view, const ConstTensorView& reference, int axes,
                         const char* op, const char* argument);
// An array that will be written: its own elements are distinct and data is there.
void check_writable(const ConstTensorView& view, const char* op, const char* argument);
// Nothing shared, or, where in_place is allowed, exactly the same array.
void check_overlap(const ConstTensorView& written, const char* written_name,
                   const ConstTensorView& other, const char* other_name, const char* op,
                   bool in_place);
// A floating array with the shape, dtype and device of another.
void check_like(const ConstTensorView& view, const char* argument, const ConstTensorView& reference,
                const char* reference_name, const char* op);
// The same of any floating dtype.
void check_shaped_like(const ConstTensorView& view, const char* argument,
                       const ConstTensorView& reference, const char* reference_name,
                       const char* op);
// One number per row of x, of that dtype; its shape is that of x less the last axis, which may be
// kept with one element.
void check_statistic(const ConstTensorView& view, const char* argument, DType dtype,
                     const ConstTensorView& x, const char* x_name, const char* op);
// One number per row of x in the dtype of sums.
void check_row_statistic(const ConstTensorView& view, const char* argument,
                         const ConstTensorView& x, const char* x_name, const char* op);
// (cols,) of any floating dtype for x of (..., cols), on the same device; or (heads, cols) for x of
// (..., heads, cols).
void check_weight(const ConstTensorView& weight, const char* argument, const ConstTensorView& x,
                  const char* op, const char* x_name);
// An option as kernels for arrays of that dtype have it: float32, or float64 for float64. Beyond
// float32 it is infinite.
double as_computed(double value, DType dtype);
// Finite as kernels have it.
// Above 0 in the dtype of the arithmetic, and finite there unless the value itself is infinite.
void check_limit(double value, DType dtype, const char* op, const char* argument);
void check_finite(double value, DType dtype, const char* op, const char* argument);
// Finite, and 0 without a weight.
void check_weight_offset(double weight_offset, DType dtype, bool has_weight, const char* op);
// An option that names a GPU.
void check_gpu(Device device, const char* op);
// Host arrays, to be carried through a GPU.
void check_staged(const ConstTensorView& view, Device staging_device, const char* op,
                  const char* argument);
// Finite, not negative, and 0 for kernels only if it is.
void check_eps(double eps, DType dtype, const char* op);

}  // namespace membound
