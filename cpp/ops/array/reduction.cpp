// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/array/reduction.hpp"

#include <algorithm>
#include <numeric>

#include "core/array/geometry.hpp"
#include "core/check.hpp"
#include "core/route.hpp"
#include "membound/array/copy.hpp"
#include "ops/array/operands.hpp"

namespace membound::array {

namespace {

constexpr const char* kNames[] = {"sum", "prod", "min",  "max", "argmin",       "argmax",
                                  "any", "all",  "mean", "var", "count_nonzero"};

// Sums and products of integers have 64 bits.
DType default_dtype(DType dtype) {
  if (is_floating(dtype)) return dtype;
  const bool is_natural = is_integer(dtype) && !is_signed_integer(dtype);
  return is_natural ? DType::kUInt64 : DType::kInt64;
}

// The axes of an array, kept ones and reduced ones apart.
struct Axes {
  std::vector<bool> reduced;
  NDArray::Dims kept_shape, reduced_shape, result_shape;
};

Axes split_axes(const NDArray& x, const ReduceOptions& options, const char* op) {
  Axes axes;
  const int rank = x.rank();
  axes.reduced.assign(static_cast<std::size_t>(rank), !options.axes.has_value());
  if (options.axes)
    axes.reduced = geometry::axis_mask(geometry::normalised_axes(*options.axes, rank, op), rank);
  for (std::size_t axis = 0; axis < axes.reduced.size(); ++axis) {
    const std::int64_t extent = x.shape()[axis];
    (axes.reduced[axis] ? axes.reduced_shape : axes.kept_shape).push_back(extent);
    if (!axes.reduced[axis] || options.keepdims)
      axes.result_shape.push_back(axes.reduced[axis] ? 1 : extent);
  }
  return axes;
}

// The strides of the kept axes, and of the reduced ones.
ArrayOperand split_strides(const NDArray& x, const Axes& axes, std::int64_t* reduced_strides) {
  ArrayOperand operand;
  operand.data = x.data();
  operand.dtype = x.dtype();
  int kept = 0;
  for (std::size_t axis = 0; axis < axes.reduced.size(); ++axis) {
    (axes.reduced[axis] ? *reduced_strides++ : operand.strides[kept++]) = x.strides()[axis];
  }
  return operand;
}

void collapse_reduced(ArrayReduction& problem) {
  ArrayOperand only;
  only.data = nullptr;
  std::copy_n(problem.reduced_strides, problem.reduced.rank, only.strides);
  const bool is_arg = problem.op == ReduceOp::kArgMin || problem.op == ReduceOp::kArgMax;
  // Along a single axis the order of elements stays: bits do not depend on its stride.
  if (is_arg || problem.reduced.rank <= 1) {
    merge(problem.reduced, {&only});
  } else {
    only.data = problem.source.data;
    only.dtype = problem.source.dtype;
    collapse(problem.reduced, {&only});
    problem.source.data = only.data;
  }
  std::copy_n(only.strides, problem.reduced.rank, problem.reduced_strides);
}

// centre: null, or the means as contiguous totals over the kept axes.
void reduce_into(const NDArray& result, const NDArray& x, const Axes& axes, ReduceOp op,
                 double divisor, const NDArray* centre, const char* name) {
  if (result.size() == 0) return;
  ArrayReduction problem;
  problem.op = op;
  problem.divisor = divisor;
  problem.kept = dims_of(axes.kept_shape);
  problem.reduced = dims_of(axes.reduced_shape);
  problem.source = split_strides(x, axes, problem.reduced_strides);
  // Axes of one element do not count: the result's strides are those of its kept axes.
  problem.result = operand_of(result.reshape(axes.kept_shape), axes.kept_shape, name);
  if (x.size() > 0) collapse_reduced(problem);
  if (centre != nullptr) {
    problem.centre = operand_of(centre->reshape(axes.kept_shape), axes.kept_shape, name);
    collapse(problem.kept, {&problem.source, &problem.result, &problem.centre});
  } else {
    collapse(problem.kept, {&problem.source, &problem.result});
  }
  route(
      x.device(), name, [&] { cpu::array_reduce(problem); },
      [&] { cuda::array_reduce(problem, array_stream(x.device())); });
}

NDArray reduced(const NDArray& x, const Axes& axes, ReduceOp op, DType dtype, const char* name,
                double divisor = 1, const NDArray* centre = nullptr) {
  NDArray result = NDArray::empty(axes.result_shape, dtype, x.device());
  reduce_into(result, x, axes, op, divisor, centre, name);
  return result;
}

double size_of(const Axes& axes) {
  return static_cast<double>(geometry::size_of(axes.reduced_shape));
}

NDArray variance(const NDArray& x, const Axes& axes, double correction, const char* name) {
  const NDArray centre =
      reduced(x, axes, ReduceOp::kSum, accumulate_dtype(x.dtype()), name, size_of(axes));
  const double divisor = std::max(size_of(axes) - correction, 0.0);
  return reduced(x, axes, ReduceOp::kSquaredDeviations, x.dtype(), name, divisor, &centre);
}

void check_not_empty(const Axes& axes, const char* op) {
  MEMBOUND_CHECK(geometry::size_of(axes.reduced_shape) > 0, InvalidArgument, op,
                 "an array without elements along the reduced axes has no ", op);
}

}  // namespace

NDArray reduce(Reduction op, const NDArray& given, const ReduceOptions& options) {
  const char* name = kNames[static_cast<int>(op)];
  check_array_dtype(given.dtype(), name, "x");
  const Axes axes = split_axes(given, options, name);
  const DType dtype = options.dtype.value_or(default_dtype(given.dtype()));
  switch (op) {
    case Reduction::kSum:
    case Reduction::kProd: {
      // In the arithmetic of the result: floats if that is a float.
      const NDArray x =
          is_floating(dtype) == is_floating(given.dtype()) &&
                  dtype_size(accumulate_dtype(dtype)) <= dtype_size(accumulate_dtype(given.dtype()))
              ? given
              : given.astype(dtype);
      return reduced(x, axes, op == Reduction::kSum ? ReduceOp::kSum : ReduceOp::kProd, dtype,
                     name);
    }
    case Reduction::kMin:
    case Reduction::kMax:
      check_not_empty(axes, name);
      return reduced(given, axes, op == Reduction::kMin ? ReduceOp::kMin : ReduceOp::kMax,
                     given.dtype(), name);
    case Reduction::kArgMin:
    case Reduction::kArgMax:
      check_not_empty(axes, name);
      return reduced(given, axes, op == Reduction::kArgMin ? ReduceOp::kArgMin : ReduceOp::kArgMax,
                     DType::kInt64, name);
    case Reduction::kAny: return reduced(given, axes, ReduceOp::kAny, DType::kBool, name);
    case Reduction::kAll: return reduced(given, axes, ReduceOp::kAll, DType::kBool, name);
    case Reduction::kCountNonzero:
      return reduced(given.astype(DType::kBool), axes, ReduceOp::kSum, DType::kInt64, name);
    case Reduction::kMean:
    case Reduction::kVar: break;
  }
  const NDArray x = is_floating(given.dtype()) ? given : given.astype(DType::kFloat64);
  if (op == Reduction::kVar) return variance(x, axes, options.correction, name);
  return reduced(x, axes, ReduceOp::kSum, x.dtype(), name, size_of(axes));
}

}  // namespace membound::array
