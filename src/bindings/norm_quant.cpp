// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <iterator>
#include <optional>

#include "core/check.hpp"
#include "norm.hpp"
#include "norm_ops.hpp"

namespace membound::python {

namespace {

constexpr DType kQuantised[] = {DType::kFloat8E4M3, DType::kFloat8E5M2, DType::kInt8};

std::optional<DType> find_name(nb::handle name) {
  for (const DType dtype : kQuantised) {
    if (PyUnicode_CompareWithASCIIString(name.ptr(), dtype_name(dtype)) == 0) return dtype;
  }
  return std::nullopt;
}

// A framework's own object of a dtype. The first one seen of each is kept: a comparison in place of
// a Python call.
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

// Of the dtype argument, if there is one.
std::optional<DType> wanted_dtype(const NormQuantCall& given_call) {
  if (!given(given_call.dtype)) return std::nullopt;
  PyObject* value = given_call.dtype;
  const std::optional<DType> dtype = PyUnicode_Check(value) ? find_name(value) : find_object(value);
  MEMBOUND_CHECK(dtype.has_value(), TypeMismatch, given_call.op,
                 "argument 'dtype' must be float8_e4m3fn, float8_e5m2 or int8, got ",
                 nb::repr(nb::handle(value)).c_str());
  return dtype;
}

std::int64_t group_size_of(const NormQuantCall& given_call) {
  PyObject* value = given_call.group_size;
  if (!given(value)) return 0;
  const bool is_integer = PyIndex_Check(value) && !PyBool_Check(value);
  MEMBOUND_CHECK(is_integer, TypeMismatch, given_call.op,
                 "argument 'group_size' must be 64, 128 or None, got ", type_name(value));
  const Py_ssize_t size = PyNumber_AsSsize_t(value, nullptr);
  MEMBOUND_CHECK(size == 64 || size == 128, InvalidArgument, given_call.op,
                 "argument 'group_size' must be 64, 128 or None, got ", size);
  return size;
}

RmsNormQuantOptions options_of(const NormQuantCall& given_call) {
  const char* op = given_call.op;
  RmsNormQuantOptions options;
  options.eps = number_or(given_call.eps, options.eps, {op, "eps"});
  options.weight_offset =
      number_or(given_call.weight_offset, options.weight_offset, {op, "weight_offset"});
  options.rounding = rounding_from_python(given_call.rounding, op);
  options.group_size = group_size_of(given_call);
  if (given(given_call.scale_upper_bound)) {
    options.scale_upper_bound =
        number_from_python(given_call.scale_upper_bound, {op, "scale_upper_bound"});
  }
  return options;
}

nb::object call_jax(const ArrayCall& call, const NormQuantCall& given_call,
                    const RmsNormQuantOptions& options, DType dtype) {
  nb::list arrays;
  arrays.append(nb::handle(given_call.x));
  if (given_call.residual) arrays.append(call.check_jax_input(given_call.residual, "residual"));
  arrays.append(call.check_jax_input(given_call.weight, "weight"));
  call.check_jax_absent(given_call.out, "out", "which cannot be written");
  call.check_jax_absent(given_call.residual_out, "residual_out", "which cannot be written");
  call.check_jax_absent(given_call.scale_out, "scale_out", "which cannot be written");
  call.check_jax_absent(given_call.stream, "stream", "whose stream XLA picks");
  nb::dict keywords;
  keywords["dtype"] = dtype_name(dtype);
  keywords["scale"] = call.check_jax_input(given_call.scale, "scale");
  if (options.group_size != 0) keywords["group_size"] = options.group_size;
  if (given(given_call.scale_upper_bound))
    keywords["scale_upper_bound"] = options.scale_upper_bound;
  keywords["eps"] = options.eps;
  keywords["weight_offset"] = options.weight_offset;
  keywords["rounding"] = rounding_name(options.rounding);
  return nb::module_::import_("membound.jax").attr(given_call.op)(*arrays, **keywords);
}

struct Loaded {
  LoadedArray x, residual, weight, static_scale, out, residual_out, scale;
};

void read_inputs(const ArrayCall& call, const NormQuantCall& given_call, Loaded& loaded,
                 NormQuantArrays& arrays) {
  auto read = [&](PyObject* array, const char* argument, LoadedArray& into) {
    call.read_input(array, argument, into);
    return &into.view;
  };
  arrays.x = read(given_call.x, "x", loaded.x);
  if (given_call.residual) arrays.residual = read(given_call.residual, "residual", loaded.residual);
  if (given(given_call.weight)) arrays.weight = read(given_call.weight, "weight", loaded.weight);
  if (given(given_call.scale))
    arrays.static_scale = read(given_call.scale, "scale", loaded.static_scale);
}

// The array that the caller gave to write to, or a new one of the wanted shape and dtype.
nb::object output(const ArrayCall& call, const NormQuantCall& given_call, PyObject* array,
                  const TensorView& wanted, const char* argument, LoadedArray& loaded) {
  if (!given(array)) return call.new_as(given_call.x, wanted, argument, loaded);
  call.read_output(array, argument, loaded);
  return nb::borrow(array);
}

nb::object make_out(const ArrayCall& call, const NormQuantCall& given_call,
                    std::optional<DType> dtype, Loaded& loaded) {
  TensorView wanted = loaded.x.view;
  wanted.dtype = dtype.value_or(DType::kFloat8E4M3);
  nb::object out = output(call, given_call, given_call.out, wanted, "out", loaded.out);
  MEMBOUND_CHECK(!dtype || loaded.out.view.dtype == *dtype, TypeMismatch, given_call.op,
                 "argument 'out' must be ", dtype_name(*dtype), " as 'dtype' says, got ",
                 dtype_name(loaded.out.view.dtype));
  return out;
}

// out alone, or a tuple of out, residual_out and scale.
nb::object make_outputs(const ArrayCall& call, const NormQuantCall& given_call,
                        std::optional<DType> dtype, std::int64_t group_size, Loaded& loaded,
                        NormQuantArrays& arrays) {
  const TensorView& x = loaded.x.view;
  nb::object out = make_out(call, given_call, dtype, loaded), sum, scale;
  arrays.out = &loaded.out.view;
  if (given_call.residual) {
    sum =
        call.output(given_call.residual_out, given_call.x, x, "residual_out", loaded.residual_out);
    arrays.residual_out = &loaded.residual_out.view;
  }
  if (!arrays.static_scale) {
    scale = output(call, given_call, given_call.scale_out, quant_scales_of(x, group_size),
                   "scale_out", loaded.scale);
    arrays.scale = &loaded.scale.view;
  }
  if (!sum.is_valid() && !scale.is_valid()) return out;
  return tuple_of({out, sum, scale});
}

}  // namespace

nb::object call_norm_quant(const NormQuantCall& given_call) {
  const char* op = given_call.op;
  const ArrayCall call(op, given_call.x, "x", given_call.stream);
  const RmsNormQuantOptions options = options_of(given_call);
  const std::optional<DType> dtype = wanted_dtype(given_call);
  if (call.is_jax()) return call_jax(call, given_call, options, dtype.value_or(DType::kFloat8E4M3));
  MEMBOUND_CHECK(!given(given_call.scale) || !given(given_call.scale_out), TypeMismatch, op,
                 "argument 'scale_out' must be None with a static scale, got ",
                 type_name(given_call.scale_out));

  Loaded loaded;
  NormQuantArrays arrays;
  read_inputs(call, given_call, loaded, arrays);
  const nb::object results =
      make_outputs(call, given_call, dtype, options.group_size, loaded, arrays);
  {
    const StreamView stream = call.stream(loaded.x.view.device);
    const GilRelease released(is_long_on_cpu(loaded.x.view));
    run_norm_quant(options, arrays, stream);
  }
  call.mark_written({given_call.out, given_call.residual_out, given_call.scale_out});
  return results;
}

}  // namespace membound::python
