// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/array/geometry.hpp"
#include "core/check.hpp"
#include "core/route.hpp"
#include "membound/array/copy.hpp"
#include "membound/array/elementwise.hpp"
#include "membound/array/linear_algebra.hpp"
#include "ops/array/operands.hpp"

namespace membound::array {

namespace {

constexpr const char* kOp = "matmul";

void set_matrix(const NDArray& array, const NDArray::Dims& batch, ArrayOperand& operand,
                std::int64_t (&strides)[2]) {
  const std::size_t last = array.shape().size() - 1;
  strides[0] = array.strides()[last - 1];
  strides[1] = array.strides()[last];
  const NDArray::Dims outer(array.shape().begin(), array.shape().end() - 2);
  const NDArray::Dims outer_strides(array.strides().begin(), array.strides().end() - 2);
  const NDArray::Dims spread = geometry::broadcast_strides(outer, outer_strides, batch, kOp);
  operand.data = array.data();
  operand.dtype = array.dtype();
  std::copy(spread.begin(), spread.end(), operand.strides);
}

NDArray::Dims batch_of(const NDArray& array) {
  return NDArray::Dims(array.shape().begin(), array.shape().end() - 2);
}

}  // namespace

NDArray matmul(const NDArray& x1, const NDArray& x2) {
  check_array_dtype(x1.dtype(), kOp, "x1");
  check_array_dtype(x2.dtype(), kOp, "x2");
  check_same_device(x2, x1.device(), kOp, "x2");
  const DType dtype = promote(x1.dtype(), x2.dtype());
  MEMBOUND_CHECK(dtype != DType::kBool, TypeMismatch, kOp,
                 "its operands must be integers or floats, got bool");
  MEMBOUND_CHECK(x1.rank() > 0 && x2.rank() > 0, InvalidArgument, kOp,
                 "its operands must have at least 1 axis, got shapes ",
                 geometry::shape_text(x1.shape()), " and ", geometry::shape_text(x2.shape()));
  const bool is_row = x1.rank() == 1, is_column = x2.rank() == 1;
  const NDArray a = (is_row ? x1.expand_dims(0) : x1).astype(dtype);
  const NDArray b = (is_column ? x2.expand_dims(1) : x2).astype(dtype);
  const std::int64_t rows = a.shape()[a.shape().size() - 2], inner = a.shape().back();
  const std::int64_t columns = b.shape().back();
  MEMBOUND_CHECK(b.shape()[b.shape().size() - 2] == inner, InvalidArgument, kOp, "shapes ",
                 geometry::shape_text(x1.shape()), " and ", geometry::shape_text(x2.shape()),
                 " do not fit: ", inner, " columns meet ", b.shape()[b.shape().size() - 2],
                 " rows");
  const NDArray::Dims batch = geometry::broadcast_shapes(batch_of(a), batch_of(b), kOp);
  NDArray::Dims shape = batch;
  shape.push_back(rows);
  shape.push_back(columns);
  NDArray result = NDArray::empty(shape, dtype, a.device());
  if (result.size() > 0 && inner == 0) fill(result, 0);
  if (result.size() > 0 && inner > 0) {
    ArrayMatmul problem;
    problem.dtype = dtype;
    problem.batch = dims_of(batch);
    problem.rows = rows;
    problem.columns = columns;
    problem.inner = inner;
    set_matrix(result, batch, problem.result, problem.result_strides);
    set_matrix(a, batch, problem.a, problem.a_strides);
    set_matrix(b, batch, problem.b, problem.b_strides);
    merge(problem.batch, {&problem.result, &problem.a, &problem.b});
    route(
        a.device(), kOp, [&] { cpu::array_matmul(problem); },
        [&] { cuda::array_matmul(problem, array_stream(a.device())); });
  }
  if (is_column) result = result.squeeze({-1});
  return is_row ? result.squeeze({is_column ? -1 : -2}) : result;
}

}  // namespace membound::array
