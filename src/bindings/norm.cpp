// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "norm.hpp"

#include "core/check.hpp"
#include "errors.hpp"
#include "norm_ops.hpp"

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
  numbers.eps = number_or(given.eps, numbers.eps, {given.op, "eps"});
  numbers.weight_offset =
      number_or(given.weight_offset, given.default_weight_offset, {given.op, "weight_offset"});
  numbers.rounding = rounding_from_python(given.rounding, given.op);
  options.centred = given.centred;
  options.norm_before_gate = flag_or(given.norm_before_gate, true, {given.op, "norm_before_gate"});
  return options;
}

// The function of membound.jax, also for an alias.
const char* jax_name(const NormCall& given) {
  if (given.centred) return given.residual ? "add_layer_norm" : "layer_norm";
  if (given.z) return "rms_norm_gated";
  return given.residual ? "add_rms_norm" : "rms_norm";
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
  keywords["eps"] = options.numbers.eps;
  keywords["weight_offset"] = options.numbers.weight_offset;
  if (!centred) keywords["rounding"] = rounding_name(options.numbers.rounding);
  if (given_call.z) keywords["norm_before_gate"] = options.norm_before_gate;
  keywords[statistics_flag(given_call)] = with_statistics;
  return nb::module_::import_("membound.jax").attr(jax_name(given_call))(*arrays, **keywords);
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

// out alone, or a tuple of out, residual_out, mean and rstd.
nb::object make_outputs(const ArrayCall& call, const NormCall& given_call, bool with_statistics,
                        Loaded& loaded, NormArrays& arrays) {
  const TensorView& x = loaded.x.view;
  nb::object out = call.output(given_call.out, given_call.x, x, "out", loaded.out);
  arrays.out = &loaded.out.view;
  nb::object sum, mean, rstd;
  if (given_call.residual) {
    sum =
        call.output(given_call.residual_out, given_call.x, x, "residual_out", loaded.residual_out);
    arrays.residual_out = &loaded.residual_out.view;
  }
  if (with_statistics && given_call.centred) {
    mean = call.new_rows(given_call.x, x, "mean", loaded.mean);
    arrays.mean = &loaded.mean.view;
  }
  if (with_statistics) {
    rstd = call.new_rows(given_call.x, x, "rstd", loaded.rstd);
    arrays.rstd = &loaded.rstd.view;
  }
  if (!given_call.residual && !with_statistics) return out;
  return tuple_of({out, sum, mean, rstd});
}

}  // namespace

nb::object call_norm(const NormCall& given_call) {
  const char* op = given_call.op;
  const ArrayCall call(op, given_call.x, "x", given_call.stream);
  const NormOptions options = options_of(given_call);
  const bool with_statistics =
      flag_or(given_call.return_statistics, false, {op, statistics_flag(given_call)});
  check_offset_has_weight(op, given_call.default_weight_offset, given_call.weight);
  if (call.is_jax()) return call_jax(call, given_call, options, with_statistics);

  Loaded loaded;
  NormArrays arrays;
  read_inputs(call, given_call, loaded, arrays);
  const TensorView& x = loaded.x.view;
  const auto staging = call.staging_device(given_call.device, x.device);
  const nb::object results = make_outputs(call, given_call, with_statistics, loaded, arrays);
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

nb::object call_fused_add_norm(const char* op, PyObject* const* values, double weight_offset) {
  enum { kInput, kResidual, kWeight, kEpsilon };
  const ArrayCall call(op, values[kInput], "input", nullptr);
  MEMBOUND_CHECK(!call.is_jax(), TypeMismatch, op,
                 "argument 'input' must not be a JAX array, which cannot be written");
  RmsNormOptions options;
  options.eps = number_or(values[kEpsilon], options.eps, {op, "epsilon"});
  options.weight_offset = weight_offset;
  check_offset_has_weight(op, weight_offset, values[kWeight]);
  LoadedArray x, residual, weight;
  call.read_output(values[kInput], "input", x);
  call.read_output(values[kResidual], "residual", residual);
  NormArrays arrays{
      .x = &x.view, .residual = &residual.view, .out = &x.view, .residual_out = &residual.view};
  if (given(values[kWeight])) {
    call.read_input(values[kWeight], "weight", weight);
    arrays.weight = &weight.view;
  }
  const StreamView stream = call.stream(x.view.device);
  {
    const GilRelease released(is_long_on_cpu(x.view));
    run_norm({options}, arrays, stream);
  }
  call.mark_written({values[kInput], values[kResidual]});
  return nb::none();
}

}  // namespace membound::python
