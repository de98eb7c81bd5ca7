// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// The functions array_*, from which membound.ndarray is made.
#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "array/array.hpp"
#include "membound/array/adamw.hpp"
#include "membound/array/copy.hpp"
#include "membound/array/indexing.hpp"
#include "membound/array/linear_algebra.hpp"
#include "membound/array/random.hpp"
#include "membound/array/reduction.hpp"
#include "membound/array/sorting.hpp"
#include "membound/array/stencil.hpp"

namespace membound::python {

namespace {

using array::Operand;

std::optional<DType> optional_dtype(nb::handle dtype, Site site) {
  if (dtype.is_none()) return std::nullopt;
  return dtype_from_python(dtype, site);
}

// --- creation ---

nb::object make_empty(nb::handle shape, nb::handle dtype, nb::handle device) {
  constexpr const char* kOp = "empty";
  return nb::cast(NDArray::empty(dims_from_python(shape, {kOp, "shape"}),
                                 dtype_from_python(dtype, {kOp, "dtype"}),
                                 array_device_from_python(device, kOp)));
}

nb::object make_full(nb::handle shape, nb::handle value, nb::handle dtype, nb::handle device) {
  constexpr const char* kOp = "full";
  NDArray result = NDArray::empty(dims_from_python(shape, {kOp, "shape"}),
                                  dtype_from_python(dtype, {kOp, "dtype"}),
                                  array_device_from_python(device, kOp));
  const Scalar scalar = scalar_argument(value, {kOp, "fill_value"});
  array::check_scalar(scalar, result.dtype(), kOp);
  run_array_work(result.size(), [&] { result.fill(scalar); });
  return nb::cast(std::move(result));
}

nb::object from_object(nb::handle object, nb::handle device, nb::handle copy) {
  constexpr const char* kOp = "from";
  NDArray array = array_from_python(object, {kOp, "x"});
  const Device wanted = device.is_none() ? array.device() : array_device_from_python(device, kOp);
  const bool moves = wanted != array.device();
  MEMBOUND_CHECK(!moves || copy.ptr() != Py_False, InvalidArgument, kOp, "argument 'x' is on ",
                 device_name(array.device()), ", so that ", device_name(wanted),
                 " needs a copy, and copy is False");
  if (moves) array = run_array_work(array.size(), [&] { return array.to(wanted); });
  if (!moves && copy.ptr() == Py_True)
    array = run_array_work(array.size(), [&] { return array.copy(); });
  return nb::cast(std::move(array));
}

// The shape of nested sequences, and their numbers in C order.
struct Nested {
  NDArray::Dims shape;
  std::vector<Scalar> values;
  bool is_complete = false;  // the shape is known down to the numbers

  void read(nb::handle item, std::size_t depth) {
    if (!PyList_Check(item.ptr()) && !PyTuple_Check(item.ptr())) {
      MEMBOUND_CHECK(!is_complete || depth == shape.size(), InvalidArgument, "asarray",
                     "nested sequences must have the same lengths");
      is_complete = true;
      values.push_back(scalar_argument(item, {"asarray", "obj"}));
      return;
    }
    const auto length = static_cast<std::int64_t>(nb::len(item));
    if (depth == shape.size() && !is_complete) shape.push_back(length);
    MEMBOUND_CHECK(depth < shape.size() && shape[depth] == length, InvalidArgument, "asarray",
                   "nested sequences must have the same lengths");
    for (nb::handle inner : item) read(inner, depth + 1);
    if (length == 0) is_complete = true;
  }
  // bool, int64, uint64 where an integer needs it, or `floating`.
  DType dtype(DType floating) const {
    bool all_bools = !values.empty(), natural = false, real = values.empty();
    for (const Scalar& value : values) {
      all_bools &= value.kind == Scalar::Kind::kBool;
      natural |= value.kind == Scalar::Kind::kUnsigned;
      real |= value.kind == Scalar::Kind::kFloating;
    }
    if (real) return floating;
    return all_bools ? DType::kBool : natural ? DType::kUInt64 : DType::kInt64;
  }
};

nb::object from_nested(nb::handle object, nb::handle dtype, nb::handle device) {
  constexpr const char* kOp = "asarray";
  Nested nested;
  nested.read(object, 0);
  const DType wanted =
      optional_dtype(dtype, {kOp, "dtype"}).value_or(nested.dtype(DType::kFloat64));
  NDArray result = NDArray::empty(nested.shape, wanted);
  NDArray flat = result.reshape({-1});
  for (std::size_t at = 0; at < nested.values.size(); ++at) {
    NDArray place = flat.index({static_cast<std::int64_t>(at)});
    array::check_scalar(nested.values[at], wanted, kOp);
    place.fill(nested.values[at]);
  }
  return nb::cast(result.to(array_device_from_python(device, kOp)));
}

nb::object make_arange(nb::handle start, nb::handle stop, nb::handle step, nb::handle dtype,
                       nb::handle device) {
  constexpr const char* kOp = "arange";
  return nb::cast(
      array::arange(scalar_argument(start, {kOp, "start"}), scalar_argument(stop, {kOp, "stop"}),
                    scalar_argument(step, {kOp, "step"}), dtype_from_python(dtype, {kOp, "dtype"}),
                    array_device_from_python(device, kOp)));
}

nb::object make_linspace(double start, double stop, std::int64_t count, nb::handle dtype,
                         nb::handle device, bool endpoint) {
  constexpr const char* kOp = "linspace";
  return nb::cast(array::linspace(start, stop, count, dtype_from_python(dtype, {kOp, "dtype"}),
                                  array_device_from_python(device, kOp), endpoint));
}

// --- copies ---

void copy_into(nb::handle destination, nb::handle source) {
  NDArray to = array_argument(destination, {"copy_into", "destination"});
  const NDArray from = array_from_python(source, {"copy_into", "source"});
  run_array_work(to.size(), [&] { array::copy_into(to, from); });
}

nb::object astype(const NDArray& x, nb::handle dtype, bool copy, nb::handle device) {
  constexpr const char* kOp = "astype";
  const DType wanted = dtype_from_python(dtype, {kOp, "dtype"});
  const Device where = device.is_none() ? x.device() : array_device_from_python(device, kOp);
  return nb::cast(run_array_work(x.size(), [&] {
    NDArray result = x.astype(wanted).to(where);
    return copy && result.buffer() == x.buffer() ? result.copy() : result;
  }));
}

// --- functions of elements ---

nb::object elementwise(const char* name, nb::args arguments) {
  const ElementwiseOp op = array::elementwise_op(name);
  Operand operands[3] = {false, false, false};
  const std::size_t count = arguments.size();
  MEMBOUND_CHECK(count >= 1 && count <= 3, InvalidArgument, name, "expected 1 to 3 operands, got ",
                 count);
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::optional<Operand> operand = operand_of(arguments[i]);
    MEMBOUND_CHECK(operand.has_value(), TypeMismatch, name, "argument 'x", i + 1,
                   "' must be an NDArray or a number, got ", type_name(arguments[i].ptr()));
    operands[i] = *operand;
    if (operand->array() != nullptr) elements = std::max(elements, operand->array()->size());
  }
  return nb::cast(run_array_work(
      elements, [&] { return array::elementwise(op, operands, static_cast<int>(count)); }));
}

nb::object result_type(nb::args arguments) {
  std::vector<Operand> operands;
  std::vector<NDArray> stand_ins;
  stand_ins.reserve(arguments.size());
  for (nb::handle argument : arguments) {
    const std::optional<Operand> operand =
        nb::isinstance<ArrayDTypeObject>(argument) ? std::nullopt : operand_of(argument);
    if (!operand) {
      const DType dtype = dtype_from_python(argument, {"result_type", "arrays_and_dtypes"});
      stand_ins.push_back(NDArray::empty({0}, dtype));
    }
    operands.push_back(operand ? *operand : Operand(stand_ins.back()));
  }
  MEMBOUND_CHECK(!operands.empty(), InvalidArgument, "result_type", "expected an array or a dtype");
  return dtype_to_python(array::result_type(operands.data(), static_cast<int>(operands.size())));
}

bool can_cast(nb::handle from, nb::handle to) {
  const NDArray* array = array_of(from);
  const DType source =
      array != nullptr ? array->dtype() : dtype_from_python(from, {"can_cast", "from_"});
  const DType target = dtype_from_python(to, {"can_cast", "to"});
  // uint64 and signed integers have no common dtype; integers and floats mix, but do not cast.
  if (is_floating(target) != is_floating(source) && source != DType::kBool) return false;
  try {
    return array::promote(source, target) == target;
  } catch (const TypeMismatch&) {
    return false;
  }
}

nb::object to_bytes(const NDArray& x) {
  const NDArray values = x.to(Device::cpu()).contiguous();
  return nb::bytes(values.data(), static_cast<std::size_t>(values.bytes()));
}
nb::object from_bytes(nb::bytes bytes, nb::handle shape, nb::handle dtype) {
  constexpr const char* kOp = "from_bytes";
  const NDArray result = NDArray::empty(dims_from_python(shape, {kOp, "shape"}),
                                        dtype_from_python(dtype, {kOp, "dtype"}));
  MEMBOUND_CHECK(static_cast<std::int64_t>(bytes.size()) == result.bytes(), InvalidArgument, kOp,
                 "expected ", result.bytes(), " bytes, got ", bytes.size());
  if (result.bytes() > 0) std::memcpy(result.data(), bytes.c_str(), bytes.size());
  return nb::cast(result);
}

// --- reductions ---

array::Reduction reduction_of(std::string_view name) {
  constexpr const char* kNames[] = {"sum", "prod", "min",  "max", "argmin",       "argmax",
                                    "any", "all",  "mean", "var", "count_nonzero"};
  for (int at = 0; at < static_cast<int>(std::size(kNames)); ++at) {
    if (name == kNames[at]) return static_cast<array::Reduction>(at);
  }
  fail<InvalidArgument>("reduce", "there is no reduction '", std::string(name), "'");
}

nb::object reduce(const char* name, const NDArray& x, nb::handle axis, bool keepdims,
                  nb::handle dtype, double correction) {
  array::ReduceOptions options;
  if (!axis.is_none()) options.axes = dims_from_python(axis, {name, "axis"});
  options.keepdims = keepdims;
  options.dtype = optional_dtype(dtype, {name, "dtype"});
  options.correction = correction;
  const array::Reduction op = reduction_of(name);
  return nb::cast(run_array_work(x.size(), [&] { return array::reduce(op, x, options); }));
}

nb::object scan(const char* name, const NDArray& x, int axis, nb::handle dtype,
                bool include_initial) {
  const std::optional<DType> wanted = optional_dtype(dtype, {name, "dtype"});
  const bool sums = std::string_view(name) == "cumulative_sum";
  MEMBOUND_CHECK(sums || std::string_view(name) == "cumulative_prod", InvalidArgument, "scan",
                 "there is no scan '", name, "'");
  return nb::cast(run_array_work(x.size(), [&] {
    return sums ? array::cumulative_sum(x, axis, wanted, include_initial)
                : array::cumulative_prod(x, axis, wanted, include_initial);
  }));
}

// --- places ---

nb::object sort(const NDArray& x, int axis, bool descending, bool) {
  return nb::cast(run_array_work(x.size(), [&] { return array::sort(x, axis, descending); }));
}
nb::object argsort(const NDArray& x, int axis, bool descending, bool) {
  return nb::cast(run_array_work(x.size(), [&] { return array::argsort(x, axis, descending); }));
}

nb::object searchsorted(const NDArray& sorted, const NDArray& wanted, bool right) {
  return nb::cast(
      run_array_work(wanted.size(), [&] { return array::searchsorted(sorted, wanted, right); }));
}

nb::object nonzero(const NDArray& x) {
  std::vector<NDArray> places = run_array_work(x.size(), [&] { return array::nonzero(x); });
  nb::list list;
  for (NDArray& place : places) list.append(nb::cast(std::move(place)));
  return nb::tuple(list);
}

std::vector<NDArray> array_list(nb::handle items, Site site) {
  std::vector<NDArray> arrays;
  for (nb::handle item : items) arrays.push_back(array_argument(item, site));
  return arrays;
}

nb::object gather(const NDArray& x, nb::handle indices, int first_axis) {
  const std::vector<NDArray> arrays = array_list(indices, {"gather", "indices"});
  return nb::cast(run_array_work(x.size(), [&] { return array::gather(x, arrays, first_axis); }));
}

void scatter(NDArray& x, nb::handle indices, int first_axis, nb::handle values) {
  const std::vector<NDArray> arrays = array_list(indices, {"scatter", "indices"});
  const NDArray source = assignable(values, x, "scatter");
  run_array_work(x.size(), [&] { array::scatter(x, arrays, first_axis, source); });
}

nb::object take(const NDArray& x, const NDArray& indices, int axis) {
  return nb::cast(run_array_work(indices.size(), [&] { return array::take(x, indices, axis); }));
}
nb::object take_along_axis(const NDArray& x, const NDArray& indices, int axis) {
  return nb::cast(
      run_array_work(indices.size(), [&] { return array::take_along_axis(x, indices, axis); }));
}

// --- random numbers ---

// parameters: of uniform and of integers the lowest number and the first beyond, of normal mean and
// deviation.
nb::object random(const char* name, std::uint64_t seed, std::uint64_t counter, nb::handle shape,
                  nb::handle dtype, nb::handle device, nb::args parameters) {
  constexpr const char* kOp = "random";
  const std::string_view kind = name;
  const array::RandomState state{seed, counter};
  const NDArray::Dims dims = dims_from_python(shape, {kOp, "shape"});
  const DType wanted = dtype_from_python(dtype, {kOp, "dtype"});
  const Device where = array_device_from_python(device, kOp);
  MEMBOUND_CHECK(parameters.size() == 2, InvalidArgument, kOp, "expected 2 parameters of '", name,
                 "', got ", parameters.size());
  const auto real = [&](std::size_t at) {
    return number_from_python(parameters[at].ptr(), {kOp, "parameters"});
  };
  std::int64_t size = 1;
  for (std::int64_t extent : dims) size *= extent;
  if (kind == "uniform" || kind == "normal") {
    const double first = real(0), second = real(1);
    const auto make = kind == "uniform" ? array::random_uniform : array::random_normal;
    return nb::cast(
        run_array_work(size, [&] { return make(state, dims, wanted, where, first, second); }));
  }
  MEMBOUND_CHECK(kind == "integers", InvalidArgument, kOp, "there is no distribution '", name, "'");
  const nb::object low = parameters[0], high = parameters[1];
  MEMBOUND_CHECK(low < high, InvalidArgument, kOp, "argument 'high' must be above ", repr_of(low),
                 ", got ", repr_of(high));
  // Modulo 2^64, so that the range of all of them is 0.
  const std::uint64_t lowest = PyLong_AsUnsignedLongLongMask(low.ptr());
  const std::uint64_t range = PyLong_AsUnsignedLongLongMask(high.ptr()) - lowest;
  if (PyErr_Occurred()) throw nb::python_error();
  return nb::cast(run_array_work(size, [&] {
    return array::random_integers(state, dims, wanted, where, static_cast<std::int64_t>(lowest),
                                  range);
  }));
}

std::uint64_t random_blocks(std::int64_t size, nb::handle dtype) {
  return array::random_blocks(size, dtype_from_python(dtype, {"random", "dtype"}));
}

nb::object matmul(const NDArray& x1, const NDArray& x2) {
  return nb::cast(run_array_work(x1.size(), [&] { return array::matmul(x1, x2); }));
}

// --- stencils ---

array::StencilOptions stencil_options(int axis, const char* boundary, const char* op) {
  constexpr const char* kNames[] = {"valid", "zero", "nearest", "reflect", "wrap"};
  for (int at = 0; at < static_cast<int>(std::size(kNames)); ++at) {
    if (std::string_view(boundary) == kNames[at]) return {axis, static_cast<array::Boundary>(at)};
  }
  fail<InvalidArgument>(op,
                        "argument 'boundary' must be valid, zero, nearest, reflect or wrap, got '",
                        boundary, "'");
}

nb::object stencil_1d(const NDArray& x, const NDArray& weights, int axis, const char* boundary) {
  const array::StencilOptions options = stencil_options(axis, boundary, "stencil_1d");
  return nb::cast(run_array_work(x.size(), [&] { return array::stencil_1d(x, weights, options); }));
}

nb::tuple stencil_1d_backward(const NDArray& dy, const NDArray& x, const NDArray& weights, int axis,
                              const char* boundary) {
  const array::StencilOptions options = stencil_options(axis, boundary, "stencil_1d_backward");
  array::StencilGradients gradients =
      run_array_work(x.size(), [&] { return array::stencil_1d_backward(dy, x, weights, options); });
  return nb::make_tuple(std::move(gradients.dx), std::move(gradients.dweights));
}

// --- training ---

void adamw(nb::handle params, nb::handle grads, nb::handle exp_avgs, nb::handle exp_avg_sqs,
           double lr, double beta1, double beta2, double eps, double weight_decay,
           std::int64_t step) {
  const std::vector<NDArray> all = array_list(params, {"adamw", "params"});
  const auto read = [&](nb::handle items, const char* argument) {
    std::vector<NDArray> arrays = array_list(items, {"adamw", argument});
    MEMBOUND_CHECK(arrays.size() == all.size(), InvalidArgument, "adamw", "argument '", argument,
                   "' must have as many arrays as 'params', ", all.size(), ", got ", arrays.size());
    return arrays;
  };
  const std::vector<NDArray> of_grads = read(grads, "grads");
  const std::vector<NDArray> averages = read(exp_avgs, "exp_avgs");
  const std::vector<NDArray> squares = read(exp_avg_sqs, "exp_avg_sqs");
  std::vector<array::AdamWParameter> parameters;
  parameters.reserve(all.size());
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    parameters.push_back({all[i], of_grads[i], averages[i], squares[i]});
    elements += all[i].size();
  }
  run_array_work(elements,
                 [&] { array::adamw(parameters, {lr, beta1, beta2, eps, weight_decay, step}); });
}

void bind_creation(nb::module_& module) {
  const auto none = nb::none();
  module.def("array_empty", &make_empty, nb::arg("shape"), nb::arg("dtype"),
             nb::arg("device") = none, "A new array whose memory is not set.");
  module.def("array_full", &make_full, nb::arg("shape"), nb::arg("value"), nb::arg("dtype"),
             nb::arg("device") = none, "A new array of one number.");
  module.def(
      "array_from", &from_object, nb::arg("object"), nb::arg("device") = none,
      nb::arg("copy") = none,
      "An array of any library, without a copy unless it is asked for or the device differs.");
  module.def("array_from_nested", &from_nested, nb::arg("object"), nb::arg("dtype") = none,
             nb::arg("device") = none, "A new array from a number or nested sequences of them.");
  module.def("array_arange", &make_arange, nb::arg("start"), nb::arg("stop"), nb::arg("step"),
             nb::arg("dtype"), nb::arg("device") = none, "Evenly spaced numbers below stop.");
  module.def("array_linspace", &make_linspace, nb::arg("start"), nb::arg("stop"), nb::arg("num"),
             nb::arg("dtype"), nb::arg("device") = none, nb::arg("endpoint") = true,
             "num evenly spaced numbers from start to stop.");
  module.def(
      "array_random", &random, nb::arg("kind"), nb::arg("seed"), nb::arg("counter"),
      nb::arg("shape"), nb::arg("dtype"), nb::arg("device").none(), nb::arg("parameters"),
      "Philox numbers: uniform (low, high), normal (mean, deviation) or integers (low, high).");
  module.def("array_random_blocks", &random_blocks, nb::arg("size"), nb::arg("dtype"),
             "How far so many random numbers move the counter.");
  module.def("array_to_bytes", &to_bytes, nb::arg("x"), "The elements in C order.");
  module.def("array_from_bytes", &from_bytes, nb::arg("bytes"), nb::arg("shape"), nb::arg("dtype"),
             "A new array from the elements in C order.");
}

void bind_dtypes_of_functions(nb::module_& module) {
  module.def("array_result_type", &result_type, nb::arg("arrays_and_dtypes"),
             "The dtype that arrays, dtypes and numbers are promoted to.");
  module.def("array_can_cast", &can_cast, nb::arg("from_"), nb::arg("to"),
             "Whether promotion leads from one dtype, or an array's, to the other.");
}

void bind_functions_of_elements(nb::module_& module) {
  const auto none = nb::none();
  module.def("array_copy_into", &copy_into, nb::arg("destination"), nb::arg("source"),
             "Writes source, cast and broadcast, to destination.");
  module.def("array_astype", &astype, nb::arg("x"), nb::arg("dtype"), nb::arg("copy") = true,
             nb::arg("device") = none, "The array cast to a dtype.");
  module.def("array_elementwise", &elementwise, nb::arg("name"), nb::arg("operands"),
             "An element-wise function of the standard, of arrays and numbers.");
  module.def("array_reduce", &reduce, nb::arg("name"), nb::arg("x"), nb::arg("axis") = none,
             nb::arg("keepdims") = false, nb::arg("dtype") = none, nb::arg("correction") = 0.0,
             "sum, prod, min, max, argmin, argmax, any, all, mean, var or count_nonzero.");
  module.def("array_scan", &scan, nb::arg("name"), nb::arg("x"), nb::arg("axis"),
             nb::arg("dtype") = none, nb::arg("include_initial") = false,
             "cumulative_sum or cumulative_prod.");
  module.def("array_matmul", &matmul, nb::arg("x1"), nb::arg("x2"),
             "The product of matrices, batched over leading axes.");
  module.def("array_stencil_1d", &stencil_1d, nb::arg("x"), nb::arg("weights"), nb::arg("axis"),
             nb::arg("boundary"), "Weighted sums of neighbours along an axis.");
  module.def("array_stencil_1d_backward", &stencil_1d_backward, nb::arg("dy"), nb::arg("x"),
             nb::arg("weights"), nb::arg("axis"), nb::arg("boundary"),
             "The gradients of x and weights of array_stencil_1d.");
}

void bind_training(nb::module_& module) {
  module.def("array_adamw", &adamw, nb::arg("params"), nb::arg("grads"), nb::arg("exp_avgs"),
             nb::arg("exp_avg_sqs"), nb::arg("lr"), nb::arg("beta1"), nb::arg("beta2"),
             nb::arg("eps"), nb::arg("weight_decay"), nb::arg("step"),
             "One AdamW step of all parameters, in place.");
}

void bind_places(nb::module_& module) {
  module.def("array_sort", &sort, nb::arg("x"), nb::arg("axis") = -1, nb::arg("descending") = false,
             nb::arg("stable") = true, "The array sorted along an axis, NaNs last.");
  module.def("array_argsort", &argsort, nb::arg("x"), nb::arg("axis") = -1,
             nb::arg("descending") = false, nb::arg("stable") = true,
             "The indices that sort the array along an axis; always stable.");
  module.def("array_searchsorted", &searchsorted, nb::arg("sorted"), nb::arg("wanted"),
             nb::arg("right"), "Where elements of one dtype enter a sorted vector, NaNs last.");
  module.def("array_nonzero", &nonzero, nb::arg("x"),
             "The places of nonzero elements, an int64 array per axis; waits for the device.");
  module.def("array_gather", &gather, nb::arg("x"), nb::arg("indices"), nb::arg("first_axis") = 0,
             "x[.., i, j, .., :] for index arrays of adjacent axes.");
  module.def("array_scatter", &scatter, nb::arg("x"), nb::arg("indices"), nb::arg("first_axis"),
             nb::arg("values"), "x[.., i, j, .., :] = values for index arrays of adjacent axes.");
  module.def("array_take", &take, nb::arg("x"), nb::arg("indices"), nb::arg("axis"),
             "Elements along an axis.");
  module.def("array_take_along_axis", &take_along_axis, nb::arg("x"), nb::arg("indices"),
             nb::arg("axis") = -1, "Elements along an axis, an index for each.");
}

}  // namespace

void bind_array_functions(nb::module_& module) {
  module.attr("ARRAY_MAX_RANK") = kMaxRank;
  bind_creation(module);
  bind_dtypes_of_functions(module);
  bind_functions_of_elements(module);
  bind_places(module);
  bind_training(module);
}

}  // namespace membound::python
