// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <optional>

#include "call.hpp"

// What the functions with a result of 8 bits share on their way from Python to C++, whatever they
// quantise. Null is an argument that was not given.
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

// What they say beside the arrays.
struct Quantisation {
  std::optional<DType> dtype;   // none: that of out, or float8_e4m3fn
  std::int64_t group_size = 0;  // 0: all of a row
  double scale_upper_bound = std::numeric_limits<double>::infinity();
};
Quantisation quantisation_from_python(const QuantArguments& given);

// The same from numbers: the dtypes by name, and 64 or 128 columns, refused otherwise.
inline constexpr DType kQuantised[] = {DType::kFloat8E4M3, DType::kFloat8E5M2, DType::kInt8};
std::int64_t given_group_size(std::int64_t size, const char* op);

// The keywords of the function of membound.jax; JAX has no arrays to write to.
void add_jax_keywords(nb::dict& keywords, const ArrayCall& call, const QuantArguments& given,
                      const Quantisation& quantisation);
// A static scale and an array for dynamic ones exclude each other.
void check_one_scale(const QuantArguments& given);

// The array that the caller gave to write codes to, or a new one like `like`, a view of the shape
// that is quantised.
nb::object make_codes(const ArrayCall& call, const QuantArguments& given,
                      const Quantisation& quantisation, PyObject* like, TensorView values,
                      LoadedArray& loaded);
// Likewise for dynamic scales.
nb::object make_scales(const ArrayCall& call, const QuantArguments& given,
                       const Quantisation& quantisation, PyObject* like, const TensorView& values,
                       LoadedArray& loaded);

}  // namespace membound::python
