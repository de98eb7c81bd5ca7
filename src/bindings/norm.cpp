// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "norm.hpp"

#include <algorithm>
#include <limits>

#include "core/check.hpp"
#include "errors.hpp"
#include "norm_ops.hpp"
#include "normalized_shape.hpp"

namespace membound::python {

Rounding rounding_from_python(PyObject* value, const char* op) {
  if (value == nullptr) return Rounding::kOnce;
  if (PyUnicode_Check(value)) {
    if (PyUnicode_CompareWithASCIIString(value, "once") == 0) return Rounding::kOnce;
    if (PyUnicode_CompareWithASCIIString(value, "before_weight") == 0) {
      return Rounding::kBeforeWeight;
    }
  }
  fail<InvalidArgument>(op, "argument 'rounding' must be 'once' or 'before_weight', got ",
                        repr_of(value));
}

const char* rounding_name(Rounding rounding) {
  return rounding == Rounding::kOnce ? "once" : "before_weight";
}

namespace {

// Also of membound.jax's functions.
const char* statistics_flag(const NormCall& given) {
  return given.centred ? "return_stats" : "return_rstd";
}

NormOptions options_of(const NormCall& given) {
  NormOptions options;
  RmsNormOptions& numbers = options.numbers;
  if (given.eps != Py_None) numbers.eps = number_or(given.eps, numbers.eps, {given.op, "eps"});
  numbers.weight_offset =
      number_or(given.weight_offset, given.default_weight_offset, {given.op, "weight_offset"});
  numbers.rounding = rounding_from_python(given.rounding, given.op);
  options.centred = given.centred;
  options.norm_before_gate = flag_or(given.norm_before_gate, true, {given.op, "norm_before_gate"});
  return options;
}

nb::object call_jax(const ArrayCall& call, const NormCall& given_call, const NormOptions& options,
                    bool with_statistics) {
  const bool centred = given_call.centred;
  nb::list arrays;
  arrays.append(nb::handle(given_call.x));
  if (given_call.residual) arrays.append(call.check_jax_input(given_call.residual, "residual"));
  if (given_call.z) arrays.append(call.check_jax_input(given_call.z, "z"));
  arrays.append(call.check_jax_input(given_call.weight, "weight"));
  if (centred) arrays.append(call.check_jax_input(given_call.bias, "bias"));
  call.check_jax_absent(given_call.out, "out", "which cannot be written");
  call.check_jax_absent(given_call.residual_out, "residual_out", "which cannot be written");
  call.check_jax_absent(given_call.stream, "stream", "whose stream XLA picks");
  call.check_jax_absent(given_call.device, "device", "which stay where they are");
  nb::dict keywords;
  if (given_call.eps == Py_None) {
    keywords["eps"] = nb::none();
  } else {
    keywords["eps"] = options.numbers.eps;
  }
  keywords["weight_offset"] = options.numbers.weight_offset;
  if (!centred) keywords["rounding"] = rounding_name(options.numbers.rounding);
  if (given_call.z) keywords["norm_before_gate"] = options.norm_before_gate;
  keywords[statistics_flag(given_call)] = with_statistics;
  if (given(given_call.dtype)) keywords["dtype"] = nb::handle(given_call.dtype);
  if (given(given_call.normalized_shape))
    keywords["normalized_shape"] = nb::handle(given_call.normalized_shape);
  // Also for an alias.
  const char* const name =
      forward_name(centred, given_call.residual != nullptr, given_call.z != nullptr);
  return nb::module_::import_("membound.jax").attr(name)(*arrays, **keywords);
}

}  // namespace

nb::object tuple_of(std::initializer_list<nb::object> results) {
  Py_ssize_t count = 0;
  for (const nb::object& result : results) count += result.is_valid();
  nb::object tuple = nb::steal(PyTuple_New(count));
  if (!tuple.is_valid()) throw nb::python_error();
  Py_ssize_t at = 0;
  for (nb::object result : results) {
    if (result.is_valid()) PyTuple_SetItem(tuple.ptr(), at++, result.release().ptr());
  }
  return tuple;
}

namespace {

void check_offset_has_weight(const char* op, double weight_offset, PyObject* weight) {
  MEMBOUND_CHECK(weight_offset == 0.0 || given(weight), TypeMismatch, op,
                 "argument 'weight' must be an array, got None");
}

struct Loaded {
  LoadedArray x, residual, z, weight, bias, out, residual_out, mean, rstd;
};

void read_inputs(const ArrayCall& call, const NormCall& given_call, Loaded& loaded,
                 NormArrays& arrays) {
  auto read = [&](PyObject* array, const char* argument, LoadedArray& into) {
    call.read_input(array, argument, into);
    return &into.view;
  };
  arrays.x = read(given_call.x, "x", loaded.x);
  if (given_call.residual) arrays.residual = read(given_call.residual, "residual", loaded.residual);
  if (given_call.z) arrays.z = read(given_call.z, "z", loaded.z);
  if (given(given_call.weight)) arrays.weight = read(given_call.weight, "weight", loaded.weight);
  if (given(given_call.bias)) arrays.bias = read(given_call.bias, "bias", loaded.bias);
}

// eps=None: torch's default, the epsilon of what F.rms_norm computes in, and of F.layer_norm 1e-5.
double default_eps(bool centred, DType x) {
  if (centred) return 1e-5;
  return x == DType::kFloat64 ? std::numeric_limits<double>::epsilon()
                              : std::numeric_limits<float>::epsilon();
}

// An array of x's shape and another dtype, or a statistic of x's rows: a number for each.
nb::object new_result(const ArrayCall& call, PyObject* array, PyObject* like, TensorView wanted,
                      DType dtype, const char* argument, LoadedArray& loaded) {
  if (given(array) || wanted.dtype == dtype)
    return call.output(array, like, wanted, argument, loaded);
  wanted.dtype = dtype;
  return call.new_as(like, wanted, argument, loaded);
}
nb::object new_statistic(const ArrayCall& call, PyObject* like, TensorView x, int axes, DType dtype,
                         const char* argument, LoadedArray& loaded) {
  if (axes == 1 && dtype == accumulate_dtype(x.dtype))
    return call.new_rows(like, x, argument, loaded);
  x.rank = std::max(x.rank - axes, 0);
  x.dtype = dtype;
  return call.new_as(like, x, argument, loaded);
}

DType result_dtype(const NormCall& given_call, DType x) {
  if (!given(given_call.dtype)) return x;
  return floating_from_python(given_call.dtype, {given_call.op, "dtype"});
}

// out alone, or a tuple of out, residual_out, mean and rstd.
nb::object make_outputs(const ArrayCall& call, const NormCall& given_call, bool with_statistics,
                        int axes, Loaded& loaded, NormArrays& arrays) {
  const TensorView& x = loaded.x.view;
  const DType dtype = result_dtype(given_call, x.dtype);
  nb::object out = new_result(call, given_call.out, given_call.x, x, dtype, "out", loaded.out);
  arrays.out = &loaded.out.view;
  MEMBOUND_CHECK(!given(given_call.dtype) || loaded.out.view.dtype == dtype, TypeMismatch,
                 given_call.op, "argument 'out' must be ", dtype_name(dtype), " as 'dtype', got ",
                 dtype_name(loaded.out.view.dtype));
  nb::object sum, mean, rstd;
  DType wide = accumulate_dtype(x.dtype);
  for (const TensorView* beside : {arrays.residual, arrays.z}) {
    if (beside != nullptr && beside->dtype == DType::kFloat64) wide = DType::kFloat64;
  }
  if (given_call.residual) {
    sum = new_result(call, given_call.residual_out, given_call.x, x, arrays.residual->dtype,
                     "residual_out", loaded.residual_out);
    arrays.residual_out = &loaded.residual_out.view;
  }
  if (with_statistics && given_call.centred) {
    mean = new_statistic(call, given_call.x, x, axes, wide, "mean", loaded.mean);
    arrays.mean = &loaded.mean.view;
  }
  if (with_statistics) {
    rstd = new_statistic(call, given_call.x, x, axes, wide, "rstd", loaded.rstd);
    arrays.rstd = &loaded.rstd.view;
  }
  if (!given_call.residual && !with_statistics) return out;
  return tuple_of({out, sum, mean, rstd});
}

void check_parameters(const NormalizedShape& shape, const NormArrays& arrays) {
  shape.check_rows(*arrays.x, "x");
  if (arrays.weight) shape.check_parameter(*arrays.weight, "weight");
  if (arrays.bias) shape.check_parameter(*arrays.bias, "bias");
}

void collapse(const NormalizedShape& shape, Loaded& loaded) {
  shape.collapse(loaded.x.view, "x");
  shape.collapse(loaded.residual.view, "residual");
  shape.collapse(loaded.z.view, "z");
  shape.collapse(loaded.weight.view, "weight");
  shape.collapse(loaded.bias.view, "bias");
  shape.collapse(loaded.out.view, "out");
  shape.collapse(loaded.residual_out.view, "residual_out");
}

}  // namespace

nb::object call_norm(const NormCall& given_call) {
  const char* op = given_call.op;
  const ArrayCall call(op, given_call.x, "x", given_call.stream);
  NormOptions options = options_of(given_call);
  const bool with_statistics =
      flag_or(given_call.return_statistics, false, {op, statistics_flag(given_call)});
  check_offset_has_weight(op, given_call.default_weight_offset, given_call.weight);
  if (call.is_jax()) return call_jax(call, given_call, options, with_statistics);

  Loaded loaded;
  NormArrays arrays;
  read_inputs(call, given_call, loaded, arrays);
  const TensorView& x = loaded.x.view;
  if (given_call.eps == Py_None) options.numbers.eps = default_eps(given_call.centred, x.dtype);
  const NormalizedShape shape(given_call.normalized_shape, op);
  check_parameters(shape, arrays);
  const auto staging = call.staging_device(given_call.device, x.device);
  const nb::object results =
      make_outputs(call, given_call, with_statistics, shape.axes(), loaded, arrays);
  if (shape.axes() > 1) collapse(shape, loaded);
  if (staging) {
    const GilRelease released(true);
    run_norm(options, arrays, *staging);
  } else {
    const StreamView stream = call.stream(x.device);
    const GilRelease released(is_long_on_cpu(x));
    run_norm(options, arrays, stream);
  }
  call.mark_written({given_call.out, given_call.residual_out});
  return results;
}

nb::object call_fused_add_norm(const NormCall& given_call) {
  const char* op = given_call.op;
  const double weight_offset = given_call.default_weight_offset;
  const ArrayCall call(op, given_call.x, "input", nullptr);
  MEMBOUND_CHECK(!call.is_jax(), TypeMismatch, op,
                 "argument 'input' must not be a JAX array, which cannot be written");
  RmsNormOptions options;
  options.eps = number_or(given_call.eps, options.eps, {op, "epsilon"});
  options.weight_offset = weight_offset;
  check_offset_has_weight(op, weight_offset, given_call.weight);
  LoadedArray x, residual, weight;
  call.read_output(given_call.x, "input", x);
  call.read_output(given_call.residual, "residual", residual);
  NormArrays arrays{
      .x = &x.view, .residual = &residual.view, .out = &x.view, .residual_out = &residual.view};
  if (given(given_call.weight)) {
    call.read_input(given_call.weight, "weight", weight);
    arrays.weight = &weight.view;
  }
  const StreamView stream = call.stream(x.view.device);
  {
    const GilRelease released(is_long_on_cpu(x.view));
    run_norm({options}, arrays, stream);
  }
  call.mark_written({given_call.x, given_call.residual});
  return nb::none();
}

}  // namespace membound::python
