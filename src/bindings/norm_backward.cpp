// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/check.hpp"
#include "norm.hpp"
#include "norm_ops.hpp"
#include "normalized_shape.hpp"

namespace membound::python {

namespace {

struct Wanted {
  bool dx;
  bool dresidual;
  bool dz;
  bool dweight;
  bool dbias;
};

// Refuses an output array for a gradient that is not wanted, which would silently stay unwritten.
bool need(const char* op, PyObject* flag, const char* flag_name, PyObject* array,
          const char* array_name) {
  const bool needed = flag_or(flag, true, {op, flag_name});
  MEMBOUND_CHECK(needed || !given(array), InvalidArgument, op, "argument '", array_name,
                 "' must be None with ", flag_name, "=False, got an array");
  return needed;
}

Wanted wanted_gradients(const NormBackwardCall& call, bool accumulate) {
  const char* op = call.op;
  Wanted wanted;
  wanted.dx = need(op, call.need_dx, "need_dx", call.dx, "dx");
  wanted.dresidual =
      given(call.dresidual) || flag_or(call.need_dresidual, false, {op, "need_dresidual"});
  wanted.dz = call.gated() && need(op, call.need_dz, "need_dz", call.dz, "dz");
  wanted.dweight = need(op, call.need_dweight, "need_dweight", call.dweight, "dweight") &&
                   (given(call.dweight) || given(call.weight));
  wanted.dbias = call.centred() && need(op, call.need_dbias, "need_dbias", call.dbias, "dbias");
  if (!accumulate) return wanted;
  const bool lacks_dweight = wanted.dweight ? !given(call.dweight) : !wanted.dbias;
  MEMBOUND_CHECK(!lacks_dweight, InvalidArgument, op,
                 "argument 'dweight' must be given with accumulate=True: it is added to");
  MEMBOUND_CHECK(!wanted.dbias || given(call.dbias), InvalidArgument, op,
                 "argument 'dbias' must be given with accumulate=True: it is added to");
  return wanted;
}

nb::object call_jax(const ArrayCall& call, const NormBackwardCall& given_call, Wanted wanted,
                    const NormBackwardOptions& options) {
  call.check_jax_absent(given_call.dx, "dx", "which cannot be written");
  call.check_jax_absent(given_call.dresidual, "dresidual", "which cannot be written");
  call.check_jax_absent(given_call.dz, "dz", "which cannot be written");
  call.check_jax_absent(given_call.dweight, "dweight", "which cannot be written");
  call.check_jax_absent(given_call.dbias, "dbias", "which cannot be written");
  call.check_jax_absent(given_call.stream, "stream", "whose stream XLA picks");
  nb::list arrays;
  auto append = [&](PyObject* array, const char* argument) {
    arrays.append(call.check_jax_input(array, argument));
  };
  arrays.append(nb::handle(given_call.dy));
  if (given_call.added()) append(given_call.dresidual_out, "dresidual_out");
  append(given_call.x, given_call.x_name);
  if (given_call.gated()) append(given_call.z, "z");
  append(given_call.weight, "weight");
  if (given_call.centred()) append(given_call.mean, "mean");
  append(given_call.rstd, "rstd");
  nb::dict keywords;
  keywords["weight_offset"] = options.numbers.weight_offset;
  if (!given_call.centred()) keywords["rounding"] = rounding_name(options.numbers.rounding);
  if (given_call.gated()) keywords["norm_before_gate"] = options.norm_before_gate;
  keywords["need_dx"] = wanted.dx;
  if (given_call.added()) keywords["need_dresidual"] = wanted.dresidual;
  if (given_call.gated()) keywords["need_dz"] = wanted.dz;
  keywords["need_dweight"] = wanted.dweight;
  if (given_call.centred()) keywords["need_dbias"] = wanted.dbias;
  if (given(given_call.normalized_shape))
    keywords["normalized_shape"] = nb::handle(given_call.normalized_shape);
  return nb::module_::import_("membound.jax").attr(given_call.op)(*arrays, **keywords);
}

struct Loaded {
  LoadedArray dy, dsum, x, z, weight, mean, rstd, dx, dresidual, dz, dweight, dbias, workspace;
};

void read_inputs(const ArrayCall& call, const NormBackwardCall& given_call, Loaded& loaded,
                 NormBackwardArrays& arrays) {
  auto read = [&](PyObject* array, const char* argument, LoadedArray& into) {
    call.read_input(array, argument, into);
    return &into.view;
  };
  arrays.dy = read(given_call.dy, "dy", loaded.dy);
  PyObject* dsum = given_call.dresidual_out;
  if (given(dsum)) arrays.dresidual_out = read(dsum, "dresidual_out", loaded.dsum);
  arrays.x = read(given_call.x, given_call.x_name, loaded.x);
  if (given_call.gated()) arrays.z = read(given_call.z, "z", loaded.z);
  if (given(given_call.weight)) arrays.weight = read(given_call.weight, "weight", loaded.weight);
  if (given_call.centred()) arrays.mean = read(given_call.mean, "mean", loaded.mean);
  arrays.rstd = read(given_call.rstd, "rstd", loaded.rstd);
}

// The results for Python, None if not wanted, and the workspace of the kernels.
struct Outputs {
  nb::object dx = nb::none(), dresidual = nb::none(), dz = nb::none();
  nb::object dweight = nb::none(), dbias = nb::none();
  nb::object workspace;
};

// dbias without a weight, which has the normalised axes.
nb::object new_bias_gradient(const ArrayCall& call, PyObject* like, const TensorView& x, int axes,
                             LoadedArray& loaded) {
  if (axes == 1) return call.new_columns(like, x, "dbias", loaded);
  TensorView wanted = x;
  wanted.rank = axes;
  std::copy_n(x.shape + x.rank - axes, axes, wanted.shape);
  return call.new_as(like, wanted, "dbias", loaded);
}

// dx has the dtype of x, which the added forms do not read: there it is the dtype of dy, and
// dresidual has that of residual_out.
Outputs make_outputs(const ArrayCall& call, const NormBackwardCall& given_call, Wanted wanted,
                     int axes, Loaded& loaded, NormBackwardArrays& arrays) {
  const TensorView& x = loaded.x.view;
  const TensorView& weight = loaded.weight.view;
  Outputs made;
  if (wanted.dx) {
    made.dx = given_call.added()
                  ? call.output(given_call.dx, given_call.dy, loaded.dy.view, "dx", loaded.dx)
                  : call.output(given_call.dx, given_call.x, x, "dx", loaded.dx);
    arrays.dx = &loaded.dx.view;
  }
  if (wanted.dresidual) {
    made.dresidual =
        call.output(given_call.dresidual, given_call.x, x, "dresidual", loaded.dresidual);
    arrays.dresidual = &loaded.dresidual.view;
  }
  if (wanted.dz) {
    made.dz = call.output(given_call.dz, given_call.z, loaded.z.view, "dz", loaded.dz);
    arrays.dz = &loaded.dz.view;
  }
  if (wanted.dweight) {
    made.dweight =
        call.output(given_call.dweight, given_call.weight, weight, "dweight", loaded.dweight);
    arrays.dweight = &loaded.dweight.view;
  }
  if (wanted.dbias) {
    made.dbias =
        given(given_call.dbias) || arrays.weight
            ? call.output(given_call.dbias, given_call.weight, weight, "dbias", loaded.dbias)
            : new_bias_gradient(call, given_call.dy, x, axes, loaded.dbias);
    arrays.dbias = &loaded.dbias.view;
  }
  return made;
}

void check_parameters(const NormalizedShape& shape, const NormBackwardArrays& arrays,
                      const char* x_name) {
  shape.check_rows(*arrays.x, x_name);
  if (arrays.weight) shape.check_parameter(*arrays.weight, "weight");
}

void collapse(const NormalizedShape& shape, Loaded& loaded, const char* x_name) {
  const TensorView x = loaded.x.view;
  shape.collapse(loaded.dy.view, "dy");
  shape.collapse(loaded.dsum.view, "dresidual_out");
  shape.collapse(loaded.x.view, x_name);
  shape.collapse(loaded.z.view, "z");
  shape.collapse(loaded.weight.view, "weight");
  shape.collapse_statistic(loaded.mean.view, x, "mean");
  shape.collapse_statistic(loaded.rstd.view, x, "rstd");
  shape.collapse(loaded.dx.view, "dx");
  shape.collapse(loaded.dresidual.view, "dresidual");
  shape.collapse(loaded.dz.view, "dz");
  shape.collapse(loaded.dweight.view, "dweight");
  shape.collapse(loaded.dbias.view, "dbias");
}

}  // namespace

nb::object call_norm_backward(const NormBackwardCall& given_call) {
  const char* op = given_call.op;
  const ArrayCall call(op, given_call.dy, "dy", given_call.stream);
  NormBackwardOptions options;
  RmsNormBackwardOptions& numbers = options.numbers;
  numbers.weight_offset = number_or(given_call.weight_offset, 0.0, {op, "weight_offset"});
  numbers.rounding = rounding_from_python(given_call.rounding, op);
  numbers.accumulate = flag_or(given_call.accumulate, false, {op, "accumulate"});
  options.norm_before_gate = flag_or(given_call.norm_before_gate, true, {op, "norm_before_gate"});
  options.added = given_call.added();
  const Wanted wanted = wanted_gradients(given_call, numbers.accumulate);
  if (call.is_jax()) return call_jax(call, given_call, wanted, options);

  Loaded loaded;
  NormBackwardArrays arrays;
  read_inputs(call, given_call, loaded, arrays);
  const NormalizedShape shape(given_call.normalized_shape, op);
  check_parameters(shape, arrays, given_call.x_name);
  Outputs made = make_outputs(call, given_call, wanted, shape.axes(), loaded, arrays);
  if (shape.axes() > 1) collapse(shape, loaded, given_call.x_name);
  made.workspace = call.new_workspace(given_call.dy, loaded.dy.view.device,
                                      norm_backward_workspace(options, arrays), loaded.workspace);
  if (made.workspace.is_valid()) arrays.workspace = &loaded.workspace.view;
  const StreamView stream = call.stream(loaded.x.view.device);
  {
    const GilRelease released(is_long_on_cpu(loaded.x.view));
    run_norm_backward(options, arrays, stream);
  }
  call.mark_written(
      {given_call.dx, given_call.dresidual, given_call.dz, given_call.dweight, given_call.dbias});
  if (given_call.gated()) return nb::make_tuple(made.dx, made.dz, made.dweight);
  const nb::object dresidual = wanted.dresidual ? made.dresidual : nb::object();
  const nb::object dbias = given_call.centred() ? made.dbias : nb::object();
  return tuple_of({made.dx, dresidual, made.dweight, dbias});
}

}  // namespace membound::python
