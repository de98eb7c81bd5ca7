// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>

#include "call.hpp"
#include "membound/ops/gated_activation.hpp"
#include "quantised.hpp"

// The arguments of all functions of gated activations. Null: not given, or not an argument of that
// function.
namespace membound::python {

// Where up comes from.
enum class GateForm {
  kHalves,       // after the gate, in the same row
  kInterleaved,  // interleaved with the gate
  kApart,        // a separate array
  kAlone,        // no up
};

struct ActivationCall {
  const char* op;
  PyObject* gate;
  PyObject* up = nullptr;
  PyObject* kind = nullptr;
  PyObject* packing = nullptr;
  PyObject* alpha = nullptr;
  PyObject* limit = nullptr;
  PyObject* up_offset = nullptr;
  PyObject* row_scale;
  PyObject* out = nullptr;
  PyObject* stream;
  Activation default_kind = Activation::kSilu;
  bool ungated = false;  // the function takes no up
};
nb::object call_gated_activation(const ActivationCall& given);

struct ActivationQuantCall : ActivationCall {
  PyObject* dtype;
  PyObject* scale;
  PyObject* group_size;
  PyObject* scale_upper_bound;
  PyObject* scale_out;
};
nb::object call_gated_activation_quant(const ActivationQuantCall& given);

struct ActivationBackwardCall : ActivationCall {
  PyObject* dy;
  PyObject* dgate;
  PyObject* dup = nullptr;
  PyObject* need_dgate = nullptr;
  PyObject* need_dup = nullptr;
};
nb::object call_gated_activation_backward(const ActivationBackwardCall& given);

// A kind by name, and the options that the name implies. The kinds' own names come first, in the
// order of Activation, then those used by model configurations.
struct NamedActivation {
  const char* name;
  Activation kind;
  double alpha = 1.0;
  double limit = std::numeric_limits<double>::infinity();
};
inline constexpr NamedActivation kActivations[] = {
    {"silu", Activation::kSilu},
    {"gelu", Activation::kGelu},
    {"gelu_tanh", Activation::kGeluTanh},
    {"sigmoid", Activation::kSigmoid},
    {"relu2", Activation::kRelu2},
    {"relu", Activation::kRelu},
    {"situ", Activation::kSitu, 4.0, 25.0},
    {"swish", Activation::kSilu},
    {"quick_gelu", Activation::kSilu, 1.702},
    {"gelu_pytorch_tanh", Activation::kGeluTanh},
    {"gelu_new", Activation::kGeluTanh},
    {"gelu_fast", Activation::kGeluTanh},
    {"relu_squared", Activation::kRelu2},
};
const char* activation_name(Activation kind);
const NamedActivation& activation_from_python(PyObject* kind, const char* op);
// name -> (the kind's own name, alpha, limit or None), for the Python layers.
nb::dict activations();

// The value of packing=, which says where up is stored (null for the default).
GateForm gate_form_from_python(PyObject* packing, bool has_up, const char* op);

// Views of gate and up in an array that packs both.
inline bool is_packed(GateForm form) {
  return form == GateForm::kHalves || form == GateForm::kInterleaved;
}
GateAndUp<void*> split_packed(const TensorView& packed, GateForm form, const char* op,
                              const char* argument);

}  // namespace membound::python
