// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// DTypes, devices, numbers and shapes of arrays.
#include <array>
#include <string_view>

#include "array/array.hpp"
#include "core/route.hpp"

namespace membound::python {

namespace {

constexpr std::array kArrayDTypes{
    DType::kBool,    DType::kInt8,    DType::kInt16,   DType::kInt32,  DType::kInt64,
    DType::kUInt8,   DType::kUInt16,  DType::kUInt32,  DType::kUInt64, DType::kBFloat16,
    DType::kFloat16, DType::kFloat32, DType::kFloat64,
};

PyObject* dtype_objects[static_cast<int>(DType::kComplex128) + 1];  // written once

const char* kind_of(DType dtype) {
  if (dtype == DType::kBool) return "bool";
  if (is_floating(dtype) || dtype == DType::kFloat8E4M3 || dtype == DType::kFloat8E5M2)
    return "real floating";
  return dtype >= DType::kUInt8 ? "unsigned integer" : "signed integer";
}

bool dtype_equals(const ArrayDTypeObject& self, nb::handle other) {
  if (const auto* dtype = nb::inst_check(other) && nb::isinstance<ArrayDTypeObject>(other)
                              ? nb::inst_ptr<ArrayDTypeObject>(other)
                              : nullptr)
    return dtype->dtype == self.dtype;
  return PyUnicode_Check(other.ptr()) &&
         PyUnicode_CompareWithASCIIString(other.ptr(), dtype_name(self.dtype)) == 0;
}

}  // namespace

void bind_array_dtypes(nb::module_& module) {
  nb::class_<ArrayDTypeObject>(module, "DType", "A dtype of arrays; equals its name, too.")
      .def_prop_ro("name", [](const ArrayDTypeObject& self) { return dtype_name(self.dtype); })
      .def_prop_ro("itemsize", [](const ArrayDTypeObject& self) { return dtype_size(self.dtype); })
      .def_prop_ro(
          "kind", [](const ArrayDTypeObject& self) { return kind_of(self.dtype); },
          "As isdtype of the standard names it: 'bool', 'signed integer' ...")
      .def("__repr__", [](const ArrayDTypeObject& self) { return dtype_name(self.dtype); })
      .def("__hash__",
           [](const ArrayDTypeObject& self) { return nb::hash(nb::str(dtype_name(self.dtype))); })
      .def("__eq__", &dtype_equals, nb::arg("other").none())
      .def("__reduce__", [](const ArrayDTypeObject& self) {
        return nb::make_tuple(nb::module_::import_("membound._core").attr("array_dtype"),
                              nb::make_tuple(dtype_name(self.dtype)));
      });
  nb::dict dtypes;
  nb::list owned;  // the module keeps the objects alive
  const auto make = [&](DType dtype) {
    nb::object object = nb::cast(new ArrayDTypeObject{dtype}, nb::rv_policy::take_ownership);
    dtype_objects[static_cast<int>(dtype)] = object.ptr();
    owned.append(object);
    return object;
  };
  for (DType dtype : kArrayDTypes) dtypes[dtype_name(dtype)] = make(dtype);
  // Results of quantising ops, which arrays hold and do not compute with.
  for (DType dtype : {DType::kFloat8E4M3, DType::kFloat8E5M2}) make(dtype);
  module.attr("__array_dtypes__") = nb::tuple(owned);
  module.attr("ARRAY_DTYPES") = dtypes;
  module.def(
      "array_dtype",
      [](nb::handle dtype) {
        return dtype_to_python(dtype_from_python(dtype, {"array_dtype", "dtype"}));
      },
      nb::arg("dtype"), "The DType of a name, of a framework's dtype, or of bool, int or float.");
  nb::class_<ArrayDeviceObject>(module, "Device", "A device of arrays: cpu, or cuda:0 and so on.")
      .def("__init__",
           [](ArrayDeviceObject* self, nb::handle name) {
             new (self) ArrayDeviceObject{array_device_from_python(name, "Device")};
           })
      .def_prop_ro(
          "type",
          [](const ArrayDeviceObject& self) { return self.device.is_cuda() ? "cuda" : "cpu"; })
      .def_prop_ro("index", [](const ArrayDeviceObject& self) { return self.device.index; })
      .def("__str__",
           [](const ArrayDeviceObject& self) { return nb::str(device_name(self.device).c_str()); })
      .def("__repr__",
           [](const ArrayDeviceObject& self) {
             return nb::str(("Device('" + device_name(self.device) + "')").c_str());
           })
      .def("__hash__",
           [](const ArrayDeviceObject& self) {
             return nb::hash(nb::str(device_name(self.device).c_str()));
           })
      .def(
          "__eq__",
          [](const ArrayDeviceObject& self, nb::handle other) {
            if (nb::isinstance<ArrayDeviceObject>(other))
              return nb::cast<ArrayDeviceObject&>(other).device == self.device;
            return PyUnicode_Check(other.ptr()) && str_of(other) == device_name(self.device);
          },
          nb::arg("other").none())
      .def("__reduce__", [](const ArrayDeviceObject& self) {
        return nb::make_tuple(nb::type<ArrayDeviceObject>(),
                              nb::make_tuple(device_name(self.device).c_str()));
      });
}

nb::object dtype_to_python(DType dtype) {
  PyObject* object = dtype_objects[static_cast<int>(dtype)];
  MEMBOUND_CHECK(object != nullptr, TypeMismatch, "NDArray", "arrays have no ", dtype_name(dtype));
  return nb::borrow(object);
}

nb::object device_to_python(Device device) { return nb::cast(ArrayDeviceObject{device}); }

DType dtype_from_python(nb::handle dtype, Site site) {
  if (nb::isinstance<ArrayDTypeObject>(dtype)) return nb::inst_ptr<ArrayDTypeObject>(dtype)->dtype;
  const auto* type = reinterpret_cast<PyTypeObject*>(dtype.ptr());
  if (type == &PyBool_Type) return DType::kBool;
  if (type == &PyLong_Type) return DType::kInt64;
  if (type == &PyFloat_Type) return DType::kFloat64;
  const nb::object name = arrays_module().attr("dtype_name")(dtype);
  for (DType known : kArrayDTypes) {
    if (name.is_none()) break;
    if (PyUnicode_CompareWithASCIIString(name.ptr(), dtype_name(known)) == 0) return known;
  }
  fail<TypeMismatch>(site.op, "argument '", site.argument,
                     "' must be a dtype of arrays (bool, int8 to uint64, bfloat16, float16, "
                     "float32, float64), got ",
                     repr_of(dtype));
}

Device array_device_from_python(nb::handle device, const char* op) {
  if (!device.is_valid() || device.is_none()) return Device::cpu();
  if (nb::isinstance<ArrayDeviceObject>(device)) return nb::cast<ArrayDeviceObject&>(device).device;
  Device found = device_from_python(device.ptr(), op);
  if (found.index < 0) found.index = 0;
#if !MEMBOUND_WITH_CUDA
  MEMBOUND_CHECK(!found.is_cuda(), InvalidArgument, op,
                 "argument 'device' must be cpu, whose arrays alone this build computes with");
#endif
  return found;
}

nb::tuple tuple_of(const NDArray::Dims& values) {
  const nb::object tuple = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(values.size())));
  for (std::size_t at = 0; at < values.size(); ++at) {
    PyTuple_SetItem(tuple.ptr(), static_cast<Py_ssize_t>(at), PyLong_FromLongLong(values[at]));
  }
  return nb::borrow<nb::tuple>(tuple);
}

NDArray::Dims dims_from_python(nb::handle values, Site site) {
  NDArray::Dims dims;
  if (PyIndex_Check(values.ptr())) {
    dims.push_back(integer_from_python(values.ptr(), site));
    return dims;
  }
  const nb::object items = nb::steal(PySequence_Tuple(values.ptr()));
  if (!items.is_valid()) {
    PyErr_Clear();
    fail<TypeMismatch>(site.op, "argument '", site.argument,
                       "' must be an integer or a tuple of integers, got ",
                       type_name(values.ptr()));
  }
  for (nb::handle item : nb::borrow<nb::tuple>(items))
    dims.push_back(integer_from_python(item.ptr(), site));
  return dims;
}

const NDArray* array_of(nb::handle object) {
  return nb::isinstance<NDArray>(object) ? nb::inst_ptr<NDArray>(object) : nullptr;
}

const NDArray& array_argument(nb::handle object, Site site) {
  const NDArray* array = array_of(object);
  MEMBOUND_CHECK(array != nullptr, TypeMismatch, site.op, "argument '", site.argument,
                 "' must be a membound NDArray, got ", type_name(object.ptr()));
  return *array;
}

std::optional<Scalar> scalar_of(nb::handle object) {
  PyObject* value = object.ptr();
  if (PyBool_Check(value)) return Scalar(value == Py_True);
  if (PyFloat_Check(value)) return Scalar(PyFloat_AsDouble(value));
  if (PyIndex_Check(value) && array_of(object) == nullptr) {
    if (nb::hasattr(object, "shape") && !nb::object(object.attr("shape")).equal(nb::tuple()))
      return std::nullopt;
    const nb::object integer = nb::steal(PyNumber_Index(value));
    if (!integer.is_valid()) {
      PyErr_Clear();
      return std::nullopt;
    }
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(integer.ptr(), &overflow);
    if (overflow == 0) return Scalar(static_cast<std::int64_t>(number));
    const unsigned long long natural = PyLong_AsUnsignedLongLong(integer.ptr());
    if (natural == static_cast<unsigned long long>(-1) && PyErr_Occurred())
      throw nb::python_error();
    return Scalar(static_cast<std::uint64_t>(natural));
  }
  // NumPy's float32 and the like, which are arrays of no axes.
  if (nb::hasattr(object, "dtype") && nb::hasattr(object, "__float__") &&
      array_of(object) == nullptr && nb::object(object.attr("shape")).equal(nb::tuple())) {
    const double number = PyFloat_AsDouble(value);
    if (number == -1.0 && PyErr_Occurred()) throw nb::python_error();
    return Scalar(number);
  }
  return std::nullopt;
}

Scalar scalar_argument(nb::handle object, Site site) {
  if (const NDArray* array = array_of(object); array != nullptr && array->size() == 1)
    return array->item();
  const std::optional<Scalar> scalar = scalar_of(object);
  MEMBOUND_CHECK(scalar.has_value(), TypeMismatch, site.op, "argument '", site.argument,
                 "' must be a bool, int or float, got ", type_name(object.ptr()));
  return *scalar;
}

std::optional<array::Operand> operand_of(nb::handle object) {
  if (const NDArray* array = array_of(object)) return array::Operand(*array);
  const std::optional<Scalar> scalar = scalar_of(object);
  if (!scalar) return std::nullopt;
  return array::Operand(*scalar);
}

nb::object scalar_to_python(Scalar scalar) {
  switch (scalar.kind) {
    case Scalar::Kind::kBool: return nb::bool_(scalar.integer != 0);
    case Scalar::Kind::kInteger: return nb::int_(scalar.integer);
    case Scalar::Kind::kUnsigned: return nb::int_(scalar.natural);
    default: return nb::float_(scalar.real);
  }
}

}  // namespace membound::python
