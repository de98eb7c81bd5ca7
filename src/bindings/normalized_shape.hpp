// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>

#include "call.hpp"

namespace membound::python {

// The last axes of x that are normalised: those of normalized_shape=, or the last one. The library
// normalises one axis, so several are merged into one view, without a copy.
class NormalizedShape {
 public:
  // given: an int, a sequence of ints, or null or None: the last axis.
  NormalizedShape(PyObject* given, const char* op);

  int axes() const { return axes_; }

  // Whether they match the last axes of x.
  void check_rows(const TensorView& x, const char* x_name) const;
  // A parameter of several axes is ambiguous; normalized_shape resolves it.
  void check_parameter(const TensorView& parameter, const char* name) const;

  // Merges the axes into one. Throws if their strides do not allow it.
  void collapse(TensorView& view, const char* name) const;
  // The same for a statistic per row, whose normalised axes may be kept with an extent of 1.
  void collapse_statistic(TensorView& view, const TensorView& x, const char* name) const;

 private:
  const char* op_;
  bool given_ = false;
  int axes_ = 1;
  std::int64_t shape_[kMaxRank];
};

}  // namespace membound::python
