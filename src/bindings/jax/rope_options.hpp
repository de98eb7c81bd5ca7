// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "jax_handlers.hpp"
#include "rope.hpp"

// What the handlers of rotations share.
namespace membound::python::jax {

template <class Given>
RopeOptions rope_options_of(const Given& a) {
  RopeOptions options;
  options.layout = static_cast<RopeLayout>(a.layout);
  options.interleaved = a.interleaved;
  options.inverse = a.inverse;
  options.validate = a.validate;
  if (a.rotary_dim) options.rotary_dim = given_rotary_dim(*a.rotary_dim, a.op);
  options.rotary_offset = a.rotary_offset;
  options.position_offset = a.start;
  options.attention_scaling = a.attention_scaling;
  options.interleaved_sections = a.interleaved_sections;
  if (a.sections) {
    options.section_count = given_section_count(a.sections->size(), a.op);
    std::copy(a.sections->begin(), a.sections->end(), options.sections);
  }
  return options;
}

// The arrays that determine the angles of tokens.
struct Angles {
  OptionalView cos, sin, freqs, position_ids, seqlen_offsets, cu_seqlens;

  template <class Given>
  explicit Angles(const Given& a)
      : cos(a.cos),
        sin(a.sin),
        freqs(a.freqs),
        position_ids(a.position_ids),
        seqlen_offsets(a.seqlen_offsets),
        cu_seqlens(a.cu_seqlens) {}
  operator RopeAngles() const {
    return {cos, sin, freqs, position_ids, seqlen_offsets, cu_seqlens};
  }
};

// Checks a call with the library's error texts, by shapes and dtypes: values of positions are
// unknown. Returns the bytes of its workspace.
std::int64_t check(const Rope& traced);
std::int64_t check(const QkNormRope& traced);
std::int64_t check(const QkNormRopeBackward& traced);

}  // namespace membound::python::jax
