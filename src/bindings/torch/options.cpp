// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "torch/options.hpp"

#include <algorithm>

#include "norm.hpp"
#include "norm_ops.hpp"
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

Quantisation QuantNumbers::quantisation(const char* op) const {
  Quantisation found;
  if (group_size) found.group_size = given_group_size(*group_size, op);
  if (scale_upper_bound) found.scale_upper_bound = *scale_upper_bound;
  for (const DType one : kQuantised) {
    if (dtype.view() == dtype_name(one)) found.dtype = one;
  }
  if (!found.dtype) {
    found.dtype = parse_in_python(dtype, [op](PyObject* value) {
      QuantArguments arguments{};
      arguments.op = op;
      arguments.dtype = value;
      return quantisation_from_python(arguments).dtype;
    });
  }
  return found;
}

Tensor new_codes(TensorView values, const Quantisation& quantisation) {
  values.dtype = *quantisation.dtype;
  return new_like(values);
}

Tensor new_scales(const TensorView& values, const Quantisation& quantisation,
                  const MaybeTensor& scale) {
  return scale ? new_empty(scale->view())
               : new_like(quant_scales_of(values, quantisation.group_size));
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
