// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>

#include "call.hpp"

namespace membound::python {

// The last axes of x that a norm is over: those of normalized_shape=, or the last one. The library
// normalises one axis, so several are seen as one, without a copy.
class NormalizedShape {
 public:
  // given: an int, a sequence of ints, or null or None: the last axis.
  NormalizedShape(PyObject* given, const char* op);

  int axes() const { return axes_; }

  // Whether they are the last axes of x.
  void check_rows(const TensorView& x, const char* x_name) const;
  // A parameter of several axes has two meanings, of which normalized_shape picks one.
  void check_parameter(const TensorView& parameter, const char* name) const;

  // Sees the axes as one. Throws where their strides are not those of one.
  void collapse(TensorView& view, const char* name) const;
  // The same of a number for each row, of which the axes may be kept with one element each.
  void collapse_statistic(TensorView& view, const TensorView& x, const char* name) const;

 private:
  const char* op_;
  bool given_ = false;
  int axes_ = 1;
  std::int64_t shape_[kMaxRank];
};

}  // namespace membound::python
