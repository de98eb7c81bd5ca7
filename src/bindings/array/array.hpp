// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>

#include "call.hpp"
#include "membound/array/elementwise.hpp"
#include "membound/ndarray.hpp"

// NDArray in Python: the class, its exchange with other libraries, and the functions from which
// membound.ndarray is made.
namespace membound::python {

namespace nb = nanobind;

// A dtype of arrays; there is one object of each.
struct ArrayDTypeObject {
  DType dtype;
};
// A device of arrays, compared by value.
struct ArrayDeviceObject {
  Device device;
};

void bind_array_dtypes(nb::module_& module);
void bind_array_class(nb::module_& module);
void bind_array_exchange(nb::class_<NDArray>& cls, nb::module_& module);
void bind_array_operators(nb::class_<NDArray>& cls);
void bind_array_functions(nb::module_& module);
inline void bind_arrays(nb::module_& module) {
  bind_array_dtypes(module);
  bind_array_class(module);
  bind_array_functions(module);
}

nb::object dtype_to_python(DType dtype);
nb::object device_to_python(Device device);
// A DType object, a name, a framework's dtype, or one of bool, int and float.
DType dtype_from_python(nb::handle dtype, Site site);
// None: the CPU.
Device array_device_from_python(nb::handle device, const char* op);

nb::tuple tuple_of(const NDArray::Dims& values);
// An integer or a sequence of integers.
NDArray::Dims dims_from_python(nb::handle values, Site site);

// The array of an object, or null if it is none.
const NDArray* array_of(nb::handle object);
const NDArray& array_argument(nb::handle object, Site site);
// A bool, int or float of Python or of NumPy; nothing if it is no number.
std::optional<Scalar> scalar_of(nb::handle object);
Scalar scalar_argument(nb::handle object, Site site);
std::optional<array::Operand> operand_of(nb::handle object);
nb::object scalar_to_python(Scalar scalar);

// An array of any library, without a copy.
NDArray array_from_python(nb::handle object, Site site);

// What may be written to an array: a number that fits its dtype, or an array of no wider kind.
NDArray assignable(nb::handle value, const NDArray& to, const char* op);

// Runs C++ work on arrays, without the GIL where it is long.
template <class Work>
auto run_array_work(std::int64_t elements, Work work) {
  constexpr std::int64_t kLongElements = 16384;
  const GilRelease release(elements >= kLongElements);
  return work();
}

}  // namespace membound::python
