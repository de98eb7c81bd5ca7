// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/layout.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "core/check.hpp"

namespace membound {

namespace {

struct Axis {
  std::int64_t extent;
  std::int64_t stride;
};

// Axes of extent above 1, with neighbours merged where the outer one continues the inner one.
// Returns their number.
int merged_axes(const ConstTensorView& view, int axes, Axis* merged) {
  int count = 0;
  for (int axis = 0; axis < axes; ++axis) {
    const Axis next{view.shape[axis], view.strides[axis]};
    if (next.extent == 1) continue;
    if (count > 0 && merged[count - 1].stride == next.stride * next.extent) {
      merged[count - 1] = {merged[count - 1].extent * next.extent, next.stride};
    } else {
      merged[count++] = next;
    }
  }
  return count;
}

// rows x cols with one row stride, in bytes; false when the view is not of that form.
bool as_byte_matrix(const ConstTensorView& view, std::int64_t& row_stride,
                    std::int64_t& row_bytes) {
  Axis axes[kMaxRank];
  const int count = merged_axes(view, view.rank, axes);
  if (count != 2 || axes[1].stride != 1 || axes[0].stride <= 0) return false;
  const auto size = static_cast<std::int64_t>(dtype_size(view.dtype));
  row_stride = axes[0].stride * size;
  row_bytes = axes[1].extent * size;
  return true;
}

}  // namespace

RowLayout row_layout(const ConstTensorView& view, int axes, const char* op, const char* argument) {
  Axis merged[kMaxRank];
  const int count = merged_axes(view, axes, merged);
  MEMBOUND_CHECK(count <= kMaxRowRank, InvalidArgument, op, "argument '", argument, "' has ", count,
                 " leading axes that no common stride joins, expected at most ", kMaxRowRank,
                 "; make it contiguous first");
  RowLayout layout;
  layout.rank = count;
  layout.strides[0] = 0;
  for (int axis = 0; axis < count; ++axis) {
    layout.shape[axis] = merged[axis].extent;
    layout.strides[axis] = merged[axis].stride;
  }
  return layout;
}

ByteSpan byte_span(const ConstTensorView& view) {
  const auto size = static_cast<std::int64_t>(dtype_size(view.dtype));
  std::int64_t low = 0;
  std::int64_t high = size;
  for (int axis = 0; axis < view.rank; ++axis) {
    if (view.shape[axis] == 0) return {nullptr, nullptr};
    const std::int64_t reach = (view.shape[axis] - 1) * view.strides[axis] * size;
    (reach < 0 ? low : high) += reach;
  }
  const char* data = static_cast<const char*>(view.data);
  return {data + low, data + high};
}

bool is_injective(const ConstTensorView& view) {
  Axis axes[kMaxRank];
  const int count = merged_axes(view, view.rank, axes);
  for (int axis = 0; axis < count; ++axis) {
    if (axes[axis].extent == 0) return true;
    axes[axis].stride = std::abs(axes[axis].stride);
  }
  std::sort(axes, axes + count, [](Axis a, Axis b) { return a.stride < b.stride; });
  std::int64_t span = 1;  // elements that the axes so far cover
  for (int axis = 0; axis < count; ++axis) {
    if (axes[axis].stride < span) return false;
    span += (axes[axis].extent - 1) * axes[axis].stride;
  }
  return true;
}

bool is_same_array(const ConstTensorView& a, const ConstTensorView& b) {
  if (a.data != b.data || a.dtype != b.dtype || a.rank != b.rank) return false;
  for (int axis = 0; axis < a.rank; ++axis) {
    if (a.shape[axis] != b.shape[axis]) return false;
    if (a.shape[axis] != 1 && a.strides[axis] != b.strides[axis]) return false;
  }
  return true;
}

bool may_overlap(const ConstTensorView& a, const ConstTensorView& b) {
  const ByteSpan span_a = byte_span(a);
  const ByteSpan span_b = byte_span(b);
  if (span_a.first == span_a.last || span_b.first == span_b.last) return false;
  if (span_a.last <= span_b.first || span_b.last <= span_a.first) return false;
  std::int64_t stride_a = 0, stride_b = 0, bytes_a = 0, bytes_b = 0;
  if (!as_byte_matrix(a, stride_a, bytes_a) || !as_byte_matrix(b, stride_b, bytes_b)) return true;
  if (stride_a != stride_b) return true;
  // Both repeat with one period, so one row of each decides.
  std::int64_t shift =
      (static_cast<const char*>(b.data) - static_cast<const char*>(a.data)) % stride_a;
  if (shift < 0) shift += stride_a;
  return shift < bytes_a || shift + bytes_b > stride_a;
}

}  // namespace membound
