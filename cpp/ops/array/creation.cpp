// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
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

// Of a number that is not floating; int64 and uint64 fit.
__int128 whole_of(Scalar scalar) {
  return scalar.kind == Scalar::Kind::kUnsigned ? __int128{scalar.natural}
                                                : __int128{scalar.integer};
}
void check_whole(__int128 number, DType dtype, const char* op) {
  if (number > INT64_MAX) return check_scalar(static_cast<std::uint64_t>(number), dtype, op);
  check_scalar(static_cast<std::int64_t>(number), dtype, op);
}

// Numbers before `stop`: exactly, where doubles are too coarse.
double length_of(Scalar start, Scalar stop, Scalar step) {
  for (const Scalar& one : {start, stop, step}) {
    if (one.kind == Scalar::Kind::kFloating)
      return std::ceil((real_of(stop) - real_of(start)) / real_of(step));
  }
  const __int128 by = whole_of(step), distance = whole_of(stop) - whole_of(start);
  return static_cast<double>(distance / by + (distance % by != 0 && (distance > 0) == (by > 0)));
}

// start, start + step ... in unsigned integers of the dtype's size, which wrap to the same bits.
template <class T>
void count_up(NDArray& result, __int128 start, __int128 step) {
  T* to = static_cast<T*>(result.data());
  T value = static_cast<T>(start);
  const T by = static_cast<T>(step);
  const std::int64_t count = result.size();
  for (std::int64_t i = 0; i < count; ++i, value = static_cast<T>(value + by)) to[i] = value;
}

// start + i * step, rounded to T.
template <class T>
NDArray evenly_spaced(double start, double step, std::int64_t count) {
  constexpr std::int64_t kBlock = 4096;  // of an int, whose conversion to double is vectorised
  NDArray result = NDArray::empty({count}, ArrayDType<T>::value);
  for (std::int64_t first = 0; first < count; first += kBlock) {
    T* to = result.as<T>() + first;
    const auto before = static_cast<double>(first);
    const int n = static_cast<int>(std::min(kBlock, count - first));
    for (int i = 0; i < n; ++i) to[i] = static_cast<T>(start + (before + i) * step);
  }
  return result;
}
NDArray evenly_spaced(double start, double step, std::int64_t count, DType dtype) {
  if (dtype == DType::kFloat32) return evenly_spaced<float>(start, step, count);
  return evenly_spaced<double>(start, step, count).astype(dtype);
}

}  // namespace

NDArray arange(Scalar start, Scalar stop, Scalar step, DType dtype, Device device) {
  constexpr const char* kOp = "arange";
  check_array_dtype(dtype, kOp, "dtype");
  const double first = real_of(start), pace = real_of(step);
  MEMBOUND_CHECK(pace != 0 && std::isfinite(pace), InvalidArgument, kOp,
                 "argument 'step' must be finite and not 0, got ", pace);
  const double length = length_of(start, stop, step);
  MEMBOUND_CHECK(length <= 0x1p55, InvalidArgument, kOp,
                 "the range must have at most 2^55 elements");
  const auto count = static_cast<std::int64_t>(length > 0 ? length : 0);
  const bool whole = start.kind != Scalar::Kind::kFloating && step.kind != Scalar::Kind::kFloating;
  if (whole && is_integer(dtype)) {
    const __int128 from = whole_of(start), by = whole_of(step);
    if (count > 0)
      for (const __int128 end : {from, from + (count - 1) * by}) check_whole(end, dtype, kOp);
    NDArray result = NDArray::empty({count}, dtype);
    switch (dtype_size(dtype)) {
      case 1: count_up<std::uint8_t>(result, from, by); break;
      case 2: count_up<std::uint16_t>(result, from, by); break;
      case 4: count_up<std::uint32_t>(result, from, by); break;
      default: count_up<std::uint64_t>(result, from, by);
    }
    return result.to(device);
  }
  return evenly_spaced(first, pace, count, dtype).to(device);
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
  NDArray result = evenly_spaced(start, step, count, dtype);
  if (endpoint && parts > 0) result.slice(0, {parts, count, 1}).fill(stop);
  return result.to(device);
}

}  // namespace membound::array
