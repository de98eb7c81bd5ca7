// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/array/adamw.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/array/geometry.hpp"
#include "core/check.hpp"
#include "core/layout.hpp"
#include "core/route.hpp"
#include "core/validate.hpp"
#include "ops/array/operands.hpp"

namespace membound::array {

namespace {

constexpr const char* kOp = "adamw";

void check_options(const AdamWOptions& options) {
  const auto check = [](double value, double limit, const char* name, const char* expected) {
    MEMBOUND_CHECK(value >= 0 && value < limit, InvalidArgument, kOp, "argument '", name,
                   "' must be ", expected, ", got ", value);
  };
  check(options.lr, HUGE_VAL, "lr", "finite and not negative");
  check(options.beta1, 1, "beta1", "at least 0 and below 1");
  check(options.beta2, 1, "beta2", "at least 0 and below 1");
  check(options.eps, HUGE_VAL, "eps", "finite and not negative");
  check(options.weight_decay, HUGE_VAL, "weight_decay", "finite and not negative");
  MEMBOUND_CHECK(options.step >= 1, InvalidArgument, kOp,
                 "argument 'step' must be at least 1, got ", options.step);
}

void check_array(const NDArray& array, const char* argument, const NDArray& param, DType expected) {
  MEMBOUND_CHECK(array.shape() == param.shape(), InvalidArgument, kOp, "argument '", argument,
                 "' must have its parameter's shape ", geometry::shape_text(param.shape()),
                 ", got ", geometry::shape_text(array.shape()));
  MEMBOUND_CHECK(array.dtype() == expected, TypeMismatch, kOp, "argument '", argument, "' must be ",
                 dtype_name(expected), " for a parameter of ", dtype_name(param.dtype()), ", got ",
                 dtype_name(array.dtype()));
}

void check_parameter(const AdamWParameter& of, Device device) {
  const DType dtype = of.param.dtype(), state = accumulate_dtype(dtype);
  MEMBOUND_CHECK(is_floating(dtype), TypeMismatch, kOp,
                 "argument 'params' must be floats of 16 to 64 bits, got ", dtype_name(dtype));
  check_same_device(of.param, device, kOp, "params");
  check_same_device(of.grad, device, kOp, "grads");
  check_same_device(of.exp_avg, device, kOp, "exp_avgs");
  check_same_device(of.exp_avg_sq, device, kOp, "exp_avg_sqs");
  check_array(of.grad, "grads", of.param,
              of.grad.dtype() == DType::kFloat32 ? DType::kFloat32 : dtype);
  check_array(of.exp_avg, "exp_avgs", of.param, state);
  check_array(of.exp_avg_sq, "exp_avg_sqs", of.param, state);
  check_destination(of.param, kOp, "params");
  check_destination(of.exp_avg, kOp, "exp_avgs");
  check_destination(of.exp_avg_sq, kOp, "exp_avg_sqs");
}

struct Place {
  const NDArray* array;
  ByteSpan span;
  const char* name;
  bool written;
};

// What is written shares no memory with anything else of the call.
void check_disjoint(const std::vector<AdamWParameter>& parameters) {
  std::vector<Place> places;
  places.reserve(4 * parameters.size());
  const auto add = [&](const NDArray& array, const char* name, bool written) {
    if (array.size() > 0) places.push_back({&array, byte_span(array.view()), name, written});
  };
  for (const AdamWParameter& of : parameters) {
    add(of.param, "params", true);
    add(of.grad, "grads", false);
    add(of.exp_avg, "exp_avgs", true);
    add(of.exp_avg_sq, "exp_avg_sqs", true);
  }
  std::sort(places.begin(), places.end(),
            [](const Place& a, const Place& b) { return a.span.first < b.span.first; });
  std::vector<const Place*> open;  // those whose spans reach the current one
  for (const Place& place : places) {
    open.erase(std::remove_if(open.begin(), open.end(),
                              [&](auto* other) { return other->span.last <= place.span.first; }),
               open.end());
    for (const Place* other : open) {
      const bool clash = (place.written || other->written) &&
                         may_overlap(place.array->view(), other->array->view());
      MEMBOUND_CHECK(!clash, InvalidArgument, kOp, "arrays of '", other->name, "' and '",
                     place.name, "' must not share memory");
    }
    open.push_back(&place);
  }
}

ArrayAdamW problem_of(const AdamWParameter& of) {
  const NDArray::Dims& shape = of.param.shape();
  ArrayAdamW problem;
  problem.dims = dims_of(shape);
  problem.param = operand_of(of.param, shape, kOp);
  problem.grad = operand_of(of.grad, shape, kOp);
  problem.exp_avg = operand_of(of.exp_avg, shape, kOp);
  problem.exp_avg_sq = operand_of(of.exp_avg_sq, shape, kOp);
  collapse(problem.dims, {&problem.param, &problem.grad, &problem.exp_avg, &problem.exp_avg_sq});
  return problem;
}

}  // namespace

void adamw(const std::vector<AdamWParameter>& parameters, const AdamWOptions& options) {
  check_options(options);
  if (parameters.empty()) return;
  const Device device = parameters.front().param.device();
  for (const AdamWParameter& of : parameters) check_parameter(of, device);
  check_disjoint(parameters);
  std::vector<ArrayAdamW> problems;
  problems.reserve(parameters.size());
  for (const AdamWParameter& of : parameters) {
    if (of.param.size() > 0) problems.push_back(problem_of(of));
  }
  const auto count = static_cast<std::int64_t>(problems.size());
  const auto step = static_cast<double>(options.step);
  const AdamWFactors factors{1 - options.lr * options.weight_decay,
                             options.beta1,
                             options.beta2,
                             options.lr / (1 - std::pow(options.beta1, step)),
                             std::sqrt(1 - std::pow(options.beta2, step)),
                             options.eps};
  route(
      device, kOp, [&] { cpu::array_adamw(problems.data(), count, factors); },
      [&] { cuda::array_adamw(problems.data(), count, factors, array_stream(device)); });
}

}  // namespace membound::array
