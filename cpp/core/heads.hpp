// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "core/layout.hpp"

// Parameters of shape (heads, cols) for arrays of (..., heads, cols), one head at a time.
namespace membound {

// The stride between heads of a parameter; 0 for (cols,), which all heads share.
inline std::int64_t head_stride(const ConstTensorView& parameter) {
  return parameter.rank == 2 ? parameter.strides[0] : 0;
}

// The view at one index of an axis, without that axis. axis: negative, counted from the last.
template <class View>
View select(const View& view, int axis, std::int64_t index) {
  View selected = view;
  axis += view.rank;
  using Bytes = std::conditional_t<std::is_same_v<View, ConstTensorView>, const char, char>;
  selected.data = static_cast<Bytes*>(view.data) +
                  index * view.strides[axis] * static_cast<std::int64_t>(dtype_size(view.dtype));
  --selected.rank;
  for (int i = axis; i < selected.rank; ++i) {
    selected.shape[i] = view.shape[i + 1];
    selected.strides[i] = view.strides[i + 1];
  }
  return selected;
}

// One head of an optional array; converts to a pointer, null if there is no array.
template <class View>
class OneHead {
 public:
  OneHead(const View* view, int axis, std::int64_t head) {
    if (view != nullptr) selected_ = select(*view, axis, head);
  }
  operator const View*() const { return selected_ ? &*selected_ : nullptr; }

 private:
  std::optional<View> selected_;
};
template <class View>
OneHead<View> one_head(const View* view, int axis, std::int64_t head) {
  return {view, axis, head};
}

// For row statistics of an array of x_rank axes, which may keep their last axis as 1.
template <class View>
OneHead<View> one_head_of_rows(const View* view, int x_rank, std::int64_t head) {
  return {view, view != nullptr ? x_rank - 2 - view->rank : -1, head};
}

}  // namespace membound
