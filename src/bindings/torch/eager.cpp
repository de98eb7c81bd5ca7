// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "torch/eager.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "frameworks.hpp"
#include "torch/edge.hpp"
#include "torch/tensor.hpp"

namespace membound::python::torch {

namespace {

// torch.Tensor and torch.nn.Parameter.
class PlainTypes {
 public:
  explicit PlainTypes(nb::handle types) {
    for (nb::handle type : nb::list(types)) {
      all_.push_back(reinterpret_cast<PyTypeObject*>(nb::object(nb::borrow(type)).release().ptr()));
    }
  }
  bool have(PyObject* object) const {
    return std::find(all_.begin(), all_.end(), Py_TYPE(object)) != all_.end();
  }
  bool are_base_of(PyObject* object) const {
    return std::any_of(all_.begin(), all_.end(), [object](PyTypeObject* type) {
      return PyType_IsSubtype(Py_TYPE(object), type) != 0;
    });
  }

 private:
  std::vector<PyTypeObject*> all_;  // never freed
};

// ---- calls of operators -------------------------------------------------------------------------

struct EagerCall {
  nb::object apply;
  PlainTypes plain;
  Py_ssize_t tensors;

  // Objects that are not tensors are left to the call, whose errors name them.
  bool takes(PyObject* const* arguments) const {
    const Framework* torch = nullptr;
    for (Py_ssize_t i = 0; i < tensors; ++i) {
      if (plain.have(arguments[i])) {
        if (torch == nullptr) torch = &torch_of(arguments[i]);
      } else if (arguments[i] != Py_None && plain.are_base_of(arguments[i])) {
        return false;
      }
    }
    return torch == nullptr ||
           (knows_keys(*torch) && !is_watched(*torch) && !is_transformed(*torch));
  }
};

PyObject* call_eagerly(PyObject* self, PyObject* const* arguments, Py_ssize_t count) noexcept {
  return at_the_edge([=] {
    const auto& call = kept_in<EagerCall>(self);
    if (count < call.tensors || !call.takes(arguments)) return nb::borrow(Py_NotImplemented);
    const nb::object options = new_tuple(arguments + call.tensors, count - call.tensors);
    const nb::object all = owned(PyTuple_New(call.tensors + 1));
    for (Py_ssize_t i = 0; i < call.tensors; ++i) set_item(all, i, arguments[i]);
    set_item(all, call.tensors, options.ptr());
    return owned(PyObject_Call(call.apply.ptr(), all.ptr(), nullptr));
  });
}

}  // namespace

nb::object make_eager_call(nb::object apply, nb::handle plain, int tensors) {
  static PyMethodDef definition = method("call", &call_eagerly, METH_FASTCALL);
  return builtin_with(definition, new EagerCall{std::move(apply), PlainTypes(plain), tensors});
}

// ---- recorded calls of an op's own function -----------------------------------------------------

struct Recorder {
  nb::object function;
  PlainTypes plain;
  nb::object outside;

  bool can_record(PyObject* keywords) const {
    for (Py_ssize_t i = 0, count = keywords == nullptr ? 0 : PyTuple_Size(keywords); i < count;
         ++i) {
      if (PySet_Contains(outside.ptr(), item(keywords, i)) != 0) return false;
    }
    return true;
  }

  bool records(PyObject* const* arguments, Py_ssize_t positional, PyObject* keywords) const {
    const Py_ssize_t count = positional + (keywords == nullptr ? 0 : PyTuple_Size(keywords));
    if (count == 0 || !plain.have(arguments[0]) || !can_record(keywords)) return false;
    const Framework& torch = torch_of(arguments[0]);
    if (!knows_keys(torch) || torch.grad_mode == nullptr || !torch.grad_mode() || has_mode(torch))
      return false;
    return std::any_of(arguments, arguments + count, [&](PyObject* argument) {
      return plain.have(argument) && wants_gradient(torch, argument);
    });
  }
};

RecorderOf& recorder_of(const char* op) {
  static std::mutex lock;
  static std::map<std::string, RecorderOf> all;  // references to values stay valid
  const std::lock_guard guard(lock);
  return all[op];
}

void record_calls(const char* op, nb::object function, nb::handle plain, nb::object outside) {
  recorder_of(op).store(
      new Recorder{std::move(function), PlainTypes(plain), std::move(outside)},  // never freed
      std::memory_order_release);
}

PyObject* recording_function(const RecorderOf& recorder, PyObject* const* arguments,
                             Py_ssize_t positional, PyObject* keywords) {
  const Recorder* found = recorder.load(std::memory_order_acquire);
  const bool records = found != nullptr && found->records(arguments, positional, keywords);
  return records ? found->function.ptr() : nullptr;
}

}  // namespace membound::python::torch
