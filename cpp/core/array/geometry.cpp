// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/array/geometry.hpp"

#include <algorithm>

#include "core/check.hpp"

namespace membound::geometry {

std::string shape_text(const Dims& shape) {
  std::string text = "(";
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    text += (axis ? ", " : "") + std::to_string(shape[axis]);
  }
  return text + (shape.size() == 1 ? ",)" : ")");
}

void check_shape(const Dims& shape, DType dtype, const char* op) {
  MEMBOUND_CHECK(shape.size() <= kMaxRank, InvalidArgument, op,
                 "argument 'shape' must have at most ", kMaxRank, " axes, got ", shape.size());
  double bytes = static_cast<double>(dtype_size(dtype));
  for (std::int64_t extent : shape) {
    MEMBOUND_CHECK(extent >= 0, InvalidArgument, op,
                   "argument 'shape' must not have a negative extent, got ", shape_text(shape));
    if (extent > 1) bytes *= static_cast<double>(extent);
  }
  MEMBOUND_CHECK(bytes <= 0x1p58, InvalidArgument, op,
                 "argument 'shape' must have a size that 64 bits hold, got ", shape_text(shape));
}

std::int64_t size_of(const Dims& shape) {
  std::int64_t size = 1;
  for (std::int64_t extent : shape) size *= extent;
  return size;
}

Dims contiguous_strides(const Dims& shape) {
  Dims strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;
       stride *= std::max<std::int64_t>(shape[axis], 1))
    strides[axis] = stride;
  return strides;
}

int normalised_axis(std::int64_t axis, int rank, const char* op, const char* argument) {
  MEMBOUND_CHECK(axis >= -rank && axis < rank, OutOfRange, op, "argument '", argument,
                 "' must be from ", -rank, " to ", rank - 1, " for an array of ", rank,
                 " axes, got ", axis);
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

Dims normalised_axes(const Dims& axes, int rank, const char* op, const char* argument) {
  Dims found;
  for (std::int64_t axis : axes) {
    const int place = normalised_axis(axis, rank, op, argument);
    MEMBOUND_CHECK(std::find(found.begin(), found.end(), place) == found.end(), InvalidArgument, op,
                   "argument '", argument, "' must name each axis once, got ", shape_text(axes));
    found.push_back(place);
  }
  return found;
}

std::vector<bool> axis_mask(const Dims& axes, int rank) {
  std::vector<bool> mask(static_cast<std::size_t>(rank));
  for (std::int64_t axis : axes) mask[static_cast<std::size_t>(axis)] = true;
  return mask;
}

// Both shapes are cut into groups of equal size. A group of the old shape whose axes merge into one
// evenly spaced run can be cut anew.
std::optional<Dims> reshaped_strides(const Dims& shape, const Dims& strides, const Dims& wanted) {
  if (size_of(shape) == 0) return contiguous_strides(wanted);
  Dims from, step;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] == 1) continue;
    from.push_back(shape[axis]);
    step.push_back(strides[axis]);
  }
  Dims result(wanted.size());
  std::size_t first = 0, at = 0;
  while (at < wanted.size() && first < from.size()) {
    std::size_t last = first + 1, end = at + 1;
    std::int64_t old_size = from[first], new_size = wanted[at];
    while (old_size != new_size) {
      if (new_size < old_size) {
        new_size *= wanted[end++];
      } else {
        old_size *= from[last++];
      }
    }
    for (std::size_t axis = first; axis + 1 < last; ++axis) {
      if (step[axis] != step[axis + 1] * from[axis + 1]) return std::nullopt;
    }
    std::int64_t stride = step[last - 1];
    for (std::size_t axis = end; axis-- > at; stride *= wanted[axis]) result[axis] = stride;
    first = last;
    at = end;
  }
  for (; at < wanted.size(); ++at) result[at] = 1;  // only extents of 1 are left
  return result;
}

Dims resolved_shape(const Dims& shape, Dims wanted, const char* op) {
  const std::int64_t size = size_of(shape);
  std::int64_t known = 1;
  int unknown = -1;
  const Dims given = wanted;
  for (std::size_t axis = 0; axis < wanted.size(); ++axis) {
    if (wanted[axis] == -1) {
      MEMBOUND_CHECK(unknown < 0, InvalidArgument, op,
                     "argument 'shape' must have at most one extent of -1, got ",
                     shape_text(given));
      unknown = static_cast<int>(axis);
      continue;
    }
    MEMBOUND_CHECK(wanted[axis] >= 0, InvalidArgument, op,
                   "argument 'shape' must not have a negative extent, got ", shape_text(given));
    MEMBOUND_CHECK(!__builtin_mul_overflow(known, wanted[axis], &known), InvalidArgument, op,
                   "argument 'shape' must have ", size, " elements, got ", shape_text(given));
  }
  if (unknown >= 0 && known > 0) {
    wanted[static_cast<std::size_t>(unknown)] = size / known;
    known *= size / known;
  }
  MEMBOUND_CHECK(known == size && (unknown < 0 || known > 0 || wanted[unknown] >= 0),
                 InvalidArgument, op, "argument 'shape' must have ", size, " elements as ",
                 shape_text(shape), ", got ", shape_text(given));
  MEMBOUND_CHECK(wanted.size() <= kMaxRank, InvalidArgument, op,
                 "argument 'shape' must have at most ", kMaxRank, " axes, got ", wanted.size());
  return wanted;
}

Dims broadcast_shapes(const Dims& a, const Dims& b, const char* op) {
  const Dims& longer = a.size() >= b.size() ? a : b;
  const Dims& shorter = a.size() >= b.size() ? b : a;
  Dims shape = longer;
  const std::size_t skipped = longer.size() - shorter.size();
  for (std::size_t axis = 0; axis < shorter.size(); ++axis) {
    std::int64_t& extent = shape[skipped + axis];
    if (shorter[axis] == extent || shorter[axis] == 1) continue;
    MEMBOUND_CHECK(extent == 1, InvalidArgument, op, "shapes ", shape_text(a), " and ",
                   shape_text(b), " do not broadcast to one");
    extent = shorter[axis];
  }
  return shape;
}

Dims broadcast_strides(const Dims& shape, const Dims& strides, const Dims& wanted, const char* op) {
  bool fits = shape.size() <= wanted.size();
  const std::size_t skipped = fits ? wanted.size() - shape.size() : 0;
  Dims result(wanted.size());
  for (std::size_t axis = 0; fits && axis < shape.size(); ++axis) {
    const bool same = shape[axis] == wanted[skipped + axis];
    fits = same || shape[axis] == 1;
    result[skipped + axis] = same ? strides[axis] : 0;
  }
  MEMBOUND_CHECK(fits, InvalidArgument, op, "an array of shape ", shape_text(shape),
                 " does not broadcast to ", shape_text(wanted));
  return result;
}

}  // namespace membound::geometry
