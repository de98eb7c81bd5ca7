// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "norm.hpp"

#include "core/check.hpp"
#include "membound/ops/add_rms_norm_backward.hpp"
#include "membound/ops/rms_norm_backward.hpp"

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
                        nb::repr(nb::handle(value)).c_str());
}

const char* rounding_name(Rounding rounding) {
  return rounding == Rounding::kOnce ? "once" : "before_weight";
}

RmsNormOptions norm_options(const char* op, PyObject* eps, PyObject* weight_offset,
                            PyObject* rounding) {
  RmsNormOptions options;
  options.eps = number_or(eps, options.eps, {op, "eps"});
  options.weight_offset = number_or(weight_offset, 0.0, {op, "weight_offset"});
  options.rounding = rounding_from_python(rounding, op);
  return options;
}

namespace {

struct Wanted {
  bool dx;
  bool dweight;
};

// What is not wanted may not be given, so that no array is passed and silently left alone.
Wanted wanted_gradients(const BackwardCall& given_call, bool accumulate) {
  const auto& [op, x_name, dy, dsum, rest] = given_call;
  const bool need_dx = flag_or(rest[kBackwardNeedDx], true, {op, "need_dx"});
  const bool need_dweight = flag_or(rest[kBackwardNeedDweight], true, {op, "need_dweight"});
  const bool dweight_given = given(rest[kBackwardDweight]);
  MEMBOUND_CHECK(need_dx || !given(rest[kBackwardDx]), InvalidArgument, op,
                 "argument 'dx' must be None with need_dx=False, got an array");
  MEMBOUND_CHECK(need_dweight || !dweight_given, InvalidArgument, op,
                 "argument 'dweight' must be None with need_dweight=False, got an array");
  MEMBOUND_CHECK(!accumulate || dweight_given, InvalidArgument, op,
                 "argument 'dweight' must be given with accumulate=True: it is added to");
  return {need_dx, need_dweight && (dweight_given || given(rest[kBackwardWeight]))};
}

nb::object call_jax(const ArrayCall& call, const BackwardCall& given_call, Wanted wanted,
                    const RmsNormBackwardOptions& options) {
  const auto& [op, x_name, dy, dsum, rest] = given_call;
  for (const auto& [parameter, name] :
       {std::pair{kBackwardDx, "dx"}, {kBackwardDweight, "dweight"}})
    call.check_jax_absent(rest[parameter], name, "which cannot be written");
  call.check_jax_absent(rest[kBackwardStream], "stream", "whose stream XLA picks");
  const nb::handle x = call.check_jax_input(rest[kBackwardX], x_name);
  const nb::handle weight = call.check_jax_input(rest[kBackwardWeight], "weight");
  const nb::handle rstd = call.check_jax_input(rest[kBackwardRstd], "rstd");
  nb::list arrays;
  arrays.append(nb::handle(dy));
  if (dsum != nullptr) arrays.append(call.check_jax_input(dsum, "dresidual_out"));
  for (const nb::handle array : {x, weight, rstd}) arrays.append(array);
  const nb::object function = nb::module_::import_("membound.jax").attr(op);
  return function(*arrays, nb::arg("weight_offset") = options.weight_offset,
                  nb::arg("rounding") = rounding_name(options.rounding),
                  nb::arg("need_dx") = wanted.dx, nb::arg("need_dweight") = wanted.dweight);
}

}  // namespace

nb::object call_norm_backward(const BackwardCall& given_call) {
  const auto& [op, x_name, dy_array, dsum_array, rest] = given_call;
  const ArrayCall call(op, dy_array, "dy", rest[kBackwardStream]);
  RmsNormBackwardOptions options;
  options.weight_offset = number_or(rest[kBackwardWeightOffset], 0.0, {op, "weight_offset"});
  options.rounding = rounding_from_python(rest[kBackwardRounding], op);
  options.accumulate = flag_or(rest[kBackwardAccumulate], false, {op, "accumulate"});
  const Wanted wanted = wanted_gradients(given_call, options.accumulate);
  if (call.is_jax()) return call_jax(call, given_call, wanted, options);

  LoadedArray dy, dsum, x, weight, rstd, dx, dweight, workspace;
  call.read_input(dy_array, "dy", dy);
  if (dsum_array != nullptr) call.read_input(dsum_array, "dresidual_out", dsum);
  call.read_input(rest[kBackwardX], x_name, x);
  const bool weighted = given(rest[kBackwardWeight]);
  if (weighted) call.read_input(rest[kBackwardWeight], "weight", weight);
  call.read_input(rest[kBackwardRstd], "rstd", rstd);
  nb::object dx_array = nb::none(), dweight_array = nb::none(), workspace_array;
  if (wanted.dx) dx_array = call.output(rest[kBackwardDx], dy_array, dy.view, "dx", dx);
  if (wanted.dweight) {
    dweight_array =
        call.output(rest[kBackwardDweight], rest[kBackwardWeight], weight.view, "dweight", dweight);
    workspace_array = call.new_workspace(dy_array, rms_norm_backward_workspace(x.view), workspace);
  }

  const ConstTensorView weight_view(weight.view);
  const ConstTensorView* weight_or_none = weighted ? &weight_view : nullptr;
  const TensorView* dx_or_none = wanted.dx ? &dx.view : nullptr;
  const TensorView* dweight_or_none = wanted.dweight ? &dweight.view : nullptr;
  const TensorView* workspace_or_none = workspace_array.is_valid() ? &workspace.view : nullptr;
  const StreamView stream = call.stream(x.view.device);
  {
    const GilRelease released(is_long_on_cpu(x.view));
    if (dsum_array != nullptr) {
      add_rms_norm_backward(dy.view, dsum.view, x.view, weight_or_none, rstd.view, options,
                            dx_or_none, dweight_or_none, workspace_or_none, stream);
    } else {
      rms_norm_backward(dy.view, x.view, weight_or_none, rstd.view, options, dx_or_none,
                        dweight_or_none, workspace_or_none, stream);
    }
  }
  call.mark_written(rest[kBackwardDx], rest[kBackwardDweight]);
  return nb::make_tuple(dx_array, dweight_array);
}

}  // namespace membound::python
