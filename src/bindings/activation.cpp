// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "activation.hpp"

#include <cmath>
#include <string>

#include "core/check.hpp"
#include "errors.hpp"
#include "membound/ops/gated_activation_backward.hpp"
#include "membound/ops/gated_activation_quant.hpp"

namespace membound::python {

namespace {

bool is_text(PyObject* value, const char* text) {
  return PyUnicode_Check(value) && PyUnicode_CompareWithASCIIString(value, text) == 0;
}

GatedActivationOptions options_of(const ActivationCall& given_call) {
  const char* op = given_call.op;
  GatedActivationOptions options;
  options.op = op;
  options.kind = given_call.default_kind;
  if (given_call.kind != nullptr) {
    const NamedActivation& named = activation_from_python(given_call.kind, op);
    options.kind = named.kind;
    options.alpha = named.alpha;
    options.limit = named.limit;
  }
  if (given(given_call.alpha)) options.alpha = number_from_python(given_call.alpha, {op, "alpha"});
  if (given(given_call.limit)) options.limit = number_from_python(given_call.limit, {op, "limit"});
  options.up_offset = number_or(given_call.up_offset, options.up_offset, {op, "up_offset"});
  return options;
}

GateForm form_of(const ActivationCall& given_call) {
  if (given_call.ungated) return GateForm::kAlone;
  return gate_form_from_python(given_call.packing, given(given_call.up), given_call.op);
}

struct Inputs {
  LoadedArray gate_array, up_array, row_scale_array;
  TensorView gate;
  ConstTensorView up, row_scale;
  bool has_up = false, has_row_scale = false;

  Inputs(const ArrayCall& call, const ActivationCall& given_call, GateForm form) {
    call.read_input(given_call.gate, "gate", gate_array);
    gate = gate_array.view;
    has_up = form != GateForm::kAlone;
    if (form == GateForm::kApart) {
      call.read_input(given_call.up, "up", up_array);
      up = up_array.view;
    } else if (has_up) {
      const GateAndUp<void*> parts = split_packed(gate_array.view, form, given_call.op, "gate");
      gate = parts.gate;
      up = parts.up;
    }
    has_row_scale = given(given_call.row_scale);
    if (has_row_scale) {
      call.read_input(given_call.row_scale, "row_scale", row_scale_array);
      row_scale = row_scale_array.view;
    }
  }
  const ConstTensorView* up_or_none() const { return has_up ? &up : nullptr; }
  const ConstTensorView* row_scale_or_none() const { return has_row_scale ? &row_scale : nullptr; }
};

nb::dict jax_keywords(const ArrayCall& call, const ActivationCall& given_call, GateForm form,
                      const GatedActivationOptions& options) {
  call.check_jax_absent(given_call.stream, "stream", "whose stream XLA picks");
  nb::dict keywords;
  keywords["kind"] = activation_name(options.kind);
  keywords["packing"] = form == GateForm::kInterleaved ? "interleaved"
                        : form == GateForm::kAlone     ? "gate"
                                                       : "halves";
  keywords["alpha"] = options.alpha;
  keywords["limit"] = options.limit;
  keywords["up_offset"] = options.up_offset;
  keywords["row_scale"] = call.check_jax_input(given_call.row_scale, "row_scale");
  return keywords;
}

// The gate's array to write to, or a new one.
nb::object make_out(const ArrayCall& call, const ActivationCall& given_call, const Inputs& inputs,
                    GateForm form, LoadedArray& loaded) {
  PyObject* out = given_call.out;
  if (given(out) || !is_packed(form)) {
    return call.output(out, given_call.gate, inputs.gate_array.view, "out", loaded);
  }
  return call.new_as(given_call.gate, inputs.gate, "out", loaded);
}

}  // namespace

const char* activation_name(Activation kind) { return kActivations[static_cast<int>(kind)].name; }

const NamedActivation& activation_from_python(PyObject* kind, const char* op) {
  std::string names;
  for (const NamedActivation& named : kActivations) {
    if (is_text(kind, named.name)) return named;
    names += std::string(names.empty() ? "'" : ", '") + named.name + "'";
  }
  fail<InvalidArgument>(op, "argument 'kind' must be one of ", names, ", got ", repr_of(kind));
}

nb::dict activations() {
  nb::dict all;
  for (const NamedActivation& named : kActivations) {
    const nb::object limit =
        std::isinf(named.limit) ? nb::object(nb::none()) : nb::object(nb::float_(named.limit));
    all[named.name] = nb::make_tuple(activation_name(named.kind), named.alpha, limit);
  }
  return all;
}

GateForm gate_form_from_python(PyObject* packing, bool has_up, const char* op) {
  const bool halves = packing == nullptr || is_text(packing, "halves");
  if (has_up) {
    MEMBOUND_CHECK(halves, InvalidArgument, op,
                   "argument 'packing' must be left out with 'up', got ", repr_of(packing));
    return GateForm::kApart;
  }
  if (halves) return GateForm::kHalves;
  if (is_text(packing, "interleaved")) return GateForm::kInterleaved;
  if (is_text(packing, "gate")) return GateForm::kAlone;
  fail<InvalidArgument>(op, "argument 'packing' must be 'halves', 'interleaved' or 'gate', got ",
                        repr_of(packing));
}

GateAndUp<void*> split_packed(const TensorView& packed, GateForm form, const char* op,
                              const char* argument) {
  MEMBOUND_CHECK(
      packed.rank >= 1 && packed.rank <= kMaxRank && packed.shape[packed.rank - 1] % 2 == 0,
      InvalidArgument, op, "argument '", argument,
      "' must have at least 1 axis, the last of an even extent, to hold gate and up, got a last "
      "axis of ",
      packed.rank >= 1 && packed.rank <= kMaxRank ? packed.shape[packed.rank - 1] : 0);
  return split_gate_up(packed,
                       form == GateForm::kHalves ? Packing::kHalves : Packing::kInterleaved);
}

namespace {

// Returns call(a function of membound.jax); its errors name the op that was called.
template <class Call>
nb::object in_own_name(const char* op, const char* function, Call call) {
  try {
    return call(nb::module_::import_("membound.jax").attr(function));
  } catch (nb::python_error& error) {
    const std::string text = str_of(error.value()), theirs = std::string(function) + ": ";
    if (text.rfind(theirs, 0) != 0) throw;
    const std::string mine = std::string(op) + ": " + text.substr(theirs.size());
    PyErr_SetString(error.type().ptr(), mine.c_str());
  }
  throw nb::python_error();
}

}  // namespace

nb::object call_gated_activation(const ActivationCall& given_call) {
  const char* op = given_call.op;
  const ArrayCall call(op, given_call.gate, "gate", given_call.stream);
  const GatedActivationOptions options = options_of(given_call);
  const GateForm form = form_of(given_call);
  if (call.is_jax()) {
    call.check_jax_absent(given_call.out, "out", "which cannot be written");
    return in_own_name(op, "gated_activation", [&](const nb::object& function) {
      return function(nb::handle(given_call.gate), call.check_jax_input(given_call.up, "up"),
                      **jax_keywords(call, given_call, form, options));
    });
  }
  const Inputs inputs(call, given_call, form);
  LoadedArray written;
  nb::object result = make_out(call, given_call, inputs, form, written);
  {
    const StreamView stream = call.stream(inputs.gate.device);
    const GilRelease released(is_long_on_cpu(inputs.gate));
    gated_activation(inputs.gate, inputs.up_or_none(), inputs.row_scale_or_none(), options,
                     written.view, stream);
  }
  call.mark_written({given_call.out});
  return result;
}

nb::object call_gated_activation_quant(const ActivationQuantCall& given_call) {
  const char* op = given_call.op;
  const QuantArguments quant = quant_arguments(given_call);
  const ArrayCall call(op, given_call.gate, "gate", given_call.stream);
  const Quantisation quantisation = quantisation_from_python(quant);
  const GatedActivationQuantOptions options{options_of(given_call), quantisation.group_size,
                                            quantisation.scale_upper_bound};
  const GateForm form = form_of(given_call);
  if (call.is_jax()) {
    nb::dict keywords = jax_keywords(call, given_call, form, options.activation);
    add_jax_keywords(keywords, call, quant, quantisation);
    return in_own_name(op, "gated_activation_quant", [&](const nb::object& function) {
      return function(nb::handle(given_call.gate), call.check_jax_input(given_call.up, "up"),
                      **keywords);
    });
  }
  check_one_scale(quant);
  const Inputs inputs(call, given_call, form);
  const bool is_static = given(quant.scale);
  LoadedArray static_scale, codes, scales;
  if (is_static) call.read_input(quant.scale, "scale", static_scale);
  PyObject* like = given_call.gate;
  nb::object out = make_codes(call, quant, quantisation, like, inputs.gate, codes), scale;
  if (!is_static) scale = make_scales(call, quant, quantisation, like, inputs.gate, scales);
  {
    const ConstTensorView given_scale = static_scale.view;
    const StreamView stream = call.stream(inputs.gate.device);
    const GilRelease released(is_long_on_cpu(inputs.gate));
    gated_activation_quant(inputs.gate, inputs.up_or_none(), inputs.row_scale_or_none(), options,
                           codes.view, is_static ? &given_scale : nullptr,
                           is_static ? nullptr : &scales.view, stream);
  }
  call.mark_written({quant.out, quant.scale_out});
  return is_static ? out : nb::object(nb::make_tuple(out, scale));
}

namespace {

struct Wanted {
  bool dgate, dup;
};
Wanted wanted_gradients(const ActivationBackwardCall& given_call, GateForm form) {
  const char* op = given_call.op;
  const bool apart = form == GateForm::kApart;
  const Wanted wanted{flag_or(given_call.need_dgate, true, {op, "need_dgate"}),
                      flag_or(given_call.need_dup, true, {op, "need_dup"})};
  MEMBOUND_CHECK(apart || wanted.dgate, InvalidArgument, op,
                 "argument 'need_dgate' must be True without 'up'");
  MEMBOUND_CHECK(apart || wanted.dup, InvalidArgument, op,
                 "argument 'need_dup' must be True without 'up'");
  MEMBOUND_CHECK(apart || !given(given_call.dup), InvalidArgument, op,
                 "argument 'dup' must be None without 'up', got ",
                 type_name(given_call.dup ? given_call.dup : Py_None));
  MEMBOUND_CHECK(wanted.dgate || !given(given_call.dgate), InvalidArgument, op,
                 "argument 'dgate' must be None with need_dgate=False, got an array");
  MEMBOUND_CHECK(wanted.dup || !given(given_call.dup), InvalidArgument, op,
                 "argument 'dup' must be None with need_dup=False, got an array");
  return {wanted.dgate, wanted.dup && form != GateForm::kAlone};
}

}  // namespace

nb::object call_gated_activation_backward(const ActivationBackwardCall& given_call) {
  const char* op = given_call.op;
  const ArrayCall call(op, given_call.dy, "dy", given_call.stream);
  const GatedActivationOptions options = options_of(given_call);
  const GateForm form = form_of(given_call);
  const Wanted wanted = wanted_gradients(given_call, form);
  if (call.is_jax()) {
    call.check_jax_absent(given_call.dgate, "dgate", "which cannot be written");
    call.check_jax_absent(given_call.dup, "dup", "which cannot be written");
    nb::dict keywords = jax_keywords(call, given_call, form, options);
    keywords["need_dgate"] = wanted.dgate;
    keywords["need_dup"] = wanted.dup || form == GateForm::kAlone;
    return in_own_name(op, "gated_activation_backward", [&](const nb::object& function) {
      return function(nb::handle(given_call.dy), call.check_jax_input(given_call.gate, "gate"),
                      call.check_jax_input(given_call.up, "up"), **keywords);
    });
  }
  LoadedArray dy, dgate_array, dup_array;
  call.read_input(given_call.dy, "dy", dy);
  const Inputs inputs(call, given_call, form);
  nb::object dgate = nb::none(), dup = nb::none();
  if (wanted.dgate) {
    dgate = call.output(given_call.dgate, given_call.gate, inputs.gate_array.view, "dgate",
                        dgate_array);
  }
  if (wanted.dup && form == GateForm::kApart)
    dup = call.output(given_call.dup, given_call.up, inputs.up_array.view, "dup", dup_array);
  TensorView dgate_view = dgate_array.view, dup_view = dup_array.view;
  if (is_packed(form)) {
    const GateAndUp<void*> parts = split_packed(dgate_array.view, form, op, "dgate");
    dgate_view = parts.gate;
    dup_view = parts.up;
  }
  {
    const StreamView stream = call.stream(inputs.gate.device);
    const GilRelease released(is_long_on_cpu(inputs.gate));
    gated_activation_backward(dy.view, inputs.gate, inputs.up_or_none(), inputs.row_scale_or_none(),
                              options, wanted.dgate ? &dgate_view : nullptr,
                              wanted.dup ? &dup_view : nullptr, stream);
  }
  call.mark_written({given_call.dgate, given_call.dup});
  return form == GateForm::kApart ? nb::object(nb::make_tuple(dgate, dup)) : dgate;
}

}  // namespace membound::python
