// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/array/random.hpp"

#include <cmath>

#include "core/array/philox.hpp"
#include "core/check.hpp"
#include "core/route.hpp"
#include "ops/array/operands.hpp"

namespace membound::array {

namespace {

NDArray filled(ArrayRandom& problem, RandomState state, NDArray::Dims shape, DType dtype,
               Device device, const char* op) {
  NDArray result = NDArray::empty(std::move(shape), dtype, device);
  problem.seed = state.seed;
  problem.counter = state.counter;
  problem.result = result.data();
  problem.dtype = dtype;
  problem.count = result.size();
  if (problem.count == 0) return result;
  route(
      device, op, [&] { cpu::array_random(problem); },
      [&] { cuda::array_random(problem, array_stream(device)); });
  return result;
}

NDArray reals(RandomKind kind, RandomState state, NDArray::Dims shape, DType dtype, Device device,
              double low, double high, const char* op) {
  MEMBOUND_CHECK(is_floating(dtype), TypeMismatch, op, "argument 'dtype' must be a float, got ",
                 dtype_name(dtype));
  MEMBOUND_CHECK(std::isfinite(low) && std::isfinite(high), InvalidArgument, op,
                 "its parameters must be finite, got ", low, " and ", high);
  ArrayRandom problem{};
  problem.kind = kind;
  problem.low = low;
  problem.high = high;
  return filled(problem, state, std::move(shape), dtype, device, op);
}

}  // namespace

std::uint64_t random_blocks(std::int64_t size, DType dtype) {
  const int each = philox::per_block(dtype);
  return static_cast<std::uint64_t>((size + each - 1) / each);
}

NDArray random_uniform(RandomState state, NDArray::Dims shape, DType dtype, Device device,
                       double low, double high) {
  constexpr const char* kOp = "uniform";
  MEMBOUND_CHECK(low <= high, InvalidArgument, kOp, "argument 'high' must not be below ", low,
                 ", got ", high);
  return reals(RandomKind::kUniform, state, std::move(shape), dtype, device, low, high, kOp);
}

NDArray random_normal(RandomState state, NDArray::Dims shape, DType dtype, Device device,
                      double mean, double deviation) {
  constexpr const char* kOp = "normal";
  MEMBOUND_CHECK(deviation >= 0, InvalidArgument, kOp,
                 "argument 'deviation' must not be negative, got ", deviation);
  return reals(RandomKind::kNormal, state, std::move(shape), dtype, device, mean, deviation, kOp);
}

NDArray random_integers(RandomState state, NDArray::Dims shape, DType dtype, Device device,
                        std::int64_t lowest, std::uint64_t range) {
  MEMBOUND_CHECK(is_integer(dtype), TypeMismatch, "integers",
                 "argument 'dtype' must be an integer, got ", dtype_name(dtype));
  ArrayRandom problem{};
  problem.kind = RandomKind::kIntegers;
  problem.lowest = lowest;
  problem.range = range;
  return filled(problem, state, std::move(shape), dtype, device, "integers");
}

NDArray random_bits(RandomState state, NDArray::Dims shape, Device device) {
  return random_integers(state, std::move(shape), DType::kUInt64, device, 0, 0);
}

}  // namespace membound::array
