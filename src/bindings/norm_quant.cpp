// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "norm.hpp"
#include "norm_ops.hpp"
#include "quantised.hpp"

namespace membound::python {

namespace {

RmsNormQuantOptions options_of(const NormQuantCall& given_call, const Quantisation& quantisation) {
  const char* op = given_call.op;
  RmsNormQuantOptions options;
  options.eps = number_or(given_call.eps, options.eps, {op, "eps"});
  options.weight_offset =
      number_or(given_call.weight_offset, options.weight_offset, {op, "weight_offset"});
  options.rounding = rounding_from_python(given_call.rounding, op);
  options.group_size = quantisation.group_size;
  options.scale_upper_bound = quantisation.scale_upper_bound;
  return options;
}

nb::object call_jax(const ArrayCall& call, const NormQuantCall& given_call,
                    const RmsNormQuantOptions& options, const Quantisation& quantisation) {
  nb::list arrays;
  arrays.append(nb::handle(given_call.x));
  if (given_call.residual) arrays.append(call.check_jax_input(given_call.residual, "residual"));
  arrays.append(call.check_jax_input(given_call.weight, "weight"));
  call.check_jax_absent(given_call.residual_out, "residual_out", "which cannot be written");
  call.check_jax_absent(given_call.stream, "stream", "whose stream XLA picks");
  nb::dict keywords;
  add_jax_keywords(keywords, call, quant_arguments(given_call), quantisation);
  keywords["eps"] = options.eps;
  keywords["weight_offset"] = options.weight_offset;
  keywords["rounding"] = rounding_name(options.rounding);
  return nb::module_::import_("membound.jax").attr(given_call.op)(*arrays, **keywords);
}

struct Loaded {
  LoadedArray x, residual, weight, static_scale, out, residual_out, scale;
};

void read_inputs(const ArrayCall& call, const NormQuantCall& given_call, Loaded& loaded,
                 NormQuantArrays& arrays) {
  auto read = [&](PyObject* array, const char* argument, LoadedArray& into) {
    call.read_input(array, argument, into);
    return &into.view;
  };
  arrays.x = read(given_call.x, "x", loaded.x);
  if (given_call.residual) arrays.residual = read(given_call.residual, "residual", loaded.residual);
  if (given(given_call.weight)) arrays.weight = read(given_call.weight, "weight", loaded.weight);
  if (given(given_call.scale))
    arrays.static_scale = read(given_call.scale, "scale", loaded.static_scale);
}

// out alone, or a tuple of out, residual_out and scale.
nb::object make_outputs(const ArrayCall& call, const NormQuantCall& given_call,
                        const Quantisation& quantisation, Loaded& loaded, NormQuantArrays& arrays) {
  const QuantArguments arguments = quant_arguments(given_call);
  const TensorView& x = loaded.x.view;
  nb::object out = make_codes(call, arguments, quantisation, given_call.x, x, loaded.out);
  nb::object sum, scale;
  arrays.out = &loaded.out.view;
  if (given_call.residual) {
    sum =
        call.output(given_call.residual_out, given_call.x, x, "residual_out", loaded.residual_out);
    arrays.residual_out = &loaded.residual_out.view;
  }
  if (!arrays.static_scale) {
    scale = make_scales(call, arguments, quantisation, given_call.x, x, loaded.scale);
    arrays.scale = &loaded.scale.view;
  }
  if (!sum.is_valid() && !scale.is_valid()) return out;
  return tuple_of({out, sum, scale});
}

}  // namespace

nb::object call_norm_quant(const NormQuantCall& given_call) {
  const char* op = given_call.op;
  const ArrayCall call(op, given_call.x, "x", given_call.stream);
  const QuantArguments arguments = quant_arguments(given_call);
  const Quantisation quantisation = quantisation_from_python(arguments);
  const RmsNormQuantOptions options = options_of(given_call, quantisation);
  if (call.is_jax()) return call_jax(call, given_call, options, quantisation);
  check_one_scale(arguments);

  Loaded loaded;
  NormQuantArrays arrays;
  read_inputs(call, given_call, loaded, arrays);
  const nb::object results = make_outputs(call, given_call, quantisation, loaded, arrays);
  {
    const StreamView stream = call.stream(loaded.x.view.device);
    const GilRelease released(is_long_on_cpu(loaded.x.view));
    run_norm_quant(options, arrays, stream);
  }
  call.mark_written({given_call.out, given_call.residual_out, given_call.scale_out});
  return results;
}

}  // namespace membound::python
