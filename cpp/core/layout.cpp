// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/layout.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "core/check.hpp"

namespace membound {

namespace {

struct Axis {
  std::int64_t extent;
  std::int64_t stride;
};

// Collects the axes of extent above 1, merging an outer axis into the inner one that it continues.
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

// The axes of a view, longest stride first and all strides positive, from the view's lowest byte.
// Strides and the element size are in bytes.
struct Lattice {
  const char* first;
  std::int64_t size;
  int count;
  Axis axes[kMaxRank];

  explicit Lattice(const ConstTensorView& view)
      : first(byte_span(view).first), size(static_cast<std::int64_t>(dtype_size(view.dtype))) {
    count = merged_axes(view, view.rank, axes);
    for (int axis = 0; axis < count; ++axis) axes[axis].stride = std::abs(axes[axis].stride) * size;
    std::sort(axes, axes + count, [](Axis a, Axis b) { return a.stride > b.stride; });
  }
  // The span of the axes from `outer` on, gaps included.
  std::int64_t bytes(int outer) const {
    std::int64_t last = size;
    for (int axis = outer; axis < count; ++axis)
      last += (axes[axis].extent - 1) * axes[axis].stride;
    return last;
  }
  // The common divisor of the start offsets of all segments, which the axes from `outer` to before
  // `inner` repeat; 0 for a single segment.
  std::int64_t period(int outer, int inner) const {
    std::int64_t common = 0;
    for (int axis = outer; axis < inner; ++axis) common = std::gcd(common, axes[axis].stride);
    return common;
  }
};

// True if the views are disjoint when split, at some pair of axes, into segments that start at
// multiples of a common period.
bool are_disjoint(const Lattice& a, const Lattice& b, int outer) {
  for (int i = outer; i <= a.count; ++i) {
    for (int j = outer; j <= b.count; ++j) {
      const std::int64_t period = std::gcd(a.period(outer, i), b.period(outer, j));
      const std::int64_t bytes_a = a.bytes(i), bytes_b = b.bytes(j);
      std::int64_t shift = b.first - a.first;
      if (period != 0) shift = (shift % period + period) % period;
      const bool after = shift >= bytes_a, before = period != 0 ? shift + bytes_b <= period : true;
      if ((after && before) || (period == 0 && shift + bytes_b <= 0)) return true;
    }
  }
  return false;
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
  std::int64_t span = 1;  // elements spanned by the axes so far
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
  const Lattice lattice_a(a), lattice_b(b);
  const int count = std::min(lattice_a.count, lattice_b.count);
  // If both repeat with the same stride and together span no more than it, they overlap within one
  // period or not at all: compare the inner axes.
  for (int outer = 0; outer <= count; ++outer) {
    if (are_disjoint(lattice_a, lattice_b, outer)) return false;
    if (outer == count) break;
    const std::int64_t stride = lattice_a.axes[outer].stride;
    const char* first = std::min(lattice_a.first, lattice_b.first);
    const char* last = std::max(lattice_a.first + lattice_a.bytes(outer + 1),
                                lattice_b.first + lattice_b.bytes(outer + 1));
    if (lattice_b.axes[outer].stride != stride || last - first > stride) break;
  }
  return true;
}

}  // namespace membound
