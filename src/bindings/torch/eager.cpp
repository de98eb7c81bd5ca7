// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "torch/eager.hpp"

#include <algorithm>
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

// ---- public functions ---------------------------------------------------------------------------

struct PublicCall {
  nb::object recorded, extension, other;
  PlainTypes plain;
  nb::object outside;

  bool can_record(PyObject* keywords) const {
    for (Py_ssize_t i = 0, count = keywords == nullptr ? 0 : PyTuple_Size(keywords); i < count;
         ++i) {
      if (PySet_Contains(outside.ptr(), item(keywords, i)) != 0) return false;
    }
    return true;
  }

  const nb::object& choose(PyObject* const* arguments, Py_ssize_t count, PyObject* keywords) const {
    const Framework* torch = nullptr;
    bool wanted = false;
    for (Py_ssize_t i = 0; i < count && !wanted; ++i) {
      if (!plain.have(arguments[i])) continue;
      if (torch == nullptr) {
        torch = &torch_of(arguments[i]);
        if (!knows_keys(*torch) || torch->grad_mode == nullptr || has_mode(*torch)) return other;
        if (!torch->grad_mode()) return extension;
      }
      wanted = wants_gradient(*torch, arguments[i]);
    }
    if (torch == nullptr) return other;
    return wanted && can_record(keywords) ? recorded : extension;
  }
};

PyObject* call_publicly(PyObject* self, PyObject* const* arguments, Py_ssize_t positional,
                        PyObject* keywords) noexcept {
  return at_the_edge([=] {
    const Py_ssize_t count = positional + (keywords == nullptr ? 0 : PyTuple_Size(keywords));
    const nb::object& chosen = kept_in<PublicCall>(self).choose(arguments, count, keywords);
    return owned(PyObject_Vectorcall(chosen.ptr(), arguments, static_cast<std::size_t>(positional),
                                     keywords));
  });
}

}  // namespace

nb::object make_eager_call(nb::object apply, nb::handle plain, int tensors) {
  static PyMethodDef definition = method("call", &call_eagerly, METH_FASTCALL);
  return builtin_with(definition, new EagerCall{std::move(apply), PlainTypes(plain), tensors});
}

nb::object make_public_call(nb::object recorded, nb::object extension, nb::object other,
                            nb::handle plain, nb::object outside) {
  static PyMethodDef definition = method("call", &call_publicly, METH_FASTCALL | METH_KEYWORDS);
  return builtin_with(definition,
                      new PublicCall{std::move(recorded), std::move(extension), std::move(other),
                                     PlainTypes(plain), std::move(outside)});
}

}  // namespace membound::python::torch
