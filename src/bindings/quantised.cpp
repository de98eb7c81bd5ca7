// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "quantised.hpp"

#include <atomic>
#include <iterator>

#include "core/check.hpp"
#include "errors.hpp"
#include "norm_ops.hpp"

namespace membound::python {

namespace {

std::optional<DType> find_name(nb::handle name) {
  for (const DType dtype : kQuantised) {
    if (PyUnicode_CompareWithASCIIString(name.ptr(), dtype_name(dtype)) == 0) return dtype;
  }
  return std::nullopt;
}

// Frameworks' dtype objects. The first one of each dtype is cached: a comparison replaces a Python
// call.
std::optional<DType> find_object(PyObject* value) {
  constexpr int kCount = std::size(kQuantised);
  static std::atomic<PyObject*> known[kCount];
  for (int i = 0; i < kCount; ++i) {
    if (value == known[i].load(std::memory_order_acquire)) return kQuantised[i];
  }
  const nb::object name = arrays_module().attr("dtype_name")(nb::handle(value));
  const std::optional<DType> dtype = name.is_none() ? std::nullopt : find_name(name);
  for (int i = 0; i < kCount; ++i) {
    PyObject* nothing = nullptr;
    if (dtype == kQuantised[i] && known[i].compare_exchange_strong(nothing, value))
      Py_INCREF(value);
  }
  return dtype;
}

// The value of dtype=, if given.
std::optional<DType> wanted_dtype(const QuantArguments& arguments) {
  if (!given(arguments.dtype)) return std::nullopt;
  PyObject* value = arguments.dtype;
  const std::optional<DType> dtype = PyUnicode_Check(value) ? find_name(value) : find_object(value);
  MEMBOUND_CHECK(dtype.has_value(), TypeMismatch, arguments.op,
                 "argument 'dtype' must be float8_e4m3fn, float8_e5m2 or int8, got ",
                 repr_of(value));
  return dtype;
}

std::int64_t group_size_of(const QuantArguments& arguments) {
  PyObject* value = arguments.group_size;
  if (!given(value)) return 0;
  const bool is_integer = PyIndex_Check(value) && !PyBool_Check(value);
  MEMBOUND_CHECK(is_integer, TypeMismatch, arguments.op,
                 "argument 'group_size' must be 64, 128 or None, got ", type_name(value));
  const Py_ssize_t size = PyNumber_AsSsize_t(value, nullptr);
  if (size == -1 && PyErr_Occurred()) {
    PyErr_Clear();  // an array of several numbers has __index__, too
    fail<TypeMismatch>(arguments.op, "argument 'group_size' must be 64, 128 or None, got ",
                       type_name(value));
  }
  return given_group_size(size, arguments.op);
}

// The output array that the caller gave, or a new one of the wanted shape and dtype.
nb::object output(const ArrayCall& call, PyObject* array, PyObject* like, const TensorView& wanted,
                  const char* argument, LoadedArray& loaded) {
  if (!given(array)) return call.new_as(like, wanted, argument, loaded);
  call.read_output(array, argument, loaded);
  return nb::borrow(array);
}

}  // namespace

std::int64_t given_group_size(std::int64_t size, const char* op) {
  MEMBOUND_CHECK(size == 64 || size == 128, InvalidArgument, op,
                 "argument 'group_size' must be 64, 128 or None, got ", size);
  return size;
}

Quantisation quantisation_from_python(const QuantArguments& arguments) {
  Quantisation quantisation;
  quantisation.group_size = group_size_of(arguments);
  if (given(arguments.scale_upper_bound)) {
    quantisation.scale_upper_bound =
        number_from_python(arguments.scale_upper_bound, {arguments.op, "scale_upper_bound"});
  }
  quantisation.dtype = wanted_dtype(arguments);
  return quantisation;
}

void add_jax_keywords(nb::dict& keywords, const ArrayCall& call, const QuantArguments& arguments,
                      const Quantisation& quantisation) {
  call.check_jax_absent(arguments.out, "out", "which cannot be written");
  call.check_jax_absent(arguments.scale_out, "scale_out", "which cannot be written");
  keywords["dtype"] = dtype_name(quantisation.dtype.value_or(DType::kFloat8E4M3));
  keywords["scale"] = call.check_jax_input(arguments.scale, "scale");
  if (quantisation.group_size != 0) keywords["group_size"] = quantisation.group_size;
  if (given(arguments.scale_upper_bound))
    keywords["scale_upper_bound"] = quantisation.scale_upper_bound;
}

void check_one_scale(const QuantArguments& arguments) {
  MEMBOUND_CHECK(!given(arguments.scale) || !given(arguments.scale_out), TypeMismatch, arguments.op,
                 "argument 'scale_out' must be None with a static scale, got ",
                 type_name(arguments.scale_out));
}

nb::object make_codes(const ArrayCall& call, const QuantArguments& arguments,
                      const Quantisation& quantisation, PyObject* like, TensorView values,
                      LoadedArray& loaded) {
  const std::optional<DType> dtype = quantisation.dtype;
  values.dtype = dtype.value_or(DType::kFloat8E4M3);
  nb::object out = output(call, arguments.out, like, values, "out", loaded);
  MEMBOUND_CHECK(!dtype || loaded.view.dtype == *dtype, TypeMismatch, arguments.op,
                 "argument 'out' must be ", dtype_name(*dtype), " as 'dtype' says, got ",
                 dtype_name(loaded.view.dtype));
  return out;
}

nb::object make_scales(const ArrayCall& call, const QuantArguments& arguments,
                       const Quantisation& quantisation, PyObject* like, const TensorView& values,
                       LoadedArray& loaded) {
  return output(call, arguments.scale_out, like, quant_scales_of(values, quantisation.group_size),
                "scale_out", loaded);
}

}  // namespace membound::python
