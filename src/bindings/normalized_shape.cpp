// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "normalized_shape.hpp"

#include <algorithm>
#include <string>

#include "core/check.hpp"

namespace membound::python {

namespace {

std::string text_of(const std::int64_t* shape, int axes) {
  std::string text = "(";
  for (int axis = 0; axis < axes; ++axis) text += (axis ? ", " : "") + std::to_string(shape[axis]);
  return text + (axes == 1 ? ",)" : ")");
}

}  // namespace

NormalizedShape::NormalizedShape(PyObject* given, const char* op) : op_(op) {
  if (given == nullptr || given == Py_None) return;
  given_ = true;
  const Site site{op, "normalized_shape"};
  if (PyIndex_Check(given)) {
    shape_[0] = integer_from_python(given, site);
    return;
  }
  MEMBOUND_CHECK(PySequence_Check(given) && !PyUnicode_Check(given), TypeMismatch, op,
                 "argument 'normalized_shape' must be an integer or a tuple of integers, got ",
                 type_name(given));
  const Py_ssize_t axes = PySequence_Size(given);
  if (axes < 0) throw nb::python_error();
  MEMBOUND_CHECK(axes >= 1 && axes <= kMaxRank, InvalidArgument, op,
                 "argument 'normalized_shape' must have 1 to ", kMaxRank, " axes, got ", axes);
  axes_ = static_cast<int>(axes);
  for (int axis = 0; axis < axes_; ++axis) {
    const nb::object extent = nb::steal(PySequence_GetItem(given, axis));
    if (!extent.is_valid()) throw nb::python_error();
    shape_[axis] = integer_from_python(extent.ptr(), site);
  }
}

void NormalizedShape::check_rows(const TensorView& x, const char* x_name) const {
  if (!given_) return;
  const bool fits = x.rank >= axes_ && x.rank <= kMaxRank &&
                    std::equal(shape_, shape_ + axes_, x.shape + x.rank - axes_);
  MEMBOUND_CHECK(fits, InvalidArgument, op_,
                 "argument 'normalized_shape' must be the last axes of '", x_name, "', of shape ",
                 text_of(x.shape, std::min(x.rank, kMaxRank)), ", got ", text_of(shape_, axes_));
}

void NormalizedShape::check_parameter(const TensorView& parameter, const char* name) const {
  if (parameter.rank < 2 || parameter.rank > kMaxRank) return;
  const std::string shape = text_of(parameter.shape, parameter.rank);
  MEMBOUND_CHECK(
      given_, InvalidArgument, op_, "argument '", name, "' of shape ", shape,
      " needs normalized_shape, got None: normalized_shape=", parameter.shape[parameter.rank - 1],
      " for a norm over the last axis with a weight for each head, or normalized_shape=", shape,
      " for a norm over all of these axes");
  const bool same = axes_ == 1 || (parameter.rank == axes_ &&
                                   std::equal(shape_, shape_ + axes_, parameter.shape));
  MEMBOUND_CHECK(same, InvalidArgument, op_, "argument '", name, "' must have shape ",
                 text_of(shape_, axes_), ", that of normalized_shape, got ", shape);
}

void NormalizedShape::collapse(TensorView& view, const char* name) const {
  if (axes_ == 1 || view.rank < axes_ || view.rank > kMaxRank) return;
  const int first = view.rank - axes_;
  std::int64_t extent = 1, stride = 1;
  bool joins = true;
  for (int axis = view.rank - 1; axis >= first; --axis) {
    if (view.shape[axis] == 1) continue;
    if (extent == 1) stride = view.strides[axis];
    joins = joins && view.strides[axis] == stride * extent;
    extent *= view.shape[axis];
  }
  MEMBOUND_CHECK(joins || view.size() == 0, InvalidArgument, op_, "argument '", name,
                 "' must have axes ", text_of(view.shape + first, axes_),
                 " that one stride joins, to be normalised as one; make it contiguous first, got "
                 "strides ",
                 text_of(view.strides + first, axes_));
  view.rank = first + 1;
  view.shape[first] = extent;
  view.strides[first] = stride;
}

void NormalizedShape::collapse_statistic(TensorView& view, const TensorView& x,
                                         const char* name) const {
  if (view.rank == x.rank) collapse(view, name);
}

}  // namespace membound::python
