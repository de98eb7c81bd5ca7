// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "call.hpp"
#include "membound/ops/rms_norm.hpp"

// What the functions of the norms share on their way from Python to C++. Each names the arguments
// that it has; null is one that was not given, or that the function does not have.
namespace membound::python {

struct NormCall {
  const char* op;  // in errors
  bool centred = false;
  PyObject* x;
  PyObject* residual = nullptr;
  PyObject* weight;
  PyObject* bias = nullptr;
  PyObject* eps;
  PyObject* weight_offset = nullptr;
  PyObject* rounding = nullptr;
  PyObject* out;
  PyObject* residual_out = nullptr;
  PyObject* return_statistics;
  PyObject* stream;
  PyObject* device;
  double default_weight_offset = 0.0;  // another one needs a weight
};
nb::object call_norm(const NormCall& given);

// In place on input and residual, by positions: input, residual, weight, epsilon.
nb::object call_fused_add_norm(const char* op, PyObject* const* values, double weight_offset);

struct NormBackwardCall {
  const char* op;
  const char* x_name;
  PyObject* dy;
  PyObject* dresidual_out = nullptr;
  PyObject* x;
  PyObject* weight;
  PyObject* mean = nullptr;
  PyObject* rstd;
  PyObject* weight_offset;
  PyObject* rounding = nullptr;
  PyObject* dx;
  PyObject* dweight;
  PyObject* dbias = nullptr;
  PyObject* need_dx;
  PyObject* need_dweight;
  PyObject* need_dbias = nullptr;
  PyObject* accumulate;
  PyObject* stream;

  bool centred() const { return mean != nullptr; }
};
nb::object call_norm_backward(const NormBackwardCall& given);

// "once" or "before_weight", null for the default; and back.
Rounding rounding_from_python(PyObject* value, const char* op);
const char* rounding_name(Rounding rounding);

}  // namespace membound::python
