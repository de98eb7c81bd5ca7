// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/array/sorting.hpp"

#include "core/array/geometry.hpp"
#include "core/route.hpp"
#include "membound/array/copy.hpp"
#include "ops/array/operands.hpp"

namespace membound::array {

namespace {

// Rows along the last axis, in memory of their own.
NDArray rows_of(const NDArray& x, int axis, const char* op) {
  check_array_dtype(x.dtype(), op, "x");
  return x.moveaxis(geometry::normalised_axis(axis, x.rank(), op), -1).copy();
}

void run(const NDArray& rows, std::int64_t* indices, bool descending, const char* op) {
  if (rows.size() == 0) return;
  const std::int64_t length = rows.shape().back();
  const ArraySort problem{rows.data(),          indices, rows.dtype(),
                          rows.size() / length, length,  descending};
  route(
      rows.device(), op, [&] { cpu::array_sort(problem); },
      [&] { cuda::array_sort(problem, array_stream(rows.device())); });
}

}  // namespace

NDArray sort(const NDArray& x, int axis, bool descending) {
  const NDArray rows = rows_of(x, axis, "sort");
  run(rows, nullptr, descending, "sort");
  return rows.moveaxis(-1, axis).contiguous();
}

NDArray argsort(const NDArray& x, int axis, bool descending) {
  const NDArray rows = rows_of(x, axis, "argsort");
  const NDArray indices = NDArray::empty(rows.shape(), DType::kInt64, x.device());
  run(rows, indices.as<std::int64_t>(), descending, "argsort");
  return indices.moveaxis(-1, axis).contiguous();
}

}  // namespace membound::array
