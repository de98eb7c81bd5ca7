// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/validate.hpp"

#include <cmath>
#include <cstdint>

#include "core/dispatch.hpp"
#include "core/layout.hpp"

namespace membound {

std::string shape_text(const ConstTensorView& view) {
  std::string text = "(";
  for (int axis = 0; axis < view.rank; ++axis) {
    text += (axis ? ", " : "") + std::to_string(view.shape[axis]);
  }
  return text + (view.rank == 1 ? ",)" : ")");
}

void check_view(const ConstTensorView& view, const char* op, const char* argument) {
  MEMBOUND_CHECK(view.rank >= 0 && view.rank <= kMaxRank, InvalidArgument, op, "argument '",
                 argument, "' must have at most ", kMaxRank, " axes, got ", view.rank);
  // In double, which does not overflow. The limit leaves room for bytes and for sums of two views.
  double elements = 1.0, reach = 0.0;
  bool empty = false;
  for (int axis = 0; axis < view.rank; ++axis) {
    const std::int64_t extent = view.shape[axis];
    MEMBOUND_CHECK(extent >= 0, InvalidArgument, op, "argument '", argument,
                   "' must not have a negative extent, got shape ", shape_text(view));
    empty |= extent == 0;
    if (extent <= 1) continue;  // even without elements, the other axes' must fit
    elements *= static_cast<double>(extent);
    reach += std::abs(static_cast<double>(view.strides[axis])) * static_cast<double>(extent);
  }
  MEMBOUND_CHECK(elements <= 0x1p58 && reach <= 0x1p58, InvalidArgument, op, "argument '", argument,
                 "' must have a size and strides that 64 bits hold, got shape ", shape_text(view));
  MEMBOUND_CHECK(view.data != nullptr || empty, InvalidArgument, op, "argument '", argument,
                 "' must have memory for its elements, got a null pointer and shape ",
                 shape_text(view));
}

void fail_not_floating(DType dtype, const char* op) {
  fail<TypeMismatch>(op, "expected a floating dtype, got ", dtype_name(dtype));
}

void check_floating(const ConstTensorView& view, const char* op, const char* argument) {
  MEMBOUND_CHECK(is_floating(view.dtype), TypeMismatch, op, "argument '", argument,
                 "' must be float16, bfloat16, float32 or float64, got ", dtype_name(view.dtype));
  // GPUs fault on a misaligned element and lose the context; the CPU build assumes alignment too.
  MEMBOUND_CHECK(reinterpret_cast<std::uintptr_t>(view.data) % dtype_size(view.dtype) == 0,
                 InvalidArgument, op, "argument '", argument, "' must start at a multiple of its ",
                 dtype_size(view.dtype), "-byte element size, got an unaligned pointer");
}

void check_integers(const ConstTensorView& view, const char* op, const char* argument) {
  MEMBOUND_CHECK(view.dtype == DType::kInt32 || view.dtype == DType::kInt64, TypeMismatch, op,
                 "argument '", argument, "' must be int32 or int64, got ", dtype_name(view.dtype));
  MEMBOUND_CHECK(reinterpret_cast<std::uintptr_t>(view.data) % dtype_size(view.dtype) == 0,
                 InvalidArgument, op, "argument '", argument,
                 "' must start at a multiple of its element size, got an unaligned pointer");
}

void check_axes(const ConstTensorView& view, const char* op, const char* argument) {
  MEMBOUND_CHECK(view.rank >= 1 && view.rank <= kMaxRank, InvalidArgument, op, "argument '",
                 argument, "' must have 1 to ", kMaxRank, " axes, got ", view.rank);
  check_view(view, op, argument);
}

void check_rows(const ConstTensorView& view, const char* op, const char* argument) {
  check_axes(view, op, argument);
  MEMBOUND_CHECK(view.shape[view.rank - 1] >= 1, InvalidArgument, op, "argument '", argument,
                 "' must have at least 1 element along its last axis, got shape ",
                 shape_text(view));
}

void check_same_device(const ConstTensorView& view, const ConstTensorView& reference,
                       const char* op, const char* argument, const char* reference_name) {
  check_view(view, op, argument);
  MEMBOUND_CHECK(view.device == reference.device, InvalidArgument, op, "argument '", argument,
                 "' must be on ", device_name(reference.device), " like '", reference_name,
                 "', got ", device_name(view.device));
}

void check_dtype(const ConstTensorView& view, DType expected, const char* op,
                 const char* argument) {
  MEMBOUND_CHECK(view.dtype == expected, TypeMismatch, op, "argument '", argument, "' must be ",
                 dtype_name(expected), ", got ", dtype_name(view.dtype));
}

void check_leading_shape(const ConstTensorView& view, const ConstTensorView& reference, int axes,
                         const char* op, const char* argument) {
  bool same = view.rank == axes;
  for (int axis = 0; same && axis < axes; ++axis) same = view.shape[axis] == reference.shape[axis];
  if (same) [[likely]]
    return;
  ConstTensorView expected = reference;
  expected.rank = axes;
  fail<InvalidArgument>(op, "argument '", argument, "' must have shape ", shape_text(expected),
                        ", got ", shape_text(view));
}

void check_writable(const ConstTensorView& view, const char* op, const char* argument) {
  MEMBOUND_CHECK(is_injective(view), InvalidArgument, op, "argument '", argument,
                 "' must not have elements that share memory (a broadcast or self-crossing view)");
}

void check_overlap(const ConstTensorView& written, const char* written_name,
                   const ConstTensorView& other, const char* other_name, const char* op,
                   bool in_place) {
  if (!may_overlap(written, other)) [[likely]]
    return;
  if (in_place && is_same_array(written, other)) return;
  fail<InvalidArgument>(op, "argument '", written_name, "' must not overlap '", other_name, "'",
                        in_place ? " in part (the very same array is fine: in place)" : "");
}

void check_like(const ConstTensorView& view, const char* argument, const ConstTensorView& reference,
                const char* reference_name, const char* op) {
  check_same_device(view, reference, op, argument, reference_name);
  check_dtype(view, reference.dtype, op, argument);
  check_leading_shape(view, reference, reference.rank, op, argument);
  check_floating(view, op, argument);
}

void check_shaped_like(const ConstTensorView& view, const char* argument,
                       const ConstTensorView& reference, const char* reference_name,
                       const char* op) {
  check_same_device(view, reference, op, argument, reference_name);
  check_floating(view, op, argument);
  check_leading_shape(view, reference, reference.rank, op, argument);
}

void check_statistic(const ConstTensorView& view, const char* argument, DType dtype,
                     const ConstTensorView& x, const char* x_name, const char* op) {
  check_same_device(view, x, op, argument, x_name);
  check_dtype(view, dtype, op, argument);
  ConstTensorView numbers = view;
  if (view.rank == x.rank && view.shape[view.rank - 1] == 1) --numbers.rank;
  check_leading_shape(numbers, x, x.rank - 1, op, argument);
  check_floating(view, op, argument);
}

void check_row_statistic(const ConstTensorView& view, const char* argument,
                         const ConstTensorView& x, const char* x_name, const char* op) {
  check_same_device(view, x, op, argument, x_name);
  check_dtype(view, accumulate_dtype(x.dtype), op, argument);
  check_leading_shape(view, x, x.rank - 1, op, argument);
  check_floating(view, op, argument);
}

void check_weight(const ConstTensorView& weight, const char* argument, const ConstTensorView& x,
                  const char* op, const char* x_name) {
  check_same_device(weight, x, op, argument, x_name);
  check_floating(weight, op, argument);
  bool fits = weight.rank == 1 || (weight.rank == 2 && x.rank > 2);
  for (int axis = 1; fits && axis <= weight.rank; ++axis) {
    fits = weight.shape[weight.rank - axis] == x.shape[x.rank - axis];
  }
  MEMBOUND_CHECK(fits, InvalidArgument, op, "argument '", argument, "' must have shape (",
                 x.shape[x.rank - 1], ",), the last axis of '", x_name,
                 "', or with three axes and more that of its last two, got ", shape_text(weight));
}

double as_computed(double value, DType dtype) {
  return accumulate_dtype(dtype) == DType::kFloat64 ? value : static_cast<float>(value);
}

void check_finite(double value, DType dtype, const char* op, const char* argument) {
  MEMBOUND_CHECK(
      std::isfinite(as_computed(value, dtype)), InvalidArgument, op, "argument '", argument,
      std::isfinite(value) ? "' must be finite in float32" : "' must be finite", ", got ", value);
}

void check_limit(double value, DType dtype, const char* op, const char* argument) {
  const double computed = as_computed(value, dtype);
  MEMBOUND_CHECK(computed > 0.0, InvalidArgument, op, "argument '", argument, "' must be above 0",
                 value > 0.0 ? " in float32" : "", ", got ", value);
  MEMBOUND_CHECK(std::isfinite(computed) || std::isinf(value), InvalidArgument, op, "argument '",
                 argument, "' must be finite in float32, or infinite for none, got ", value);
}

void check_weight_offset(double weight_offset, DType dtype, bool has_weight, const char* op) {
  check_finite(weight_offset, dtype, op, "weight_offset");
  MEMBOUND_CHECK(has_weight || weight_offset == 0.0, InvalidArgument, op,
                 "argument 'weight_offset' must be 0 without a weight, got ", weight_offset);
}

void check_gpu(Device device, const char* op) {
  MEMBOUND_CHECK(device.is_cuda(), InvalidArgument, op,
                 "argument 'device' must be a CUDA device, got ", device_name(device));
}

void check_staged(const ConstTensorView& view, Device staging_device, const char* op,
                  const char* argument) {
  MEMBOUND_CHECK(!view.device.is_cuda(), InvalidArgument, op, "argument '", argument,
                 "' must be on the CPU to be carried to ", device_name(staging_device),
                 " and back, got ", device_name(view.device));
}

void check_eps(double eps, DType dtype, const char* op) {
  MEMBOUND_CHECK(std::isfinite(eps) && eps >= 0.0, InvalidArgument, op,
                 "argument 'eps' must be finite and not negative, got ", eps);
  check_finite(eps, dtype, op, "eps");
  MEMBOUND_CHECK(eps == 0.0 || as_computed(eps, dtype) > 0.0, InvalidArgument, op,
                 "argument 'eps' must be 0 or above 0 in float32, got ", eps);
}

}  // namespace membound
