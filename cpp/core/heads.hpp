// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/layout.hpp"

// Parameters of shape (heads, cols) for arrays of (..., heads, cols), one head at a time.
namespace membound {

// The stride between heads of a parameter; 0 for (cols,), which all heads share.
template <class Pointer>
std::int64_t head_stride(const BasicTensorView<Pointer>& parameter) {
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

// One array of a call struct, which may not be there. is_statistic: it has one number for each row.
template <class Call, class View>
struct CallArray {
  const View* Call::* member;
  bool is_statistic = false;
};

// Points the arrays of `one` to one head of those of `call`, through the views in `selected`.
template <class Call, class View, std::size_t kCount>
void select_head(const Call& call, const CallArray<Call, View> (&arrays)[kCount], std::int64_t head,
                 View (&selected)[kCount], Call& one) {
  for (std::size_t i = 0; i < kCount; ++i) {
    const View* const view = call.*(arrays[i].member);
    if (view == nullptr) continue;
    // The last axis of a statistic may be kept.
    const int axis = arrays[i].is_statistic ? call.x->rank - 2 - view->rank : -2;
    selected[i] = select(*view, axis, head);
    one.*(arrays[i].member) = &selected[i];
  }
}

// body(call) for each head alone, whose parameters are (cols,) then.
template <class Call, std::size_t kInputs, std::size_t kOutputs, class Body>
void each_head(const Call& call, std::int64_t heads,
               const CallArray<Call, ConstTensorView> (&inputs)[kInputs],
               const CallArray<Call, TensorView> (&outputs)[kOutputs], Body body) {
  if (heads == 1) return body(call);
  for (std::int64_t head = 0; head < heads; ++head) {
    Call one = call;
    ConstTensorView read[kInputs];
    TensorView written[kOutputs];
    select_head(call, inputs, head, read, one);
    select_head(call, outputs, head, written, one);
    body(one);
  }
}

}  // namespace membound
