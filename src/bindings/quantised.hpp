// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <optional>

#include "call.hpp"

// The arguments of all functions with an 8-bit result. Null: not given.
namespace membound::python {

struct QuantArguments {
  const char* op;
  PyObject* dtype;
  PyObject* scale;
  PyObject* group_size;
  PyObject* scale_upper_bound;
  PyObject* out;
  PyObject* scale_out;
};
// Those among the arguments of a call.
template <class Call>
QuantArguments quant_arguments(const Call& a) {
  return {a.op, a.dtype, a.scale, a.group_size, a.scale_upper_bound, a.out, a.scale_out};
}

// Their options.
struct Quantisation {
  std::optional<DType> dtype;   // none: the dtype of out, or float8_e4m3fn
  std::int64_t group_size = 0;  // 0: one scale per row
  double scale_upper_bound = std::numeric_limits<double>::infinity();
};
Quantisation quantisation_from_python(const QuantArguments& given);

// The same from converted values: a dtype by name, and 64 or 128 columns; throws otherwise.
inline constexpr DType kQuantised[] = {DType::kFloat8E4M3, DType::kFloat8E5M2, DType::kInt8};
std::int64_t given_group_size(std::int64_t size, const char* op);

// The keywords of the function of membound.jax; JAX has no arrays to write to.
void add_jax_keywords(nb::dict& keywords, const ArrayCall& call, const QuantArguments& given,
                      const Quantisation& quantisation);
// A static scale and an array for dynamic ones exclude each other.
void check_one_scale(const QuantArguments& given);

// The output array that the caller gave for codes, or a new one of the shape of `like`.
nb::object make_codes(const ArrayCall& call, const QuantArguments& given,
                      const Quantisation& quantisation, PyObject* like, TensorView values,
                      LoadedArray& loaded);
// Likewise for dynamic scales.
nb::object make_scales(const ArrayCall& call, const QuantArguments& given,
                       const Quantisation& quantisation, PyObject* like, const TensorView& values,
                       LoadedArray& loaded);

}  // namespace membound::python
