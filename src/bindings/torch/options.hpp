// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include "membound/ops/rms_norm.hpp"
#include "membound/ops/rope.hpp"
#include "quantised.hpp"
#include "torch/kernel.hpp"

// Options of operators; enumerations are passed as strings.
namespace membound::python::torch {

namespace nb = nanobind;

// The index of a name among those of an option; -1 if it is none of them.
template <std::size_t kCount>
int place_of(std::string_view name, const char* const (&names)[kCount]) {
  for (std::size_t i = 0; i < kCount; ++i) {
    if (name == names[i]) return static_cast<int>(i);
  }
  return -1;
}

// parse(object) for a string that the kernel does not know: the parser of Python calls refuses it
// with its own error text.
template <class Parse>
auto parse_in_python(const Text& text, Parse parse) {
  const nb::gil_scoped_acquire held;
  const std::string_view view = text.view();
  const nb::str value(view.data(), view.size());
  return parse(value.ptr());
}

// The last three options of the norms without a mean.
struct RmsNormNumbers {
  double eps;
  double weight_offset;
  Text rounding;
  using Members = MembersOf<double, double, Text>;

  RmsNormOptions options(const char* op) const;
};

// The options of quantisation, except the static scale.
struct QuantNumbers {
  Text dtype;
  std::optional<std::int64_t> group_size;
  std::optional<double> scale_upper_bound;
  using Members = MembersOf<Text, std::optional<std::int64_t>, std::optional<double>>;

  Quantisation quantisation(const char* op) const;
};
// New codes for the values, and their scales: an empty tensor if the scale is static.
Tensor new_codes(TensorView values, const Quantisation& quantisation);
Tensor new_scales(const TensorView& values, const Quantisation& quantisation,
                  const MaybeTensor& scale);

// The arrays and options of rope, which determine the angles of tokens and the rotated part of
// heads.
struct RopeTables {
  MaybeTensor cos, sin, freqs, position_ids, seqlen_offsets, cu_seqlens;
  using Members =
      MembersOf<MaybeTensor, MaybeTensor, MaybeTensor, MaybeTensor, MaybeTensor, MaybeTensor>;

  void load(const char* op);
  RopeAngles angles() const {
    return {input_of(cos),
            input_of(sin),
            input_of(freqs),
            input_of(position_ids),
            input_of(seqlen_offsets),
            input_of(cu_seqlens)};
  }
};

struct RopeNumbers {
  std::int64_t start;
  Text layout;
  bool interleaved;
  std::optional<std::int64_t> rotary_dim;
  std::int64_t rotary_offset;
  std::optional<std::vector<std::int64_t>> sections;
  bool interleaved_sections;
  double attention_scaling;
  bool inverse;
  bool validate;
  using Members = MembersOf<std::int64_t, Text, bool, std::optional<std::int64_t>, std::int64_t,
                            std::optional<std::vector<std::int64_t>>, bool, double, bool, bool>;

  RopeOptions options(const char* op) const;
};

}  // namespace membound::python::torch
