// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "call.hpp"
#include "membound/ops/rms_norm.hpp"

// What the functions of the RMSNorm family share on their way from Python to C++.
namespace membound::python {

// "once" or "before_weight", null for the default; and back.
Rounding rounding_from_python(PyObject* value, const char* op);
const char* rounding_name(Rounding rounding);

// From the arguments of those names, each null where it was not given.
RmsNormOptions norm_options(const char* op, PyObject* eps, PyObject* weight_offset,
                            PyObject* rounding);

// The arguments of a backward function that follow the gradients, in its own order.
enum BackwardParameter {
  kBackwardX,
  kBackwardWeight,
  kBackwardRstd,
  kBackwardWeightOffset,
  kBackwardRounding,
  kBackwardDx,
  kBackwardDweight,
  kBackwardNeedDx,
  kBackwardNeedDweight,
  kBackwardAccumulate,
  kBackwardStream,
};

// rms_norm_backward, and with dresidual_out (else null) add_rms_norm_backward.
struct BackwardCall {
  const char* op;
  const char* x_name;
  PyObject* dy;
  PyObject* dresidual_out;
  PyObject* const* rest;  // by BackwardParameter
};
nb::object call_norm_backward(const BackwardCall& call);

}  // namespace membound::python
