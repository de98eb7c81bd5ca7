// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/array/indexing.hpp"

#include <algorithm>

#include "core/array/geometry.hpp"
#include "core/check.hpp"
#include "core/layout.hpp"
#include "core/route.hpp"
#include "membound/array/copy.hpp"
#include "membound/array/elementwise.hpp"
#include "ops/array/operands.hpp"

namespace membound::array {

namespace {

using Dims = NDArray::Dims;

NDArray as_indices(const NDArray& indices, Device device, const char* op) {
  MEMBOUND_CHECK(is_integer(indices.dtype()), TypeMismatch, op,
                 "argument 'indices' must be integers, got ", dtype_name(indices.dtype()));
  check_same_device(indices, device, op, "indices");
  if (indices.dtype() != DType::kUInt64) return indices.astype(DType::kInt64);
  // What int64 does not hold is beyond every axis, and must not become negative.
  return minimum(indices, INT64_MAX).astype(DType::kInt64);
}

// Whether the indices, of one axis, are element offsets already, and stay so: a scatter may write
// over them.
bool are_offsets(const std::vector<NDArray>& indices, const Dims& shape, const NDArray& x,
                 int axis) {
  const NDArray& first = indices.front();
  return !x.device().is_cuda() && indices.size() == 1 && x.strides()[axis] == 1 &&
         first.shape() == shape && first.is_contiguous() && !may_overlap(first.view(), x.view()) &&
         cpu::array_are_below(first.as<std::int64_t>(), first.size(), x.shape()[axis]);
}

// Element offsets of the places that index arrays of one shape name, checked.
NDArray offsets_of(const std::vector<NDArray>& indices, const Dims& shape, const NDArray& x,
                   int first_axis, const char* op) {
  if (are_offsets(indices, shape, x, first_axis)) return indices.front();
  NDArray offsets = NDArray::empty(shape, DType::kInt64, x.device());
  if (offsets.size() == 0) return offsets;
  ArrayIndexOffsets problem;
  problem.dims = dims_of(shape);
  problem.indexed = static_cast<int>(indices.size());
  problem.offsets = offsets.as<std::int64_t>();
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::size_t axis = static_cast<std::size_t>(first_axis) + i;
    problem.indices[i] = operand_of(indices[i], shape, op);
    problem.extents[i] = x.shape()[axis];
    problem.strides[i] = x.strides()[axis];
  }
  BadIndex bad;
  route(
      x.device(), op, [&] { bad = cpu::array_index_offsets(problem); },
      [&] { bad = cuda::array_index_offsets(problem, array_stream(x.device())); });
  MEMBOUND_CHECK(bad.element < 0, OutOfRange, op, "index ", bad.index, " is out of range for axis ",
                 first_axis + bad.axis, " of ", problem.extents[bad.axis], " elements");
  return offsets;
}

void move_elements(ArrayGather& problem, Device device, const char* op) {
  ArrayOperand offsets;
  std::copy_n(problem.offset_strides, problem.dims.rank, offsets.strides);
  merge(problem.dims, {&problem.indexed, &problem.other, &offsets});
  std::copy_n(offsets.strides, problem.dims.rank, problem.offset_strides);
  route(
      device, op, [&] { cpu::array_gather(problem); },
      [&] { cuda::array_gather(problem, array_stream(device)); });
}

// The dimensions of x[:, i, j, :]: those before the indexed axes, of the indices, and behind.
struct Places {
  Dims shape;
  NDArray offsets;
  std::size_t before, among;

  Places(const NDArray& x, const std::vector<NDArray>& given, int first_axis, const char* op)
      : before(static_cast<std::size_t>(first_axis)) {
    MEMBOUND_CHECK(!given.empty() && first_axis >= 0 &&
                       first_axis + static_cast<int>(given.size()) <= x.rank(),
                   OutOfRange, op, "an array of ", x.rank(), " axes takes no ", given.size(),
                   " indices from axis ", first_axis, " on");
    std::vector<NDArray> indices;
    Dims common;
    for (const NDArray& index : given) {
      indices.push_back(as_indices(index, x.device(), op));
      common = geometry::broadcast_shapes(common, index.shape(), op);
    }
    among = common.size();
    const auto begin = x.shape().begin();
    shape.assign(begin, begin + first_axis);
    shape.insert(shape.end(), common.begin(), common.end());
    shape.insert(shape.end(), begin + first_axis + static_cast<int>(given.size()), x.shape().end());
    geometry::check_shape(shape, x.dtype(), op);
    if (geometry::size_of(shape) > 0 || geometry::size_of(common) > 0)
      offsets = offsets_of(indices, common, x, first_axis, op);
  }

  ArrayGather problem(const NDArray& x, std::size_t indexed_axes) const {
    ArrayGather problem;
    problem.dims = dims_of(shape);
    problem.indexed.data = x.data();
    problem.indexed.dtype = x.dtype();
    problem.offsets = offsets.as<std::int64_t>();
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      const bool is_index = axis >= before && axis < before + among;
      const std::size_t of_x = axis < before ? axis : axis - among + indexed_axes;
      problem.indexed.strides[axis] = is_index ? 0 : x.strides()[of_x];
      problem.offset_strides[axis] = is_index ? offsets.strides()[axis - before] : 0;
    }
    return problem;
  }
};

NDArray gathered(const NDArray& x, const std::vector<NDArray>& indices, int first_axis,
                 const char* op) {
  check_array_dtype(x.dtype(), op, "x");
  const Places places(x, indices, first_axis, op);
  NDArray result = NDArray::empty(places.shape, x.dtype(), x.device());
  if (result.size() == 0) return result;
  ArrayGather problem = places.problem(x, indices.size());
  problem.is_scatter = false;
  problem.other = operand_of(result, places.shape, op);
  move_elements(problem, x.device(), op);
  return result;
}

}  // namespace

NDArray gather(const NDArray& x, const std::vector<NDArray>& indices, int first_axis) {
  return gathered(x, indices, first_axis, "gather");
}

void scatter(NDArray& x, const std::vector<NDArray>& indices, int first_axis,
             const NDArray& values) {
  constexpr const char* kOp = "scatter";
  check_array_dtype(x.dtype(), kOp, "x");
  check_destination(x, kOp, "x");
  const Places places(x, indices, first_axis, kOp);
  NDArray source = values.to(x.device()).astype(x.dtype());
  geometry::broadcast_strides(source.shape(), source.strides(), places.shape, kOp);
  if (geometry::size_of(places.shape) == 0) return;
  if (may_overlap(source.view(), x.view())) source = source.copy();
  ArrayGather problem = places.problem(x, indices.size());
  problem.is_scatter = true;
  problem.other = operand_of(source, places.shape, kOp);
  move_elements(problem, x.device(), kOp);
}

NDArray take(const NDArray& x, const NDArray& indices, int axis) {
  return gathered(x, {indices}, geometry::normalised_axis(axis, x.rank(), "take"), "take");
}

NDArray take_along_axis(const NDArray& x, const NDArray& given, int axis) {
  constexpr const char* kOp = "take_along_axis";
  check_array_dtype(x.dtype(), kOp, "x");
  const auto place = static_cast<std::size_t>(geometry::normalised_axis(axis, x.rank(), kOp));
  MEMBOUND_CHECK(given.rank() == x.rank(), InvalidArgument, kOp, "argument 'indices' must have ",
                 x.rank(), " axes like 'x', got ", given.rank());
  const NDArray indices = as_indices(given, x.device(), kOp);
  Dims others = x.shape(), shape = indices.shape();
  others[place] = 1;
  shape[place] = 1;
  shape = geometry::broadcast_shapes(others, shape, kOp);
  shape[place] = indices.shape()[place];
  NDArray result = NDArray::empty(shape, x.dtype(), x.device());
  // Before the offsets: an index into an empty axis is an error, unless there is none.
  if (result.size() == 0) return result;
  const NDArray offsets =
      offsets_of({indices}, indices.shape(), x, static_cast<int>(place), kOp).broadcast_to(shape);
  const NDArray rows = x.slice(static_cast<int>(place), {0, 1, 1});
  ArrayGather problem;
  problem.is_scatter = false;
  problem.dims = dims_of(shape);
  problem.indexed = operand_of(rows.broadcast_to(shape), shape, kOp);
  problem.other = operand_of(result, shape, kOp);
  problem.offsets = offsets.as<std::int64_t>();
  std::copy(offsets.strides().begin(), offsets.strides().end(), problem.offset_strides);
  move_elements(problem, x.device(), kOp);
  return result;
}

std::vector<NDArray> nonzero(const NDArray& x) {
  constexpr const char* kOp = "nonzero";
  check_array_dtype(x.dtype(), kOp, "x");
  MEMBOUND_CHECK(x.rank() > 0, InvalidArgument, kOp,
                 "argument 'x' must have at least 1 axis, got an array of none");
  const NDArray mask = x.astype(DType::kBool).contiguous();
  ArrayNonzero problem;
  problem.mask = mask.as<bool>();
  problem.dims = dims_of(x.shape());
  problem.count = 0;
  if (x.size() > 0) {
    route(
        x.device(), kOp, [&] { problem.count = cpu::array_count_true(problem.mask, x.size()); },
        [&] {
          problem.count = cuda::array_count_true(problem.mask, x.size(), array_stream(x.device()));
        });
  }
  std::vector<NDArray> places;
  for (int axis = 0; axis < x.rank(); ++axis) {
    places.push_back(NDArray::empty({problem.count}, DType::kInt64, x.device()));
    problem.indices[axis] = places.back().as<std::int64_t>();
  }
  if (problem.count == 0) return places;
  route(
      x.device(), kOp, [&] { cpu::array_nonzero(problem); },
      [&] { cuda::array_nonzero(problem, array_stream(x.device())); });
  return places;
}

}  // namespace membound::array
