// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "call.hpp"
#include "membound/ops/rope.hpp"

namespace membound::python {

// The arguments of rope and rope_backward; null: not given. q and k are the rotated arrays: the
// gradients in the backward.
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
  PyObject* out;
  PyObject* k_out;
  PyObject* stream;
  // Backward only: rope's inputs, for the gradient of the frequencies.
  PyObject* q_read = nullptr;
  PyObject* k_read = nullptr;
  PyObject* dfreqs = nullptr;
  // What all of rope's functions have.
  PyObject* freqs = nullptr;
  PyObject* position_ids = nullptr;
  PyObject* seqlen_offsets = nullptr;
  PyObject* cu_seqlens = nullptr;
  PyObject* layout = nullptr;
  PyObject* interleaved = nullptr;
  PyObject* rotary_dim = nullptr;
  PyObject* rotary_offset = nullptr;
  PyObject* sections = nullptr;
  PyObject* interleaved_sections = nullptr;
  PyObject* attention_scaling = nullptr;
  PyObject* inverse = nullptr;
  PyObject* validate = nullptr;
};

nb::object call_rope(const RopeArguments& given);

// The arguments that are not arrays.
RopeOptions rope_options(const RopeArguments& given);

// The names of RopeLayout; a layout by name, null for the default; and a check for numbers that the
// library would interpret as "not given".
inline constexpr const char* kRopeLayouts[] = {"bshd", "sbhd", "bhsd", "thd"};
RopeLayout rope_layout_from_python(PyObject* layout, const char* op);
std::int64_t given_rotary_dim(std::int64_t rotary_dim, const char* op);
int given_section_count(std::size_t count, const char* op);

// The keyword arguments of membound.jax: all but q, k, cos, sin and outputs.
nb::dict rope_keywords(const ArrayCall& call, const RopeArguments& given);

// The arrays that determine the angles of tokens.
struct RopeInputs {
  OptionalInput cos, sin, freqs, position_ids, seqlen_offsets, cu_seqlens;

  RopeInputs(const ArrayCall& call, const RopeArguments& given);
  RopeAngles angles() const { return {cos, sin, freqs, position_ids, seqlen_offsets, cu_seqlens}; }
};

}  // namespace membound::python
