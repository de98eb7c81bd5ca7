// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/array/stencil.hpp"

#include "core/array/geometry.hpp"
#include "core/check.hpp"
#include "core/route.hpp"
#include "core/validate.hpp"
#include "membound/array/copy.hpp"
#include "membound/array/elementwise.hpp"
#include "membound/array/reduction.hpp"
#include "ops/array/operands.hpp"

namespace membound::array {

namespace {

// Checked operands, contiguous and of the dtype that is computed in.
struct Stencil {
  const char* op;
  std::size_t axis;
  Boundary boundary;
  NDArray x, weights;
  DType x_dtype, weights_dtype;

  std::int64_t taps() const { return weights.size(); }
  std::int64_t radius() const { return taps() / 2; }
  std::int64_t length() const { return x.shape()[axis]; }
  std::int64_t result_length() const {
    return boundary == Boundary::kValid ? length() - 2 * radius() : length();
  }
  NDArray::Dims shape_with(std::int64_t extent) const {
    NDArray::Dims shape = x.shape();
    shape[axis] = extent;
    return shape;
  }
};

void check_floats(const NDArray& array, Device device, const char* op, const char* argument) {
  MEMBOUND_CHECK(is_floating(array.dtype()), TypeMismatch, op, "argument '", argument,
                 "' must be floats of 16 to 64 bits, got ", dtype_name(array.dtype()));
  check_same_device(array, device, op, argument);
}

Stencil checked(const NDArray& x, const NDArray& weights, const StencilOptions& options,
                const char* op) {
  check_floats(x, x.device(), op, "x");
  check_floats(weights, x.device(), op, "weights");
  MEMBOUND_CHECK(weights.rank() == 1 && weights.size() % 2 == 1, InvalidArgument, op,
                 "argument 'weights' must have one axis of odd length, got shape ",
                 geometry::shape_text(weights.shape()));
  MEMBOUND_CHECK(x.rank() > 0, InvalidArgument, op, "argument 'x' must have at least 1 axis");
  const int axis = geometry::normalised_axis(options.axis, x.rank(), op);
  const DType dtype = accumulate_dtype(promote(x.dtype(), weights.dtype()));
  Stencil stencil{op,
                  static_cast<std::size_t>(axis),
                  options.boundary,
                  x.astype(dtype).contiguous(),
                  weights.astype(dtype).contiguous(),
                  promote(x.dtype(), weights.dtype()),
                  weights.dtype()};
  MEMBOUND_CHECK(stencil.result_length() >= 0, InvalidArgument, op,
                 "argument 'x' must have at least ", stencil.taps() - 1, " elements on axis ", axis,
                 " for ", stencil.taps(), " weights, got ", stencil.length());
  return stencil;
}

// What back ends read: x seen as (outer, length, inner). origin: where the first weight meets the
// axis for result 0.
ArrayStencil problem_of(const Stencil& stencil, std::int64_t result_length) {
  ArrayStencil problem;
  problem.dtype = stencil.x.dtype();
  problem.boundary = stencil.boundary;
  problem.source = stencil.x.data();
  problem.weights = stencil.weights.data();
  problem.taps = stencil.taps();
  problem.origin = stencil.boundary == Boundary::kValid ? 0 : -stencil.radius();
  problem.length = stencil.length();
  problem.result_length = result_length;
  problem.inner = 1;
  for (std::size_t axis = stencil.axis + 1; axis < stencil.x.shape().size(); ++axis)
    problem.inner *= stencil.x.shape()[axis];
  problem.outer = stencil.x.size() / std::max<std::int64_t>(problem.inner * problem.length, 1);
  return problem;
}

// The stencil's results from `origin` on.
NDArray apply(const Stencil& stencil, std::int64_t result_length, std::int64_t origin) {
  const Device device = stencil.x.device();
  NDArray result = NDArray::empty(stencil.shape_with(result_length), stencil.x.dtype(), device);
  if (result.size() == 0) return result;
  if (stencil.x.size() == 0) {
    fill(result, 0);
    return result;
  }
  ArrayStencil problem = problem_of(stencil, result_length);
  problem.origin = origin;
  problem.result = result.data();
  route(
      device, stencil.op, [&] { cpu::array_stencil(problem); },
      [&] { cuda::array_stencil(problem, array_stream(device)); });
  return result;
}

// The gradient of x at `beyond` more places than there are on either side, which were read from
// somewhere else: the stencil of dy with reversed weights, for every place that a weight can meet.
NDArray spread(const Stencil& stencil, const NDArray& dy, std::int64_t beyond) {
  Stencil reversed = stencil;
  reversed.boundary = Boundary::kZero;
  reversed.x = dy;
  reversed.weights = stencil.weights.flip().copy();
  const bool is_valid = stencil.boundary == Boundary::kValid;
  const std::int64_t first = is_valid ? -2 * stencil.radius() : -stencil.radius();
  return apply(reversed, stencil.length() + 2 * beyond, first - beyond);
}

NDArray x_gradient(const Stencil& stencil, const NDArray& dy) {
  const std::int64_t radius = stencil.radius(), length = stencil.length();
  const bool reads_beyond =
      stencil.boundary != Boundary::kValid && stencil.boundary != Boundary::kZero && length > 0;
  if (!reads_beyond) return spread(stencil, dy, 0);
  const NDArray all = spread(stencil, dy, radius);
  const int axis = static_cast<int>(stencil.axis);
  const auto slice = [&](const NDArray& of, std::int64_t first, std::int64_t last) {
    return of.slice(axis, {first, last, 1});
  };
  const NDArray dx = slice(all, radius, radius + length).copy();
  const auto add = [&](std::int64_t place) {
    const std::int64_t source = boundary_index(stencil.boundary, place, length);
    NDArray to = slice(dx, source, source + 1);
    const NDArray from = slice(all, place + radius, place + radius + 1);
    const Operand terms[] = {to, from};
    elementwise_into(to, ElementwiseOp::kAdd, terms, 2);
  };
  for (std::int64_t at = -radius; at < 0; ++at) add(at);
  for (std::int64_t at = length; at < length + radius; ++at) add(at);
  return dx;
}

NDArray weights_gradient(const Stencil& stencil, const NDArray& dy) {
  ArrayStencil problem = problem_of(stencil, stencil.result_length());
  const Device device = stencil.x.device();
  std::int64_t blocks = 0;
  const auto count = [&](auto of) { blocks = dy.size() > 0 ? of(problem) : 0; };
  route(
      device, stencil.op, [&] { count(cpu::array_stencil_blocks); },
      [&] { count(cuda::array_stencil_blocks); });
  const NDArray sums = NDArray::empty({stencil.taps(), blocks}, dy.dtype(), device);
  problem.result = dy.data();
  if (blocks > 0) {
    route(
        device, stencil.op, [&] { cpu::array_stencil_dots(problem, sums.data()); },
        [&] { cuda::array_stencil_dots(problem, sums.data(), array_stream(device)); });
  }
  return sum(sums, {NDArray::Dims{1}});
}

}  // namespace

NDArray stencil_1d(const NDArray& x, const NDArray& weights, const StencilOptions& options) {
  const Stencil stencil = checked(x, weights, options, "stencil_1d");
  const bool is_valid = options.boundary == Boundary::kValid;
  return apply(stencil, stencil.result_length(), is_valid ? 0 : -stencil.radius())
      .astype(stencil.x_dtype);
}

StencilGradients stencil_1d_backward(const NDArray& dy, const NDArray& x, const NDArray& weights,
                                     const StencilOptions& options) {
  constexpr const char* kOp = "stencil_1d_backward";
  const Stencil stencil = checked(x, weights, options, kOp);
  check_floats(dy, x.device(), kOp, "dy");
  const NDArray::Dims shape = stencil.shape_with(stencil.result_length());
  MEMBOUND_CHECK(dy.shape() == shape, InvalidArgument, kOp, "argument 'dy' must have shape ",
                 geometry::shape_text(shape), ", got ", geometry::shape_text(dy.shape()));
  const NDArray gradient = dy.astype(stencil.x.dtype()).contiguous();
  return {x_gradient(stencil, gradient).astype(x.dtype()),
          weights_gradient(stencil, gradient).astype(weights.dtype())};
}

}  // namespace membound::array
