// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// The class NDArray: its attributes, views, indexing and conversions to Python's numbers.
#include "array/array.hpp"
#include "membound/array/copy.hpp"

namespace membound::python {

void* exchange_slots();

namespace {

// One place of a basic index; nothing if it takes an index array.
std::optional<Index> index_of(nb::handle key) {
  PyObject* value = key.ptr();
  if (value == Py_None) return kNewAxis;
  if (value == Py_Ellipsis) return kEllipsis;
  if (PySlice_Check(value)) {
    Py_ssize_t start, stop, step;
    if (PySlice_Unpack(value, &start, &stop, &step) != 0) throw nb::python_error();
    return Slice{start, stop, step};
  }
  if (const NDArray* array = array_of(key)) {
    const bool is_integer =
        array->rank() == 0 && array->dtype() != DType::kBool && !is_floating(array->dtype());
    if (!is_integer) return std::nullopt;
    return Index(array->item().integer);
  }
  if (PyBool_Check(value) || !PyIndex_Check(value)) return std::nullopt;
  const nb::object integer = nb::steal(PyNumber_Index(value));
  if (!integer.is_valid()) {  // an array of several elements
    PyErr_Clear();
    return std::nullopt;
  }
  const Py_ssize_t place = PyNumber_AsSsize_t(integer.ptr(), PyExc_IndexError);
  if (place == -1 && PyErr_Occurred()) throw nb::python_error();
  return Index(std::int64_t{place});
}

// The view that a basic key selects; nothing if it takes index arrays.
std::optional<NDArray> basic_view(const NDArray& self, nb::handle key) {
  std::vector<Index> places;
  if (!PyTuple_Check(key.ptr())) {
    const std::optional<Index> place = index_of(key);
    if (!place) return std::nullopt;
    return self.index({*place});
  }
  for (nb::handle item : nb::borrow<nb::tuple>(key)) {
    const std::optional<Index> place = index_of(item);
    if (!place) return std::nullopt;
    places.push_back(*place);
  }
  return self.index(places);
}

nb::object get_item(nb::handle self, nb::handle key) {
  if (std::optional<NDArray> view = basic_view(*nb::inst_ptr<NDArray>(self), key))
    return nb::cast(std::move(*view));
  return self.attr("_advanced_getitem")(key);
}

int kind_rank(DType dtype) { return dtype == DType::kBool ? 0 : is_floating(dtype) ? 2 : 1; }

}  // namespace

// Numbers fit the dtype, and arrays its kind: no float becomes an integer on the way.
NDArray assignable(nb::handle value, const NDArray& to, const char* op) {
  if (const std::optional<Scalar> scalar = scalar_of(value)) {
    array::check_scalar(*scalar, to.dtype(), op);
    return NDArray::full({}, *scalar, to.dtype());
  }
  NDArray source = array_from_python(value, {op, "value"});
  MEMBOUND_CHECK(kind_rank(source.dtype()) <= kind_rank(to.dtype()), TypeMismatch, op,
                 "an array of ", dtype_name(to.dtype()), " takes no ", dtype_name(source.dtype()),
                 "; cast it with astype first");
  return source;
}

namespace {

void assign(NDArray& view, nb::handle value) {
  NDArray values = assignable(value, view, "__setitem__");
  while (values.rank() > view.rank() && values.shape()[0] == 1) values = values.squeeze({0});
  run_array_work(view.size(), [&] { array::copy_into(view, values); });
}

void set_item(nb::handle self, nb::handle key, nb::handle value) {
  const NDArray& array = *nb::inst_ptr<NDArray>(self);
  for (std::size_t at = 0; at < array.shape().size(); ++at) {
    MEMBOUND_CHECK(array.strides()[at] != 0 || array.shape()[at] <= 1 || array.size() == 0,
                   InvalidArgument, "__setitem__",
                   "elements of a broadcast array share memory; copy it first");
  }
  if (std::optional<NDArray> view = basic_view(array, key)) return assign(*view, value);
  self.attr("_advanced_setitem")(key, value);
}

// --- values ---

nb::object nested_list(const NDArray& wide, int axis, std::int64_t& at) {
  if (axis == wide.rank()) {
    const std::int64_t place = at++;
    switch (wide.dtype()) {
      case DType::kBool: return nb::bool_(wide.as<bool>()[place]);
      case DType::kInt64: return nb::int_(wide.as<std::int64_t>()[place]);
      case DType::kUInt64: return nb::int_(wide.as<std::uint64_t>()[place]);
      default: return nb::float_(wide.as<double>()[place]);
    }
  }
  nb::list list;
  for (std::int64_t i = 0; i < wide.shape()[static_cast<std::size_t>(axis)]; ++i)
    list.append(nested_list(wide, axis + 1, at));
  return list;
}

nb::object to_list(const NDArray& self) {
  const DType dtype = self.dtype();
  const DType wide = dtype == DType::kBool || dtype == DType::kUInt64 ? dtype
                     : is_floating(dtype)                             ? DType::kFloat64
                                                                      : DType::kInt64;
  std::int64_t at = 0;
  return nested_list(self.to(Device::cpu()).astype(wide).contiguous(), 0, at);
}

nb::object to_python(const NDArray& self) { return scalar_to_python(self.item()); }

nb::object to_index(const NDArray& self) {
  MEMBOUND_CHECK(self.rank() == 0 && self.dtype() != DType::kBool && !is_floating(self.dtype()),
                 TypeMismatch, "__index__", "an integer array of no axes is expected, got ",
                 dtype_name(self.dtype()), " of shape ", str_of(tuple_of(self.shape())));
  return to_python(self);
}

template <class Type>
Type convert_number(const NDArray& self, const char* op) {
  MEMBOUND_CHECK(self.size() == 1, InvalidArgument, op,
                 "an array of 1 element is expected, got shape ", str_of(tuple_of(self.shape())));
  return Type(to_python(self));
}

void bind_attributes(nb::class_<NDArray>& cls) {
  cls.def_prop_ro("shape", [](const NDArray& self) { return tuple_of(self.shape()); })
      .def_prop_ro(
          "strides", [](const NDArray& self) { return tuple_of(self.strides()); }, "In elements.")
      .def_prop_ro("dtype", [](const NDArray& self) { return dtype_to_python(self.dtype()); })
      .def_prop_ro("device", [](const NDArray& self) { return device_to_python(self.device()); })
      .def_prop_ro("ndim", &NDArray::rank)
      .def_prop_ro("size", &NDArray::size)
      .def_prop_ro("nbytes", &NDArray::bytes)
      .def_prop_ro("itemsize", [](const NDArray& self) { return dtype_size(self.dtype()); })
      .def_prop_ro("offset", &NDArray::offset, "In elements, from the start of the buffer.")
      .def_prop_ro(
          "data_ptr",
          [](const NDArray& self) { return reinterpret_cast<std::uintptr_t>(self.data()); })
      .def_prop_ro("T",
                   [](const NDArray& self) {
                     MEMBOUND_CHECK(self.rank() == 2, InvalidArgument, "T",
                                    "an array of 2 axes is expected, got shape ",
                                    str_of(tuple_of(self.shape())));
                     return self.matrix_transpose();
                   })
      .def_prop_ro("mT", &NDArray::matrix_transpose)
      .def_prop_ro("writable", &NDArray::writable)
      .def_prop_ro("is_contiguous", &NDArray::is_contiguous, "In C order.")
      .def("shares_buffer", [](const NDArray& self,
                               const NDArray& other) { return self.buffer() == other.buffer(); })
      .def("__len__",
           [](const NDArray& self) {
             MEMBOUND_CHECK(self.rank() > 0, TypeMismatch, "len",
                            "an array of no axes has no length");
             return self.shape()[0];
           })
      .def("__getitem__", &get_item, nb::arg("key").none())
      .def("__setitem__", &set_item, nb::arg("key").none(), nb::arg("value"))
      .def("item", &to_python)
      .def("tolist", &to_list)
      .def("__index__", &to_index)
      .def("__bool__", [](const NDArray& self) { return convert_number<nb::bool_>(self, "bool"); })
      .def("__int__", [](const NDArray& self) { return convert_number<nb::int_>(self, "int"); })
      .def("__float__",
           [](const NDArray& self) { return convert_number<nb::float_>(self, "float"); });
  cls.attr("__hash__") = nb::none();
}

void bind_views(nb::class_<NDArray>& cls) {
  const auto dims = [](nb::handle values, const char* op, const char* argument) {
    return dims_from_python(values, {op, argument});
  };
  cls.def(
         "reshape_view",
         [=](const NDArray& self, nb::handle shape) {
           return self.reshape(dims(shape, "reshape", "shape"));
         },
         "A view; raises ValueError where a copy would be needed.")
      .def(
          "reshape",
          [=](const NDArray& self, nb::handle shape) {
            return array::reshape_copy(self, dims(shape, "reshape", "shape"));
          },
          "A view, or a copy where no view has that shape.")
      .def("can_reshape",
           [=](const NDArray& self, nb::handle shape) {
             return self.can_reshape(dims(shape, "reshape", "shape"));
           })
      .def("permute_dims",
           [=](const NDArray& self, nb::handle axes) {
             return self.permute_dims(dims(axes, "permute_dims", "axes"));
           })
      .def("matrix_transpose", &NDArray::matrix_transpose)
      .def("moveaxis", &NDArray::moveaxis)
      .def("broadcast_to",
           [=](const NDArray& self, nb::handle shape) {
             return self.broadcast_to(dims(shape, "broadcast_to", "shape"));
           })
      .def(
          "squeeze",
          [=](const NDArray& self, nb::handle axis) {
            return self.squeeze(dims(axis, "squeeze", "axis"));
          },
          nb::arg("axis"))
      .def("expand_dims", &NDArray::expand_dims, nb::arg("axis"))
      .def(
          "flip",
          [=](const NDArray& self, nb::handle axis) {
            return axis.is_none() ? self.flip() : self.flip(dims(axis, "flip", "axis"));
          },
          nb::arg("axis") = nb::none())
      .def("diagonal", &NDArray::diagonal, nb::arg("offset") = 0)
      .def(
          "as_strided",
          [=](const NDArray& self, nb::handle shape, nb::handle strides, std::int64_t offset) {
            return self.as_strided(dims(shape, "as_strided", "shape"),
                                   dims(strides, "as_strided", "strides"), offset);
          },
          nb::arg("shape"), nb::arg("strides"), nb::arg("offset") = 0)
      .def("copy",
           [](const NDArray& self) {
             return run_array_work(self.size(), [&] { return self.copy(); });
           })
      .def("contiguous",
           [](const NDArray& self) {
             return run_array_work(self.size(), [&] { return self.contiguous(); });
           })
      .def("fill", [](NDArray& self, nb::handle value) {
        const Scalar scalar = scalar_argument(value, {"fill", "value"});
        run_array_work(self.size(), [&] { self.fill(scalar); });
      });
}

}  // namespace

void bind_array_class(nb::module_& module) {
  nb::class_<NDArray> cls(module, "NDArray",
                          nb::type_slots(static_cast<PyType_Slot*>(exchange_slots())),
                          nb::is_weak_referenceable(), "A typed, strided array on a device.");
  bind_attributes(cls);
  bind_views(cls);
  bind_array_operators(cls);
  bind_array_exchange(cls, module);
}

}  // namespace membound::python
