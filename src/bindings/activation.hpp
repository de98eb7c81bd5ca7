// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "call.hpp"
#include "membound/ops/gated_activation.hpp"
#include "quantised.hpp"

// What the functions of gated activations share on their way from Python to C++. Null is an
// argument that was not given, or that the function does not have.
namespace membound::python {

// Where up comes from.
enum class GateForm {
  kHalves,       // behind the gate, in the same rows
  kInterleaved,  // beside the gate, element by element
  kApart,        // an array of its own
  kAlone,        // there is none
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
  PyObject* stream;
  Activation default_kind = Activation::kSilu;
  bool ungated = false;  // the function takes no up
};
nb::object call_gated_activation(const ActivationCall& given, PyObject* out);
nb::object call_gated_activation_quant(const ActivationCall& given, const QuantArguments& quant);

struct ActivationGradients {
  PyObject* dy;
  PyObject* dgate;
  PyObject* dup = nullptr;
  PyObject* need_dgate = nullptr;
  PyObject* need_dup = nullptr;
};
nb::object call_gated_activation_backward(const ActivationCall& given,
                                          const ActivationGradients& gradients);

// The kinds by name, and what calls say by strings: the kind, and where up comes from (null for the
// default).
inline constexpr const char* kActivationNames[] = {"silu", "gelu", "gelu_tanh", "sigmoid", "relu2"};
const char* activation_name(Activation kind);
Activation activation_from_python(PyObject* kind, const char* op);
GateForm gate_form_from_python(PyObject* packing, bool has_up, const char* op);

// Gate and up of an array that holds both.
inline bool is_packed(GateForm form) {
  return form == GateForm::kHalves || form == GateForm::kInterleaved;
}
GateAndUp<void*> split_packed(const TensorView& packed, GateForm form, const char* op,
                              const char* argument);

}  // namespace membound::python
