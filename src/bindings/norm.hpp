// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "call.hpp"
#include "membound/ops/rms_norm.hpp"

// The arguments of all norm functions. Null: not given, or not an argument of that function.
namespace membound::python {

struct NormCall {
  const char* op;  // in errors
  bool centred = false;
  PyObject* x;
  PyObject* residual = nullptr;
  PyObject* z = nullptr;  // the gate
  PyObject* weight;
  PyObject* bias = nullptr;
  PyObject* norm_before_gate = nullptr;
  PyObject* eps;
  PyObject* weight_offset = nullptr;
  PyObject* rounding = nullptr;
  PyObject* dtype = nullptr;  // dtype of the result
  PyObject* normalized_shape = nullptr;
  PyObject* out;
  PyObject* residual_out = nullptr;
  PyObject* return_statistics;
  PyObject* stream;
  PyObject* device;
  double default_weight_offset = 0.0;  // any other value requires a weight
};
nb::object call_norm(const NormCall& given);

// In place on x and residual. In errors x is named input, and eps epsilon.
nb::object call_fused_add_norm(const NormCall& given);

struct NormBackwardCall {
  const char* op;
  const char* x_name;
  PyObject* dy;
  PyObject* dresidual_out = nullptr;
  PyObject* x;
  PyObject* z = nullptr;
  PyObject* weight;
  PyObject* mean = nullptr;
  PyObject* rstd;
  PyObject* norm_before_gate = nullptr;
  PyObject* weight_offset;
  PyObject* rounding = nullptr;
  PyObject* normalized_shape = nullptr;
  PyObject* dx;
  PyObject* dresidual = nullptr;
  PyObject* dz = nullptr;
  PyObject* dweight;
  PyObject* dbias = nullptr;
  PyObject* need_dx;
  PyObject* need_dresidual = nullptr;
  PyObject* need_dz = nullptr;
  PyObject* need_dweight;
  PyObject* need_dbias = nullptr;
  PyObject* accumulate;
  PyObject* stream;

  bool centred() const { return mean != nullptr; }
  bool gated() const { return z != nullptr; }
  bool added() const { return dresidual_out != nullptr; }
};
nb::object call_norm_backward(const NormBackwardCall& given);

struct NormQuantCall {
  const char* op;
  PyObject* x;
  PyObject* residual = nullptr;
  PyObject* weight;
  PyObject* dtype;
  PyObject* scale;
  PyObject* group_size;
  PyObject* scale_upper_bound;
  PyObject* eps;
  PyObject* weight_offset;
  PyObject* rounding;
  PyObject* out;
  PyObject* residual_out = nullptr;
  PyObject* scale_out;
  PyObject* stream;
};
nb::object call_norm_quant(const NormQuantCall& given);

// The results that exist, as a tuple.
nb::object tuple_of(std::initializer_list<nb::object> results);

// Conversions from and to "once" and "before_weight"; null is the default.
Rounding rounding_from_python(PyObject* value, const char* op);
const char* rounding_name(Rounding rounding);

}  // namespace membound::python
