// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "call.hpp"
#include "membound/ops/rope.hpp"

namespace membound::python {

// The arguments of rope and rope_backward; null where the caller gave none. q and k are what is
// turned: the gradients in the backward.
struct RopeArguments {
  const char* op;
  const char* q_name;
  const char* k_name;
  const char* out_name;
  const char* k_out_name;
  bool backward = false;
  PyObject* q;
  PyObject* k;
  PyObject* cos;
  PyObject* sin;
  PyObject* freqs;
  PyObject* position_ids;
  PyObject* seqlen_offsets;
  PyObject* cu_seqlens;
  PyObject* layout;
  PyObject* interleaved;
  PyObject* rotary_dim;
  PyObject* rotary_offset;
  PyObject* sections;
  PyObject* interleaved_sections;
  PyObject* attention_scaling;
  PyObject* inverse;
  PyObject* validate;
  PyObject* out;
  PyObject* k_out;
  PyObject* stream;
  // The backward's alone: what rope read, for the gradient of the frequencies.
  PyObject* q_read = nullptr;
  PyObject* k_read = nullptr;
  PyObject* dfreqs = nullptr;
};
nb::object call_rope(const RopeArguments& given);

// Those of the arguments that are no arrays.
RopeOptions rope_options(const RopeArguments& given);

}  // namespace membound::python
