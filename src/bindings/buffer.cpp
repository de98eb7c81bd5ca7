// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "buffer.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <vector>

namespace membound::python {

namespace nb = nanobind;

namespace {

struct Buffer {
  std::string format;
  Py_ssize_t item_size;
  std::vector<Py_ssize_t> shape, strides;
  Py_ssize_t bytes;
  std::unique_ptr<char[]> memory;

  Buffer(std::string format_, Py_ssize_t item_size_, std::vector<Py_ssize_t> shape_)
      : format(std::move(format_)),
        item_size(item_size_),
        shape(std::move(shape_)),
        strides(shape.size()),
        bytes(item_size) {
    for (std::size_t axis = shape.size(); axis-- > 0; bytes *= shape[axis]) strides[axis] = bytes;
    memory = std::make_unique<char[]>(static_cast<std::size_t>(bytes));
  }
};

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  Buffer& buffer = *nb::inst_ptr<Buffer>(self);
  const auto asked = [flags](int flag) { return (flags & flag) == flag; };
  *view = {};
  view->obj = Py_NewRef(self);
  view->buf = buffer.memory.get();
  view->len = buffer.bytes;
  view->itemsize = buffer.item_size;
  view->ndim = static_cast<int>(buffer.shape.size());
  if (asked(PyBUF_FORMAT)) view->format = buffer.format.data();
  if (asked(PyBUF_ND)) view->shape = buffer.shape.data();
  if (asked(PyBUF_STRIDES)) view->strides = buffer.strides.data();
  return 0;
}

nb::object new_buffer(std::string format, Py_ssize_t item_size, std::vector<Py_ssize_t> shape) {
  const nb::object owner = nb::cast(new Buffer(std::move(format), item_size, std::move(shape)),
                                    nb::rv_policy::take_ownership);
  PyObject* view = PyMemoryView_FromObject(owner.ptr());
  if (view == nullptr) throw nb::python_error();
  return nb::steal(view);
}

}  // namespace

void bind_buffer(nb::module_& module) {
  static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&get_buffer)},
                                {0, nullptr}};
  nb::class_<Buffer>(module, "Buffer", nb::type_slots(slots),
                     "Memory behind a memoryview that new_buffer made.");
  module.def("new_buffer", &new_buffer, nb::arg("format"), nb::arg("item_size"), nb::arg("shape"),
             nb::sig("def new_buffer(format: str, item_size: int, shape: tuple[int, ...]) -> "
                     "memoryview"),
             "Zeros of a buffer format, as a memoryview of any shape.");
}

}  // namespace membound::python
