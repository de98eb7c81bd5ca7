// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/flattened_rows.hpp"

namespace membound {

namespace {

bool is_contiguous(const ConstTensorView& view) {
  std::int64_t stride = 1;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    if (view.shape[axis] != 1 && view.strides[axis] != stride) return false;
    stride *= view.shape[axis];
  }
  return true;
}

// A contiguous axis, if the last one is not contiguous; else the last.
int contiguous_axis(const ConstTensorView& view) {
  const int last = view.rank - 1;
  if (column_stride(view) == 1) return last;
  for (int axis = last - 1; axis >= 0; --axis) {
    if (view.shape[axis] > 1 && view.strides[axis] == 1) return axis;
  }
  return last;
}

// The same elements, with `axis` moved to the end.
ConstTensorView permuted(const ConstTensorView& view, int axis) {
  ConstTensorView permuted = view;
  for (int to = axis; to + 1 < view.rank; ++to) {
    permuted.shape[to] = view.shape[to + 1];
    permuted.strides[to] = view.strides[to + 1];
  }
  permuted.shape[view.rank - 1] = view.shape[axis];
  permuted.strides[view.rank - 1] = view.strides[axis];
  return permuted;
}

}  // namespace

FlattenedRows::FlattenedRows(const ConstTensorView& like, bool rows_matter, const char* op)
    : like_(like),
      op_(op),
      contiguous_axis_(rows_matter ? like.rank - 1 : contiguous_axis(like)),
      permutes_(contiguous_axis_ != like.rank - 1),
      flat_(!rows_matter),
      flat_permuted_(permutes_) {}

void FlattenedRows::add(const ConstTensorView* matrix) {
  if (matrix == nullptr) return;
  flat_ = flat_ && is_contiguous(*matrix);
  permutes_ = permutes_ && matrix->strides[contiguous_axis_] == 1;
  flat_permuted_ = flat_permuted_ && is_contiguous(permuted(*matrix, contiguous_axis_));
}

RowLayout FlattenedRows::layout(const ConstTensorView& matrix, const char* argument) const {
  const int axes = is_flat() ? 0 : matrix.rank - 1;
  return row_layout(permutes_ ? permuted(matrix, contiguous_axis_) : matrix, axes, op_, argument);
}

std::int64_t FlattenedRows::column_stride(const ConstTensorView& matrix) const {
  return is_flat() || permutes_ ? 1 : membound::column_stride(matrix);
}

}  // namespace membound
