// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/array/geometry.hpp"
#include "core/route.hpp"
#include "membound/array/copy.hpp"
#include "membound/array/reduction.hpp"
#include "ops/array/operands.hpp"

namespace membound::array {

namespace {

DType default_dtype(DType dtype) {
  if (is_floating(dtype)) return dtype;
  const bool is_natural = is_integer(dtype) && !is_signed_integer(dtype);
  return is_natural ? DType::kUInt64 : DType::kInt64;
}

void erase(NDArray::Dims& dims, std::size_t axis) {
  dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(axis));
}

NDArray scan(ScanOp op, const NDArray& given, int axis, std::optional<DType> wanted,
             bool include_initial, const char* name) {
  check_array_dtype(given.dtype(), name, "x");
  const DType dtype = wanted.value_or(default_dtype(given.dtype()));
  const NDArray x =
      is_floating(dtype) != is_floating(given.dtype()) ||
              dtype_size(accumulate_dtype(dtype)) > dtype_size(accumulate_dtype(given.dtype()))
          ? given.astype(dtype)
          : given;
  const auto place = static_cast<std::size_t>(geometry::normalised_axis(axis, x.rank(), name));
  NDArray::Dims shape = x.shape(), rows = x.shape();
  shape[place] += include_initial;
  NDArray result = NDArray::empty(shape, dtype, x.device());
  if (result.size() == 0) return result;
  erase(rows, place);
  ArrayScan problem;
  problem.op = op;
  problem.include_initial = include_initial;
  problem.length = x.shape()[place];
  problem.rows = dims_of(rows);
  // Without the axis the strides of both are those of the rows.
  const auto operand = [&](const NDArray& array, std::int64_t& stride) {
    ArrayOperand of;
    of.data = array.data();
    of.dtype = array.dtype();
    NDArray::Dims strides = array.strides();
    stride = strides[place];
    erase(strides, place);
    std::copy(strides.begin(), strides.end(), of.strides);
    return of;
  };
  problem.result = operand(result, problem.result_stride);
  problem.source = operand(x, problem.source_stride);
  collapse(problem.rows, {&problem.result, &problem.source});
  route(
      x.device(), name, [&] { cpu::array_scan(problem); },
      [&] { cuda::array_scan(problem, array_stream(x.device())); });
  return result;
}

}  // namespace

NDArray cumulative_sum(const NDArray& x, int axis, std::optional<DType> dtype,
                       bool include_initial) {
  return scan(ScanOp::kSum, x, axis, dtype, include_initial, "cumulative_sum");
}
NDArray cumulative_prod(const NDArray& x, int axis, std::optional<DType> dtype,
                        bool include_initial) {
  return scan(ScanOp::kProd, x, axis, dtype, include_initial, "cumulative_prod");
}

}  // namespace membound::array
