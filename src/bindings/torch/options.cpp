// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "torch/options.hpp"

#include <algorithm>

#include "norm.hpp"
#include "rope.hpp"

namespace membound::python::torch {

RmsNormOptions RmsNormNumbers::options(const char* op) const {
  constexpr const char* kNames[] = {"once", "before_weight"};
  const int place = place_of(rounding.view(), kNames);
  const Rounding known = place == 1 ? Rounding::kBeforeWeight : Rounding::kOnce;
  return {eps, weight_offset, place >= 0 ? known : parse_in_python(rounding, [op](PyObject* value) {
            return rounding_from_python(value, op);
          })};
}

void RopeTables::load(const char* op) {
  for (MaybeTensor* one : {&cos, &sin, &freqs, &position_ids, &seqlen_offsets, &cu_seqlens}) {
    if (*one) (*one)->load(op);
  }
}

RopeOptions RopeNumbers::options(const char* op) const {
  RopeOptions options;
  const int place = place_of(layout.view(), kRopeLayouts);
  options.layout = place >= 0 ? RopeLayout(place) : parse_in_python(layout, [op](PyObject* value) {
    return rope_layout_from_python(value, op);
  });
  options.interleaved = interleaved;
  options.inverse = inverse;
  options.validate = validate;
  options.interleaved_sections = interleaved_sections;
  options.attention_scaling = attention_scaling;
  if (rotary_dim) options.rotary_dim = given_rotary_dim(*rotary_dim, op);
  options.rotary_offset = rotary_offset;
  options.position_offset = start;
  if (sections) {
    options.section_count = given_section_count(sections->size(), op);
    std::copy(sections->begin(), sections->end(), options.sections);
  }
  return options;
}

}  // namespace membound::python::torch
