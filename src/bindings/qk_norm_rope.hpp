// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "membound/ops/qk_norm_rope.hpp"
#include "rope.hpp"

namespace membound::python {

// The arguments of qk_norm_rope; null where the caller gave none.
struct QkNormRopeArguments : RopeArguments {
  PyObject* q_weight;
  PyObject* k_weight;
  PyObject* eps;
  PyObject* weight_offset;
  PyObject* rounding;
  // Forward only: the caches that k is written to instead of k_out, and v with it.
  PyObject* v = nullptr;
  PyObject* key_cache = nullptr;
  PyObject* value_cache = nullptr;
  PyObject* slot_mapping = nullptr;
  PyObject* return_rstd = nullptr;
};

// Of the gradients: as in rope's, q and k are dq and dk, out and k_out dq_out and dk_out, and
// q_read and k_read what the forward read.
struct QkNormRopeBackwardArguments : QkNormRopeArguments {
  PyObject* q_rstd;
  PyObject* k_rstd;
  PyObject* accumulate;
  PyObject* need_dweight;
  PyObject* dq_weight;
  PyObject* dk_weight;
};

nb::object call_qk_norm_rope(const QkNormRopeArguments& given);
nb::object call_qk_norm_rope_backward(const QkNormRopeBackwardArguments& given);

QkNormRopeOptions qk_norm_rope_options(const QkNormRopeArguments& given);

// The names of QkNormRounding, and a lookup by name; null is the default.
inline constexpr const char* kQkNormRoundings[] = {"once", "before_weight", "before_rotation"};
QkNormRounding qk_norm_rounding_from_python(PyObject* rounding, const char* op);

}  // namespace membound::python
