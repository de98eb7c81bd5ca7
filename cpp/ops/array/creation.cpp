// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "core/check.hpp"
#include "membound/array/copy.hpp"
#include "membound/array/elementwise.hpp"
#include "ops/array/operands.hpp"

// Ranges are made on the CPU and carried to where they are wanted.
namespace membound::array {

namespace {

double real_of(Scalar scalar) {
  if (scalar.kind == Scalar::Kind::kFloating) return scalar.real;
  return scalar.kind == Scalar::Kind::kUnsigned ? static_cast<double>(scalar.natural)
                                                : static_cast<double>(scalar.integer);
}

template <class T, class Element>
NDArray filled(std::int64_t count, DType dtype, Device device, Element element) {
  NDArray values = NDArray::empty({count}, ArrayDType<T>::value);
  T* data = values.as<T>();
  for (std::int64_t i = 0; i < count; ++i) data[i] = element(i);
  return values.astype(dtype).to(device);
}

}  // namespace

NDArray arange(Scalar start, Scalar stop, Scalar step, DType dtype, Device device) {
  constexpr const char* kOp = "arange";
  check_array_dtype(dtype, kOp, "dtype");
  const double first = real_of(start), pace = real_of(step);
  MEMBOUND_CHECK(pace != 0 && std::isfinite(pace), InvalidArgument, kOp,
                 "argument 'step' must be finite and not 0, got ", pace);
  const double length = std::ceil((real_of(stop) - first) / pace);
  MEMBOUND_CHECK(length <= 0x1p55, InvalidArgument, kOp,
                 "the range must have at most 2^55 elements");
  const auto count = static_cast<std::int64_t>(length > 0 ? length : 0);
  const bool whole = start.kind != Scalar::Kind::kFloating && step.kind != Scalar::Kind::kFloating;
  if (whole) {
    const auto from = static_cast<std::uint64_t>(start.integer);
    const auto by = static_cast<std::uint64_t>(step.integer);
    const auto at = [&](std::int64_t i) {
      return static_cast<std::int64_t>(from + static_cast<std::uint64_t>(i) * by);
    };
    if (count > 0 && is_integer(dtype) && dtype != DType::kUInt64)
      for (const std::int64_t end : {at(0), at(count - 1)}) check_scalar(end, dtype, kOp);
    return filled<std::int64_t>(count, dtype, device, at);
  }
  return filled<double>(count, dtype, device,
                        [&](std::int64_t i) { return first + static_cast<double>(i) * pace; });
}

NDArray linspace(double start, double stop, std::int64_t count, DType dtype, Device device,
                 bool endpoint) {
  constexpr const char* kOp = "linspace";
  MEMBOUND_CHECK(is_floating(dtype), TypeMismatch, kOp,
                 "argument 'dtype' must be float16, bfloat16, float32 or float64, got ",
                 dtype_name(dtype));
  MEMBOUND_CHECK(count >= 0, InvalidArgument, kOp, "argument 'num' must not be negative, got ",
                 count);
  const std::int64_t parts = endpoint ? count - 1 : count;
  const double step = parts > 0 ? (stop - start) / static_cast<double>(parts) : 0.0;
  return filled<double>(count, dtype, device, [&](std::int64_t i) {
    return endpoint && i == parts && i > 0 ? stop : start + static_cast<double>(i) * step;
  });
}

}  // namespace membound::array
