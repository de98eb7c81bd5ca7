// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "core/check.hpp"
#include "membound/device.hpp"
#include "membound/tensor_view.hpp"

// Checks shared by several ops. They read metadata only; every text names op and argument.
namespace membound {

std::string shape_text(const ConstTensorView& view);

// Must pass before anything else of a view is read: at most kMaxRank axes, no negative extent, size
// and strides that fit 64 bits, memory if there are elements. Every array passes it before its
// shape is compared: the first of a call by check_rows or directly, the others by
// check_same_device.
void check_view(const ConstTensorView& view, const char* op, const char* argument);
void check_floating(const ConstTensorView& view, const char* op, const char* argument);
// int32 or int64.
void check_integers(const ConstTensorView& view, const char* op, const char* argument);
// Rank 1 to kMaxRank.
void check_axes(const ConstTensorView& view, const char* op, const char* argument);
// The last axis has at least 1 element; rank 1 to kMaxRank.
void check_rows(const ConstTensorView& view, const char* op, const char* argument);
// Includes check_view.
void check_same_device(const ConstTensorView& view, const ConstTensorView& reference,
                       const char* op, const char* argument, const char* reference_name);
void check_dtype(const ConstTensorView& view, DType expected, const char* op, const char* argument);
// view's shape equals the first `axes` extents of reference.
void check_leading_shape(const ConstTensorView& view, const ConstTensorView& reference, int axes,
                         const char* op, const char* argument);
// For outputs: no two elements share memory.
void check_writable(const ConstTensorView& view, const char* op, const char* argument);
// The arrays share no memory or, if in_place is allowed, are exactly the same array.
void check_overlap(const ConstTensorView& written, const char* written_name,
                   const ConstTensorView& other, const char* other_name, const char* op,
                   bool in_place);
// A floating array with the shape, dtype and device of another.
void check_like(const ConstTensorView& view, const char* argument, const ConstTensorView& reference,
                const char* reference_name, const char* op);
// The same, of any floating dtype.
void check_shaped_like(const ConstTensorView& view, const char* argument,
                       const ConstTensorView& reference, const char* reference_name,
                       const char* op);
// One number per row of x, of the given dtype. Its shape is that of x without the last axis, which
// may be kept as 1.
void check_statistic(const ConstTensorView& view, const char* argument, DType dtype,
                     const ConstTensorView& x, const char* x_name, const char* op);
// One number per row of x, in the accumulate dtype.
void check_row_statistic(const ConstTensorView& view, const char* argument,
                         const ConstTensorView& x, const char* x_name, const char* op);
// Shape (cols,), any floating dtype, x's device; for x of (..., heads, cols) also (heads, cols).
void check_weight(const ConstTensorView& weight, const char* argument, const ConstTensorView& x,
                  const char* op, const char* x_name);
// An option as kernels for arrays of that dtype see it: rounded to float32, where it may become
// infinite; for float64 unchanged.
double as_computed(double value, DType dtype);
// Above 0 in the dtype of the arithmetic, and finite there unless the value itself is infinite.
void check_limit(double value, DType dtype, const char* op, const char* argument);
void check_finite(double value, DType dtype, const char* op, const char* argument);
// Finite as kernels see it, and 0 without a weight.
void check_weight_offset(double weight_offset, DType dtype, bool has_weight, const char* op);
// For options that name a GPU.
void check_gpu(Device device, const char* op);
// For host arrays that are staged through a GPU.
void check_staged(const ConstTensorView& view, Device staging_device, const char* op,
                  const char* argument);
// Finite, not negative, and 0 for kernels only if it is 0.
void check_eps(double eps, DType dtype, const char* op);

}  // namespace membound
