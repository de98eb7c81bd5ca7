// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/array/sorting.hpp"

#include "core/array/geometry.hpp"
#include "core/check.hpp"
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

NDArray searchsorted(const NDArray& sorted, const NDArray& wanted, bool right) {
  const char* const op = "searchsorted";
  check_array_dtype(sorted.dtype(), op, "sorted");
  check_same_device(wanted, sorted.device(), op, "wanted");
  MEMBOUND_CHECK(sorted.rank() == 1, InvalidArgument, op,
                 "argument 'sorted' must be a vector, got ", sorted.rank(), " axes");
  MEMBOUND_CHECK(sorted.dtype() == wanted.dtype(), TypeMismatch, op, "argument 'wanted' must be ",
                 dtype_name(sorted.dtype()), " as 'sorted', got ", dtype_name(wanted.dtype()));
  const DType dtype =
      is_floating(sorted.dtype()) ? accumulate_dtype(sorted.dtype()) : sorted.dtype();
  const NDArray vector = sorted.astype(dtype).contiguous(),
                values = wanted.astype(dtype).contiguous(),
                places = NDArray::empty(wanted.shape(), DType::kInt64, wanted.device());
  if (wanted.size() == 0) return places;
  const ArraySearch problem{vector.data(), values.data(), places.as<std::int64_t>(),
                            dtype,         vector.size(), values.size(),
                            right};
  route(
      places.device(), op, [&] { cpu::array_search(problem); },
      [&] { cuda::array_search(problem, array_stream(places.device())); });
  return places;
}

}  // namespace membound::array
